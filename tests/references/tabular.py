"""A small random MDP, data logged in it, and the exact values of that data by dynamic programming in NumPy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

N_STATES, N_ACTIONS, DISCOUNT = 6, 3, 0.9
ITERATIONS = 300  # 0.9 ** 300 is 2e-14


@dataclass(frozen=True)
class Log:
    """Transitions [N]; a terminal one has no next state (0 stands there)."""

    states: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_states: np.ndarray
    terminated: np.ndarray

    @property
    def support(self) -> np.ndarray:
        """[S, A]: which actions were taken where."""
        taken = np.zeros((N_STATES, N_ACTIONS), dtype=bool)
        taken[self.states, self.actions] = True
        return taken

    def backup(self, values: np.ndarray) -> np.ndarray:
        """[S, A] mean of reward + discount * V(next) over the logged transitions of each pair; 0 off the support."""
        targets = self.rewards + DISCOUNT * np.where(self.terminated, 0.0, values[self.next_states])
        totals, counts = np.zeros((N_STATES, N_ACTIONS)), np.zeros((N_STATES, N_ACTIONS))
        np.add.at(totals, (self.states, self.actions), targets)
        np.add.at(counts, (self.states, self.actions), 1.0)
        return np.divide(totals, counts, out=np.zeros_like(totals), where=counts > 0)


def log_of_random_behavior(seed: int, transitions: int) -> Log:
    """A behavior that favors some actions and never takes the last action of the even states.

    Each action leads to two of the states, or with a probability of 0.1 to the end.
    """
    generator = np.random.default_rng(seed)
    successors = generator.integers(N_STATES, size=(N_STATES, N_ACTIONS, 2))
    reward_of = generator.normal(size=(N_STATES, N_ACTIONS))
    behavior = generator.dirichlet(np.ones(N_ACTIONS), size=N_STATES) + 0.1
    behavior[::2, -1] = 0.0
    behavior /= behavior.sum(axis=1, keepdims=True)
    states = generator.integers(N_STATES, size=transitions)
    actions = np.array([generator.choice(N_ACTIONS, p=behavior[state]) for state in states])
    return Log(
        states=states,
        actions=actions,
        rewards=reward_of[states, actions] + 0.5 * generator.normal(size=transitions),
        next_states=successors[states, actions, generator.integers(2, size=transitions)],
        terminated=generator.random(transitions) < 0.1,
    )


def optimal_q(log: Log) -> np.ndarray:
    """Q* of the MDP of the log, restricted to logged actions, by value iteration."""
    values = np.zeros(N_STATES)
    for _ in range(ITERATIONS):
        values = np.where(log.support, log.backup(values), -np.inf).max(axis=1)
    return log.backup(values)


def expectiles_of(outcomes: np.ndarray, weights: np.ndarray, expectile: float) -> np.ndarray:
    """[S, A], [S, A] -> [S]: the roots of sum w |tau - 1(x < v)| (x - v), by bisection; weights of 0 do not count."""
    low = np.where(weights > 0, outcomes, np.inf).min(axis=1)
    high = np.where(weights > 0, outcomes, -np.inf).max(axis=1)
    for _ in range(60):
        middle = (low + high) / 2
        errors = outcomes - middle[:, np.newaxis]
        pull = (weights * np.where(errors < 0, 1 - expectile, expectile) * errors).sum(axis=1)
        low, high = np.where(pull > 0, middle, low), np.where(pull > 0, high, middle)
    return (low + high) / 2


def expectile_fixed_point(log: Log, expectile: float) -> tuple[np.ndarray, np.ndarray]:
    """(V, Q) with V(s) the expectile of Q(s, a) over the logged actions of s and Q the backup of V, by iteration."""
    counts = np.zeros((N_STATES, N_ACTIONS))
    np.add.at(counts, (log.states, log.actions), 1.0)
    values = np.zeros(N_STATES)
    for _ in range(ITERATIONS):
        values = expectiles_of(log.backup(values), counts, expectile)
    return values, log.backup(values)
