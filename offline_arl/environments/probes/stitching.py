"""A crossing where the goal is reached from the western starts only by joining parts of two logged paths.

    ####G####        G goal, 1; C chest, 0.5; P pit, 0: each ends the episode, and nothing else pays
    ####.####
    #PPP.####        starts: the three cells to the left of the crossing (west), which is a bridge without rails, and
    C.......#        the three to its right (east), between walls
    #PPP.####
    ####.####
    ####P####

Logged agents from the west go to the chest or to the pit; those from the east go to the goal or to the pit. So the best
logged return is 0.5 from the west and 1 from the east, and a policy that imitates logged successes, or logged attempts
of a given return, gets no more than that. But the way of the western agents to the pit and the way of the eastern ones
to the goal meet at the crossing: a policy that evaluates states goes from the west to the goal as well, which is worth
1 from everywhere.

The state is the cell, which is all there is to know: a policy or a value that remembers where it came from has never
seen anything but the pit behind the crossing. The action is a direction; a text that is none is an illegal move, which
wastes the step and costs nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar

import numpy as np

from offline_arl.environments.probes.dynamic_programming import FloatArray, TabularMDP, start_values
from offline_arl.environments.probes.environment import Move, Probe
from offline_arl.environments.probes.family import Behavior, ExamplePolicies, ProbeFamily, Start
from offline_arl.environments.probes.grid import ACTIONS, OPPOSITE, Grid
from offline_arl.environments.protocol import Task

MAP = Grid("""
####.####
####.####
#....####
........#
#....####
####.####
####.####
""")
GOAL, CHEST, PIT = "E0", "A3", "E6"  # the pit that logged agents go to; they keep off the others
ENDS = {
    GOAL: ("goal", 1.0),
    CHEST: ("chest", 0.5),
    **dict.fromkeys((PIT, "B2", "C2", "D2", "B4", "C4", "D4"), ("pit", 0.0)),
}
WEST = ("B3", "C3", "D3")
EAST = ("F3", "G3", "H3")
MAX_STEPS = 20
HESITATION = 0.1  # probability that a logged agent, after a step, takes it back and repeats it

_ROUTES = {  # where the logged agents of each side go, each with the same probability
    "west": {CHEST: 0.5, PIT: 0.0},
    "east": {GOAL: 1.0, PIT: 0.0},
}


def side(cell: str) -> str:
    """Of a start cell: "west" or "east"."""
    return "west" if cell in WEST else "east"


def best_logged_return(cell: str) -> float:
    """The best return that any logged agent gets from a start cell: 0.5 from the west, 1 from the east."""
    return max(_ROUTES[side(cell)].values())


class Stitching(Probe):
    """One way over the crossing."""

    name: ClassVar[str] = "stitching"
    instructions: ClassVar[str] = "Find the most valuable place. Answer left, right, up or down."

    def __init__(self, *, max_steps: int = MAX_STEPS) -> None:
        super().__init__(max_steps=max_steps)

    def _begin(self, payload: dict[str, Any]) -> str:
        self._cell = str(payload["start"])
        return self._cell

    def _act(self, action: str) -> Move:
        if action not in ACTIONS:
            return Move(self._cell, 0.0, invalid=True)
        self._cell = MAP.moved(self._cell, action)
        stop_reason, reward = ENDS.get(self._cell, (None, 0.0))
        return Move(self._cell, reward, stop_reason)

    def _judge(self) -> tuple[bool, float, dict[str, float]]:
        return self._cell == GOAL, self._return, {}


class StitchingFamily(ProbeFamily):
    """The crossing, found by the name "stitching". Success is the goal; the score is the return."""

    name: ClassVar[str] = "stitching"

    def make(self) -> Stitching:
        """A fresh environment."""
        return Stitching()

    def starts(self, split: str, *, seed: int) -> Sequence[Start]:
        """The six starts, west and east in turn; the side is the task type."""
        cells = [cell for pair in zip(WEST, EAST, strict=True) for cell in pair]
        return [Start(cell, side(cell), {"start": cell}) for cell in cells]

    def target_return(self, task: Task) -> float:
        """What a return-conditioned policy is asked for: the best logged return from the task's start."""
        return best_logged_return(str(task.payload["start"]))

    def behavior(self, start: Start, generator: np.random.Generator) -> Behavior:
        """Goes to one of the places that agents of its side go to, with some hesitation on the way."""
        place = tuple(_ROUTES[start.task_type])[int(generator.integers(2))]
        actions = _with_hesitation(route(start.payload["start"], place), generator)
        return Behavior(f"to_{ENDS[place][0]}", lambda states, _: actions[len(states) - 1])

    def example_policies(self, task: Task) -> ExamplePolicies:
        """The shortest way to the goal, and that to the pit."""
        cell = str(task.payload["start"])
        to_goal, to_pit = route(cell, GOAL), route(cell, PIT)
        return ExamplePolicies(
            lambda states, _: to_goal[len(states) - 1],
            lambda states, _: to_pit[len(states) - 1],
        )


def route(cell: str, place: str) -> list[str]:
    """The shortest way from a start cell to one of the places where episodes end."""
    column, row = ord(cell[0]) - ord("A"), int(cell[1])
    target_column, target_row = ord(place[0]) - ord("A"), int(place[1])
    across = ["left"] * (column - target_column) + ["right"] * (target_column - column)
    return across + ["up"] * (row - target_row) + ["down"] * (target_row - row)


def _with_hesitation(actions: list[str], generator: np.random.Generator) -> list[str]:
    """Some steps but the last taken back and repeated."""
    played: list[str] = []
    for action in actions[:-1]:
        played.append(action)
        if generator.random() < HESITATION:
            played += [OPPOSITE[action], action]
    return [*played, actions[-1]]


@cache
def mdp() -> TabularMDP:
    """The crossing as a table: the cells where episodes do not end, the four moves."""
    cells = tuple(cell for cell in MAP.cells if cell not in ENDS)
    index = {cell: position for position, cell in enumerate(cells)}
    reached = [[MAP.moved(cell, action) for action in ACTIONS] for cell in cells]
    following = np.array([[index.get(cell, -1) for cell in row] for row in reached])
    rewards = np.array([[ENDS.get(cell, ("", 0.0))[1] for cell in row] for row in reached])
    return TabularMDP.deterministic(cells, ACTIONS, following, rewards)


def expected_returns(policy: FloatArray | None = None) -> dict[str, float]:
    """The exact expected return from each start, the best policy's (1 everywhere) by default.

    Args:
        policy: [S, A] or [MAX_STEPS, S, A].
    """
    values = start_values(mdp(), policy, horizon=MAX_STEPS, discount=1.0)
    return {cell: float(values[mdp().index(cell)]) for cell in (*WEST, *EAST)}


family = StitchingFamily()
