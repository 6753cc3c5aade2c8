"""Gymnasium's environments with discrete actions as text: `gym:FrozenLake-v1`, `gym:CliffWalking-v1`, `gym:Taxi-v4`.

An action is a word, an observation a sentence. The toy problems have words of their own; others say "state 14" and take
"action 3". Where an environment has a table of transitions, its best return is computed exactly.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from offline_arl import optional
from offline_arl.environments.probes.dynamic_programming import (
    FloatArray,
    TabularMDP,
    greedy_policy,
    start_values,
    timed_action_values,
    uniform_policy,
)
from offline_arl.environments.probes.environment import Move, Probe
from offline_arl.environments.probes.family import Behavior, ExamplePolicies, Policy, ProbeFamily, Start
from offline_arl.environments.protocol import Task
from offline_arl.environments.splits import SPLITS
from offline_arl.errors import UsageError

_STEPS = 200  # where the environment has no limit of its own
_STARTS = 1_000  # seeds of a split
_ATTEMPTS = 100  # at an example of success, where an environment plays dice


class Words(NamedTuple):
    """How an environment is told."""

    instructions: str
    actions: tuple[str, ...]
    describe: Callable[[Any, Any], str]  # (the environment, an observation) -> what the agent reads
    end_is_success: bool = False  # nothing else than the goal ends an episode, and its reward may be negative


def _frozen_lake(env: Any, state: Any) -> str:
    width = env.unwrapped.ncol
    rows = ["".join(cell.decode() for cell in row) for row in env.unwrapped.desc]
    row, column = divmod(int(state), width)
    rows[row] = rows[row][:column] + "P" + rows[row][column + 1 :]
    return "\n".join(rows)


def _cliff(env: Any, state: Any) -> str:
    row, column = divmod(int(state), 12)
    return f"row {row} column {column}"


def _taxi(env: Any, state: Any) -> str:
    row, column, passenger, goal = env.unwrapped.decode(int(state))
    places = ("red", "green", "yellow", "blue", "taxi")
    return f"taxi at row {row} column {column}, passenger at {places[passenger]}, wants to {places[goal]}"


_KNOWN: dict[str, Words] = {
    "FrozenLake": Words(
        "Cross the frozen lake from S to G without falling into a hole H. P is where you are, F is ice, and ice is "
        "slippery. Answer with one word: left, down, right or up.",
        ("left", "down", "right", "up"),
        _frozen_lake,
    ),
    "CliffWalking": Words(
        "Walk from row 3 column 0 to row 3 column 11 of a grid of 4 rows. Row 3 columns 1 to 10 are a cliff: whoever "
        "falls loses 100 points and starts again. Each step costs 1. Answer with one word: up, right, down or left.",
        ("up", "right", "down", "left"),
        _cliff,
        end_is_success=True,
    ),
    "Taxi": Words(
        "Drive the taxi to the passenger, pick them up, drive them to where they want, and drop them off. Each step "
        "costs 1, a wrong pickup or dropoff 10, the ride earns 20. Answer with one word: south, north, east, west, "
        "pickup or dropoff.",
        ("south", "north", "east", "west", "pickup", "dropoff"),
        _taxi,
    ),
}


class GymnasiumText(Probe):
    """One episode of a Gymnasium environment; satisfies `environments.protocol.Environment`.

    A word that is no action takes a step, changes nothing and costs `illegal_reward`.

    Args:
        env: A Gymnasium environment with discrete actions, without a time limit of its own.
        words: How it is told.
        max_steps: Of an episode.
        threshold: Return from which on an episode is a success; None: it ends well if its last reward is positive.
        illegal_reward: Of a word that is no action.
    """

    def __init__(
        self, env: Any, words: Words, *, name: str, max_steps: int, threshold: float | None, illegal_reward: float = 0.0
    ) -> None:
        super().__init__(max_steps=max_steps)
        self.name = name  # type: ignore[misc]
        self.instructions = words.instructions  # type: ignore[misc]
        self._env = env
        self._words = words
        self._threshold = threshold
        self._illegal_reward = illegal_reward

    def _begin(self, payload: dict[str, Any]) -> str:
        observation, _ = self._env.reset(seed=int(payload["seed"]))
        self._last_reward = 0.0
        self._at_end = False
        self._state = self._words.describe(self._env, observation)
        return self._state

    def _act(self, action: str) -> Move:
        if action not in self._words.actions:
            return Move(self._state, self._illegal_reward, invalid=True)
        observation, reward, terminated, truncated, _ = self._env.step(self._words.actions.index(action))
        self._last_reward = float(reward)
        self._state = self._words.describe(self._env, observation)
        self._at_end = bool(terminated)
        return Move(self._state, self._last_reward, "goal" if terminated or truncated else None)

    def _judge(self) -> tuple[bool, float, dict[str, float]]:
        if self._threshold is not None:
            return self._return >= self._threshold, self._return, {}
        arrived = self._at_end and self._words.end_is_success
        return arrived or self._last_reward > 0, self._return, {}


class GymnasiumFamily(ProbeFamily):
    """A Gymnasium environment with its tasks, which are seeds: found by the name `gym:NAME`.

    Args:
        gym_id: As `gymnasium.make` takes it.
        words: How it is told; None: those of the toy problems, else numbers.
        max_steps: Of an episode; None: the environment's own limit, else 200.
        threshold: Return from which on an episode is a success; None: it ends well if its last reward is positive.
        settings: For `gymnasium.make`.

    Raises:
        MissingDependencyError: Gymnasium is not installed.
        UsageError: There is no such environment, or its actions are not a few discrete ones.
    """

    def __init__(
        self,
        gym_id: str,
        *,
        words: Words | None = None,
        max_steps: int | None = None,
        threshold: float | None = None,
        **settings: Any,
    ) -> None:
        self.name = f"gym:{gym_id}"  # type: ignore[misc]
        self._gymnasium = optional.require("gymnasium", extra="environments")
        self._id, self._settings, self._threshold = gym_id, settings, threshold
        env = self._new()
        actions = getattr(env.action_space, "n", None)
        if actions is None:
            raise UsageError(f"{gym_id}: its actions are {env.action_space}, only discrete ones can be words")
        self._words = words or _words(gym_id, int(actions))
        if len(self._words.actions) != actions:
            raise UsageError(f"{gym_id} has {actions} actions and {len(self._words.actions)} words for them")
        self.max_steps = max_steps or (env.spec.max_episode_steps if env.spec else None) or _STEPS

    def make(self) -> GymnasiumText:
        """A fresh environment."""
        # The limit is this package's, so that its end is told as a truncation and shows the last state.
        env = self._new().unwrapped
        return GymnasiumText(env, self._words, name=self.name, max_steps=self.max_steps, threshold=self._threshold)

    def starts(self, split: str, *, seed: int) -> Sequence[Start]:
        """Seeds, others in each split."""
        first = SPLITS.index(split) * _STARTS
        return [Start(str(number), self._id, {"seed": number}) for number in range(first, first + _STARTS)]

    def behavior(self, start: Start, generator: np.random.Generator) -> Behavior:
        """For logs: an agent that takes the best move half of the time where it is known, else at random."""
        best = self._best

        def act(seen: Sequence[str], generator: np.random.Generator) -> str:
            choices = best.get(seen[-1]) if best is not None and generator.random() < 0.5 else None
            options = choices or self._words.actions
            return options[int(generator.integers(len(options)))]

        return Behavior("random" if best is None else "random_0.5_optimal", act)

    def example_policies(self, task: Task) -> ExamplePolicies:
        """The best policy where it is known and the dice of the task's seed let it succeed; and one that does nothing.

        Where the environment plays dice, the best policy is tried with some moves at random in between.
        """
        nothing = ExamplePolicies(None, lambda states, _: "wait")
        best = self._best
        if best is None:
            return nothing
        for attempt in range(_ATTEMPTS):
            policy = _wandering(best, self._words.actions, seed=attempt)
            if self._played(task, policy, True) is not None:
                return ExamplePolicies(_wandering(best, self._words.actions, seed=attempt), nothing.failure)
        return nothing

    @cached_property
    def mdp(self) -> TabularMDP | None:
        """The environment's table of transitions, its states by their text; None where it has none."""
        env = self._new().unwrapped
        table = getattr(env, "P", None)
        if table is None:
            return None
        size, actions = len(table), len(self._words.actions)
        transitions, rewards = np.zeros((size, actions, size)), np.zeros((size, actions))
        for state, moves in table.items():
            for action, outcomes in moves.items():
                for probability, following, reward, terminated in outcomes:
                    rewards[state, action] += probability * reward
                    if not terminated:
                        transitions[state, action, following] += probability
        names = tuple(self._words.describe(env, state) for state in range(size))
        return TabularMDP(names, self._words.actions, transitions, rewards)

    def expected_return(self, policy: FloatArray | None = None) -> float:
        """The exact expected return of an episode, its time limit and its distribution of starts included.

        Args:
            policy: [S, A] probabilities of the actions; None is the best policy there is (which may look at the clock).

        Raises:
            UsageError: The environment has no table of transitions.
        """
        values = start_values(self._table(), policy, horizon=self.max_steps, discount=1.0)
        return float(self._new().unwrapped.initial_state_distrib @ values)

    def best_policy(self) -> FloatArray:
        """[S, A] the best policy with all the time in front of it; ties share evenly.

        Raises:
            UsageError: The environment has no table of transitions.
        """
        return greedy_policy(timed_action_values(self._table(), horizon=self.max_steps, discount=1.0)[0])

    def uniform_policy(self) -> FloatArray:
        """[S, A] every action alike.

        Raises:
            UsageError: The environment has no table of transitions.
        """
        return uniform_policy(self._table())

    def _table(self) -> TabularMDP:
        if self.mdp is None:
            raise UsageError(f"{self.name} has no table of transitions, so nothing exact can be said about it")
        return self.mdp

    @cached_property
    def _best(self) -> dict[str, tuple[str, ...]] | None:
        if self.mdp is None:
            return None
        rows = zip(self.mdp.states, self.best_policy(), strict=True)
        return {state: tuple(self._words.actions[i] for i in np.flatnonzero(row)) for state, row in rows}

    def _new(self) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of versions that are old
            try:
                return self._gymnasium.make(self._id, **self._settings)
            except self._gymnasium.error.Error as error:
                raise UsageError(f"{self._id}: {' '.join(str(error).split())}") from error


def _wandering(best: Mapping[str, Sequence[str]], actions: Sequence[str], *, seed: int) -> Policy:
    """The best policy, which for seeds other than 0 takes a tenth of its moves at random."""
    generator = np.random.default_rng(seed)

    def act(seen: Sequence[str], _: np.random.Generator) -> str:
        options = actions if seed and generator.random() < 0.1 else best[seen[-1]]
        return options[int(generator.integers(len(options)))]

    return act


def _words(gym_id: str, actions: int) -> Words:
    known = _KNOWN.get(gym_id.split("-")[0])
    if known is not None and len(known.actions) == actions:
        return known
    names = tuple(f"action {number}" for number in range(actions))
    instructions = f"You act in {gym_id}. Answer with one of: {', '.join(names)}."
    return Words(instructions, names, lambda env, observation: f"state {observation}")
