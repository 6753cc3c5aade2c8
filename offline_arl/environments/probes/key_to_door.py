"""Key to door: what is done in the first of three phases pays in the third (Decision Transformer, Table 6).

Each phase is a room of 4 by 4 cells and lasts 8 steps; every phase starts in a cell that the task names. The first room
has a key in A0, taken by stepping there; the second is empty; the third has a door in D3. Stepping on the door ends
the episode, with reward 1 for an agent that has the key and 0 for one that has not. Nothing else pays. Rooms and phases
are sized so that a random agent succeeds in 3.1 % of its attempts, as in the paper, and every task can be solved.

The state shows the room and the cell: `key B2` while the key lies there and `taken B2` after that, `hall B2` in the
second room, `door B2` in the third, which does not tell whether the agent has the key: that is for it to remember.
The action is a direction; a text that is none is an illegal move, which wastes the step and costs nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any, ClassVar

import numpy as np

from offline_arl.environments.probes.dynamic_programming import (
    FloatArray,
    TabularMDP,
    start_values,
    uniform_policy,
)
from offline_arl.environments.probes.environment import Move, Probe
from offline_arl.environments.probes.family import Behavior, ExamplePolicies, ProbeFamily, Start
from offline_arl.environments.probes.grid import ACTIONS, Grid
from offline_arl.environments.protocol import Task
from offline_arl.environments.splits import SPLITS, split_of_content

ROOM = Grid("....\n....\n....\n....")
KEY = "A0"
DOOR = "D3"
PHASE_STEPS = 8
KEY_ROOM, HALL, DOOR_ROOM = range(3)
KEY_STARTS = tuple(cell for cell in ROOM.cells if cell != KEY)
DOOR_STARTS = tuple(cell for cell in ROOM.cells if cell != DOOR)


class KeyToDoor(Probe):
    """One way through the three rooms."""

    name: ClassVar[str] = "key_to_door"
    instructions: ClassVar[str] = (
        f"Take the key in {KEY} of the first room, then go to the door in {DOOR} of the third. "
        "Answer left, right, up or down."
    )

    def __init__(self) -> None:
        super().__init__(max_steps=3 * PHASE_STEPS)

    def _begin(self, payload: dict[str, Any]) -> str:
        self._starts = [str(cell) for cell in payload["starts"]]
        self._phase = KEY_ROOM
        self._cell = self._starts[KEY_ROOM]
        self._has_key = self._opened = False
        return self._state()

    def _act(self, action: str) -> Move:
        invalid = action not in ACTIONS
        if not invalid:
            self._cell = ROOM.moved(self._cell, action)
        if self._phase == KEY_ROOM and self._cell == KEY:
            self._has_key = True
        if self._phase == DOOR_ROOM and self._cell == DOOR:
            self._opened = self._has_key
            return Move(self._state(), float(self._opened), "door_opened" if self._opened else "door_locked", invalid)
        if self._steps % PHASE_STEPS == 0 and self._phase < DOOR_ROOM:
            self._phase += 1
            self._cell = self._starts[self._phase]
        return Move(self._state(), 0.0, invalid=invalid)

    def _state(self) -> str:
        room = ("taken" if self._has_key else "key", "hall", "door")[self._phase]
        return f"{room} {self._cell}"

    def _judge(self) -> tuple[bool, float, dict[str, float]]:
        return self._opened, float(self._opened), {"key": float(self._has_key)}


class KeyToDoorFamily(ProbeFamily):
    """Key to door, found by the name "key_to_door". A task is a start cell in each room; its splits share none."""

    name: ClassVar[str] = "key_to_door"

    def make(self) -> KeyToDoor:
        """A fresh environment."""
        return KeyToDoor()

    def starts(self, split: str, *, seed: int) -> Sequence[Start]:
        """The start cells that fall into the split (60 % train, 20 % validation, 20 % test), in random order."""
        found = _starts_of(split)
        order = np.random.default_rng([seed, SPLITS.index(split)]).permutation(len(found))
        return [found[position] for position in order]

    def behavior(self, start: Start, generator: np.random.Generator) -> Behavior:
        """Moves at random."""
        return Behavior("random", _move_at_random)

    def example_policies(self, task: Task) -> ExamplePolicies:
        """To the key and to the door; and to the door without the key, which lies in the first column."""
        return ExamplePolicies(
            lambda states, _: _toward(KEY if states[-1].startswith("key") else DOOR, states[-1]),
            lambda states, _: "right" if states[-1].startswith(("key", "taken")) else _toward(DOOR, states[-1]),
        )


def _toward(place: str, state: str) -> str:
    """A step on a shortest way through a room, which has no walls inside."""
    column, row = state[-2], int(state[-1])
    if column != place[0]:
        return "left" if column > place[0] else "right"
    return "up" if row > int(place[1]) else "down"


def _move_at_random(states: Sequence[str], generator: np.random.Generator) -> str:
    return ACTIONS[int(generator.integers(len(ACTIONS)))]


@cache
def _starts_of(split: str) -> tuple[Start, ...]:
    found = []
    for cells in product(KEY_STARTS, ROOM.cells, DOOR_STARTS):
        label = "-".join(cells)
        if split == split_of_content(label.encode()):
            found.append(Start(label, KeyToDoorFamily.name, {"starts": list(cells)}))
    return tuple(found)


@cache
def key_room() -> TabularMDP:
    """The first room as a table. Its states say whether the key is taken: `key B2` or `taken B2`."""
    following = ROOM.next_states()
    key = ROOM.cells.index(KEY)
    without = np.where(following == key, following + len(ROOM.cells), following)
    states = [f"{word} {cell}" for word in ("key", "taken") for cell in ROOM.cells]
    tables = np.concatenate([without, following + len(ROOM.cells)])
    return TabularMDP.deterministic(states, ACTIONS, tables, np.zeros(tables.shape))


@cache
def door_room() -> TabularMDP:
    """The third room as a table, for an agent that has the key; without it, nothing there pays."""
    following = ROOM.next_states(ends=(DOOR,))
    states = [f"door {cell}" for cell in ROOM.cells]
    return TabularMDP.deterministic(states, ACTIONS, following, np.where(following < 0, 1.0, 0.0))


def door_probabilities(policy: FloatArray | None = None) -> FloatArray:
    """The exact probability of reaching the door in time from each cell of the third room, [16].

    Args:
        policy: [S, A] or [PHASE_STEPS, S, A] on the states of `door_room`; None is the best one.
    """
    return start_values(door_room(), policy, horizon=PHASE_STEPS, discount=1.0)


def success_probabilities(
    key_policy: FloatArray | None = None, door_policy: FloatArray | None = None
) -> dict[str, float]:
    """The exact probability of success for each start cell of the first room, any start in the third.

    Args:
        key_policy: [S, A] or [PHASE_STEPS, S, A] on the states of `key_room`; None is the best one.
        door_policy: The same for `door_room`.
    """
    reached = door_probabilities(door_policy)[[ROOM.cells.index(cell) for cell in DOOR_STARTS]].mean()
    has_key = np.array([state.startswith("taken") for state in key_room().states])
    final = np.where(has_key, reached, 0.0)
    values = start_values(key_room(), key_policy, horizon=PHASE_STEPS, discount=1.0, final_values=final)
    return {cell: float(values[key_room().index(f"key {cell}")]) for cell in KEY_STARTS}


def random_success() -> float:
    """The exact success of the random agent, over all start cells: 0.0310."""
    return float(np.mean(list(success_probabilities(uniform_policy(key_room()), uniform_policy(door_room())).values())))


family = KeyToDoorFamily()
