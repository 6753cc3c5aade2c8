"""The crossing: what the logs hold, what imitation gets, and that the logged parts together reach the goal."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest

from offline_arl.environments.probes.grid import ACTIONS
from offline_arl.environments.probes.stitching import (
    CHEST,
    EAST,
    ENDS,
    GOAL,
    MAP,
    PIT,
    WEST,
    Stitching,
    best_logged_return,
    expected_returns,
    family,
    mdp,
    route,
)
from offline_arl.environments.protocol import Task
from offline_arl.trajectories.schema import text_message

RECORDS = list(family.records(600, seed=0))
NORTH = {"E1", "E2"}


def cells(record: dict[str, Any]) -> list[str]:
    return [message["content"] for message in record["messages"] if message["role"] == "user"]


def actions(record: dict[str, Any]) -> list[str]:
    return [message["content"] for message in record["messages"] if message["role"] == "assistant"]


def counts(records: list[dict[str, Any]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """[S, A] how often each action was taken in each cell."""
    table = np.zeros((len(mdp().states), len(ACTIONS)))
    for record in records:
        for cell, action in zip(cells(record), actions(record), strict=True):
            table[mdp().index(cell), ACTIONS.index(action)] += 1
    return table


def policy_of(table: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The policy that imitates counted actions; at random where nothing was counted."""
    filled = np.where(table.sum(axis=1, keepdims=True) > 0, table, 1.0)
    return np.asarray(filled / filled.sum(axis=1, keepdims=True))


def test_no_logged_attempt_from_the_west_turns_to_the_goal() -> None:
    by_side = defaultdict(list)
    for record in RECORDS:
        by_side[record["task_type"]].append(record)
    assert {record["stop_reason"] for record in by_side["west"]} == {"chest", "pit"}
    assert {record["stop_reason"] for record in by_side["east"]} == {"goal", "pit"}
    assert not any(NORTH & set(cells(record)) for record in by_side["west"])
    assert any("E3" in cells(record) for record in by_side["west"])  # but it comes past the crossing
    shares = Counter(record["stop_reason"] for record in RECORDS)
    assert shares["goal"] / 600 == pytest.approx(0.25, abs=0.06)


def test_the_best_logged_return_of_each_start_is_in_the_logs() -> None:
    best: dict[str, float] = defaultdict(float)
    for record in RECORDS:
        best[cells(record)[0]] = max(best[cells(record)[0]], record["outcome"]["score"])
    assert best == {cell: best_logged_return(cell) for cell in (*WEST, *EAST)}
    assert best == {**dict.fromkeys(WEST, 0.5), **dict.fromkeys(EAST, 1.0)}


def test_the_best_policy_on_logged_steps_alone_reaches_the_goal_from_everywhere() -> None:
    supported = counts(RECORDS) > 0
    values = np.zeros(len(mdp().states))
    for _ in range(20):
        table = mdp().rewards + mdp().transitions @ values
        values = np.where(supported, table, -np.inf).max(axis=1)
    assert {cell: values[mdp().index(cell)] for cell in (*WEST, *EAST)} == dict.fromkeys((*WEST, *EAST), 1.0)
    assert expected_returns() == dict.fromkeys((*WEST, *EAST), 1.0)


def test_imitation_stays_below_the_goal() -> None:
    cloned = success(policy_of(counts(RECORDS)))
    assert np.mean(list(cloned.values())) < 0.4
    assert max(cloned[cell] for cell in WEST) < 0.3
    filtered = success(policy_of(counts([record for record in RECORDS if record["outcome"]["success"]])))
    assert min(filtered[cell] for cell in EAST) > 0.99
    assert np.mean(list(filtered.values())) < 0.6  # at random in the west, which it has never seen


def test_conditioning_on_the_best_logged_return_gives_just_that() -> None:
    for cell in (*WEST, *EAST):
        wanted = best_logged_return(cell)
        policy = policy_of(counts([record for record in RECORDS if record["outcome"]["score"] == wanted]))
        assert expected_returns(policy)[cell] == pytest.approx(wanted, abs=0.01)
        assert success(policy)[cell] == pytest.approx(float(wanted == 1.0), abs=0.01)


def success(policy: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, float]:
    """Probability of the goal: of a return of 1, simulated as a distribution over cells."""
    reached = {}
    index = mdp().index("E1")
    for cell in (*WEST, *EAST):
        where = np.eye(len(mdp().states))[mdp().index(cell)]
        total = 0.0
        for _ in range(20):
            total += where[index] * policy[index, ACTIONS.index("up")]
            where = np.einsum("s,sa,sat->t", where, policy, mdp().transitions)
        reached[cell] = total
    return reached


@pytest.mark.parametrize("place", [GOAL, CHEST, PIT])
def test_a_route_leads_where_it_should(place: str) -> None:
    for cell in (*WEST, *EAST):
        environment = Stitching()
        environment.reset(Task("t", "", {"start": cell}))
        results = [environment.step(text_message("assistant", action)) for action in route(cell, place)]
        assert [result.terminated for result in results[:-1]] == [False] * (len(results) - 1)
        assert (results[-1].stop_reason, results[-1].reward) == ENDS[place]


def test_walls_and_illegal_moves_waste_steps() -> None:
    environment = Stitching(max_steps=2)
    environment.reset(Task("t", "", {"start": "H3"}))
    bumped = environment.step(text_message("assistant", "right"))
    assert (bumped.messages[0].text, bumped.reward, bumped.info) == ("H3", 0.0, {"invalid_actions": 0})
    last = environment.step(text_message("assistant", "north"))
    assert (last.info, last.reward, last.terminated, last.truncated) == ({"invalid_actions": 1}, 0.0, False, True)
    assert MAP.moved("E3", "up") == "E2"


def test_the_bridge_has_no_rails() -> None:
    for cell in WEST:
        for action in ("up", "down"):
            environment = Stitching()
            environment.reset(Task("t", "", {"start": cell}))
            result = environment.step(text_message("assistant", action))
            assert (result.stop_reason, result.reward, result.terminated) == ("pit", 0.0, True)
