"""LMRL-Gym's fully observed maze: two T-shaped arms and a stem, 26 free cells, goal (8, 6), named G8 here.

Reward per step: 0 for reaching the goal, -1 for any other move (walls are bumped into), -4 for a text that is no
move; it leaves the agent where it is. After 100 steps the episode is truncated and the time-out costs -1 more, so the
worst return without illegal moves is -101. The best return, the mean over the 25 start cells, is -6.84.

The state is the cell, the action a direction. The logs are of agents that take the best move in 2 % of their steps
and a random one in the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar

import numpy as np

from offline_arl.environments.probes.dynamic_programming import (
    FloatArray,
    TabularMDP,
    action_values,
    greedy_policy,
    start_values,
    uniform_policy,
)
from offline_arl.environments.probes.environment import Move, Probe
from offline_arl.environments.probes.family import Behavior, ExamplePolicies, ProbeFamily, Start, tabular
from offline_arl.environments.probes.grid import ACTIONS, Grid
from offline_arl.environments.protocol import Task

MAZE = Grid("""
#############
#.....#.....#
###.#####.###
###.#####.###
###.#####.###
###.......###
######.######
######.######
######.######
#############
""")
GOAL = "G8"
STARTS = tuple(cell for cell in MAZE.cells if cell != GOAL)
HORIZON = 100
STEP_REWARD = -1.0
ILLEGAL_REWARD = -4.0
TIME_OUT_REWARD = -1.0
OPTIMAL_SHARE = 0.02  # of the logged agents' moves


class DoubleTMaze(Probe):
    """One way through the maze."""

    name: ClassVar[str] = "double_t_maze"
    instructions: ClassVar[str] = f"Walk through the maze to {GOAL}. Answer left, right, up or down."
    time_out_reward: ClassVar[float] = TIME_OUT_REWARD

    def __init__(self, *, max_steps: int = HORIZON) -> None:
        super().__init__(max_steps=max_steps)

    def _begin(self, payload: dict[str, Any]) -> str:
        self._cell = str(payload["start"])
        return self._cell

    def _act(self, action: str) -> Move:
        if action not in ACTIONS:
            return Move(self._cell, ILLEGAL_REWARD, invalid=True)
        self._cell = MAZE.moved(self._cell, action)
        return Move(self._cell, 0.0, "goal") if self._cell == GOAL else Move(self._cell, STEP_REWARD)

    def _judge(self) -> tuple[bool, float, dict[str, float]]:
        return self._cell == GOAL, self._return, {}


class DoubleTMazeFamily(ProbeFamily):
    """The maze, found by the name "double_t_maze". Success is the goal within 100 steps; the score is the return.

    Args:
        optimal_share: Share of their moves in which the logged agents take the best one; the others are random.
    """

    name: ClassVar[str] = "double_t_maze"

    def __init__(self, *, optimal_share: float = OPTIMAL_SHARE) -> None:
        policy = tabular(STARTS, ACTIONS, mixed_policy(optimal_share))
        self._behavior = Behavior(f"random_{optimal_share:g}_optimal", policy)

    def make(self) -> DoubleTMaze:
        """A fresh environment."""
        return DoubleTMaze()

    def starts(self, split: str, *, seed: int) -> Sequence[Start]:
        """Every free cell but the goal."""
        return [Start(cell, self.name, {"start": cell}) for cell in STARTS]

    def behavior(self, start: Start, generator: np.random.Generator) -> Behavior:
        """The same agent in every episode."""
        return self._behavior

    def example_policies(self, task: Task) -> ExamplePolicies:
        """The best way to the goal, and walking up against walls, where the goal is not."""
        return ExamplePolicies(tabular(STARTS, ACTIONS, _best_policy()), lambda states, _: "up")


@cache
def mdp() -> TabularMDP:
    """The maze as a table: the 25 start cells, the four moves."""
    kept = [position for position, cell in enumerate(MAZE.cells) if cell != GOAL]
    renumbered = np.full(len(MAZE.cells) + 1, -1)  # its last entry, for index -1, stands for the goal
    renumbered[kept] = np.arange(len(kept))
    following = renumbered[MAZE.next_states(ends=(GOAL,))[kept]]
    return TabularMDP.deterministic(STARTS, ACTIONS, following, np.where(following < 0, 0.0, STEP_REWARD))


@cache
def _best_policy() -> FloatArray:
    return greedy_policy(action_values(mdp(), discount=1.0))


def mixed_policy(optimal_share: float) -> FloatArray:
    """[S, A] the best move with probability `optimal_share`, else a random one (which may be the best too)."""
    return optimal_share * _best_policy() + (1 - optimal_share) * uniform_policy(mdp())


def expected_returns(policy: FloatArray | None = None) -> FloatArray:
    """The exact expected return from each start cell, time-out included, [25] in the order of `STARTS`.

    Args:
        policy: [S, A] or [HORIZON, S, A]; None is the best one.
    """
    final = np.full(len(STARTS), TIME_OUT_REWARD)
    return start_values(mdp(), policy, horizon=HORIZON, discount=1.0, final_values=final)


family = DoubleTMazeFamily()
