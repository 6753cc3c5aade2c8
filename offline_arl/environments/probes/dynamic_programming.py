"""Exact values of small decision problems: the best policy's and any tabular policy's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offline_arl.errors import DataError, UsageError

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class TabularMDP:
    """A decision problem with S states and A actions.

    An episode that ends has no next state: what a row of `transitions` lacks to 1 is the probability that the
    episode terminates there.
    """

    states: tuple[str, ...]
    actions: tuple[str, ...]
    transitions: FloatArray  # [S, A, S] probability of each next state
    rewards: FloatArray  # [S, A] expected reward

    def __post_init__(self) -> None:
        shape = (len(self.states), len(self.actions))
        if self.rewards.shape != shape or self.transitions.shape != (*shape, shape[0]):
            raise UsageError(
                f"{shape[0]} states and {shape[1]} actions do not fit transitions of shape {self.transitions.shape} "
                f"and rewards of shape {self.rewards.shape}"
            )
        if self.transitions.min(initial=0.0) < 0 or self.transitions.sum(axis=2).max(initial=0.0) > 1 + 1e-9:
            raise UsageError("transitions are probabilities: none below 0, no row above 1 in sum")

    @classmethod
    def deterministic(
        cls, states: Sequence[str], actions: Sequence[str], next_states: NDArray[np.integer], rewards: FloatArray
    ) -> TabularMDP:
        """Of tables [S, A] of the next state's index (-1: the episode terminates) and of the reward."""
        transitions = np.zeros((*next_states.shape, len(states)))
        rows, columns = np.nonzero(next_states >= 0)
        transitions[rows, columns, next_states[rows, columns]] = 1.0
        return cls(tuple(states), tuple(actions), transitions, np.asarray(rewards, dtype=np.float64))

    def index(self, state: str) -> int:
        """Position of a state in the tables."""
        return self.states.index(state)


def state_values(action_values: FloatArray, policy: FloatArray | None = None) -> FloatArray:
    """V of Q: the best action's value, or the mean under `policy`.

    Args:
        action_values: [..., S, A].
        policy: [..., S, A] probabilities of the actions.

    Returns:
        [..., S].
    """
    if policy is None:
        return np.asarray(action_values.max(axis=-1))
    return np.asarray((policy * action_values).sum(axis=-1))


def backup(mdp: TabularMDP, values: FloatArray, *, discount: float) -> FloatArray:
    """One step of lookahead, [S, A]: the reward and the discounted value [S] of where it leads."""
    return mdp.rewards + discount * (mdp.transitions @ values)


def action_values(
    mdp: TabularMDP,
    policy: FloatArray | None = None,
    *,
    discount: float,
    tolerance: float = 1e-12,
    max_sweeps: int = 100_000,
) -> FloatArray:
    """Q without a time limit: the optimal one by value iteration, a policy's by solving its linear equations.

    Args:
        mdp: The problem.
        policy: [S, A] probabilities; None is the optimal policy.
        discount: Per step, from 0 to 1; at 1 the policy must come to an end.
        tolerance: Largest change of a value in the last sweep of value iteration.
        max_sweeps: Of value iteration.

    Returns:
        [S, A].

    Raises:
        DataError: The values do not converge: undiscounted rewards go on forever.
    """
    if policy is not None:
        step = np.einsum("sa,sat->st", policy, mdp.transitions)
        try:
            values = np.linalg.solve(np.eye(len(mdp.states)) - discount * step, (policy * mdp.rewards).sum(axis=1))
        except np.linalg.LinAlgError as error:
            raise DataError("the policy never ends, so its undiscounted value is not defined; discount it") from error
        return backup(mdp, values, discount=discount)
    values = np.zeros(len(mdp.states))
    for _ in range(max_sweeps):
        table = backup(mdp, values, discount=discount)
        updated = state_values(table)
        change = np.abs(updated - values).max()
        values = updated
        if change <= tolerance:
            return backup(mdp, values, discount=discount)
    raise DataError(f"the values still change by {change:.1e} after {max_sweeps} sweeps; use a discount below 1")


def timed_action_values(
    mdp: TabularMDP,
    policy: FloatArray | None = None,
    *,
    horizon: int,
    discount: float,
    final_values: FloatArray | None = None,
) -> FloatArray:
    """Q under a time limit, by backward induction.

    Args:
        mdp: The problem.
        policy: Probabilities [S, A], or [horizon, S, A] for a policy that looks at the time; None is the optimal one.
        horizon: Number of steps.
        discount: Per step, from 0 to 1.
        final_values: [S] what being in a state is worth when the time is up; 0 by default.

    Returns:
        [horizon, S, A]; entry t is for a decision after t steps.
    """
    if horizon < 1:
        raise UsageError(f"horizon is {horizon}; an episode has at least 1 step")
    shape = (len(mdp.states), len(mdp.actions))
    timed_policy = None if policy is None else np.broadcast_to(policy, (horizon, *shape))
    values = np.zeros(shape[0]) if final_values is None else final_values
    tables = np.empty((horizon, *shape))
    for time in reversed(range(horizon)):
        tables[time] = backup(mdp, values, discount=discount)
        values = state_values(tables[time], None if timed_policy is None else timed_policy[time])
    return tables


def start_values(
    mdp: TabularMDP,
    policy: FloatArray | None = None,
    *,
    horizon: int,
    discount: float,
    final_values: FloatArray | None = None,
) -> FloatArray:
    """[S] V under a time limit before the first step; arguments as for `timed_action_values`."""
    tables = timed_action_values(mdp, policy, horizon=horizon, discount=discount, final_values=final_values)
    return state_values(tables[0], None if policy is None else np.broadcast_to(policy, tables.shape)[0])


def greedy_policy(action_values: FloatArray, *, tolerance: float = 1e-9) -> FloatArray:
    """[..., S, A] the policy that takes the best action; actions within `tolerance` of it share evenly.

    >>> greedy_policy(np.array([[1.0, 3.0, 3.0]]))
    array([[0. , 0.5, 0.5]])
    """
    best = action_values >= action_values.max(axis=-1, keepdims=True) - tolerance
    return np.asarray(best / best.sum(axis=-1, keepdims=True))


def uniform_policy(mdp: TabularMDP) -> FloatArray:
    """[S, A] every action alike."""
    return np.full((len(mdp.states), len(mdp.actions)), 1 / len(mdp.actions))
