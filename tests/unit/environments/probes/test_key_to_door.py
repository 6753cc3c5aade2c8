"""Key to door: the phases, what pays, and how often a random agent succeeds."""

from __future__ import annotations

import numpy as np
import pytest

from offline_arl.environments.probes.dynamic_programming import uniform_policy
from offline_arl.environments.probes.key_to_door import (
    DOOR_STARTS,
    KEY_STARTS,
    KeyToDoor,
    door_room,
    family,
    key_room,
    random_success,
    success_probabilities,
)
from offline_arl.environments.protocol import StepResult, Task
from offline_arl.trajectories.schema import text_message

TASK = Task("t", "key_to_door", {"starts": ["B0", "C2", "D2"]})


def run(*actions: str) -> tuple[list[str], list[StepResult]]:
    """The states and the results of a sequence of actions."""
    environment = KeyToDoor()
    states = [environment.reset(TASK).messages[1].text]
    results = []
    for action in actions:
        results.append(environment.step(text_message("assistant", action)))
        states += [message.text for message in results[-1].messages]
    return states, results


def test_a_key_that_was_taken_opens_the_door() -> None:
    states, results = run("left", *["right"] * 7, *["up"] * 8, "down")
    assert states == [
        *("key B0", "taken A0", "taken B0", "taken C0", *["taken D0"] * 4),
        *("hall C2", "hall C1", *["hall C0"] * 6),
        "door D2",
    ]
    assert [result.reward for result in results] == [0.0] * 16 + [1.0]
    assert (results[-1].terminated, results[-1].truncated, results[-1].stop_reason) == (True, False, "door_opened")


def test_the_door_is_locked_for_an_agent_without_the_key() -> None:
    _, results = run(*["right"] * 16, "down")
    assert (results[-1].reward, results[-1].terminated, results[-1].stop_reason) == (0.0, True, "door_locked")


def test_the_end_of_the_third_phase_truncates() -> None:
    states, results = run("left", *["up"] * 23)
    assert len(results) == 24
    assert (results[-1].terminated, results[-1].truncated, results[-1].stop_reason) == (False, True, "max_steps")
    assert states[-1] == "door D0"


def test_an_illegal_move_wastes_a_step_and_costs_nothing() -> None:
    states, results = run("open", *["right"] * 7, "up")
    assert states[1] == "key B0"
    assert (results[0].reward, results[0].info) == (0.0, {"invalid_actions": 1})
    assert states[8] == "hall C2"  # the phase ended at the eighth step all the same


def test_the_outcome_says_whether_the_key_was_taken() -> None:
    environment = KeyToDoor()
    environment.reset(TASK)
    environment.step(text_message("assistant", "left"))
    assert environment.outcome().components == {"return": 0.0, "key": 1.0}
    assert environment.outcome().success is False


def test_a_random_agent_succeeds_in_3_1_percent_and_the_best_always() -> None:
    assert random_success() == pytest.approx(0.031, abs=5e-4)
    assert success_probabilities() == dict.fromkeys(KEY_STARTS, pytest.approx(1.0))
    key_only = success_probabilities(None, uniform_policy(door_room()))
    assert np.mean(list(key_only.values())) == pytest.approx(np.sqrt(random_success()))  # the rooms are alike


def test_the_exact_probability_is_the_share_of_all_action_sequences() -> None:
    """From B0 the key is one step left: all 4 ** 8 sequences of the first phase, played at once."""
    columns, rows = np.full(4**8, 1), np.zeros(4**8, dtype=np.int64)
    taken = np.zeros(4**8, dtype=np.bool_)
    codes = np.arange(4**8)
    for _ in range(8):
        action, codes = codes % 4, codes // 4
        columns = np.clip(columns + (action == 1) - (action == 0), 0, 3)
        rows = np.clip(rows + (action == 3) - (action == 2), 0, 3)
        taken |= (columns == 0) & (rows == 0)
    assert success_probabilities(uniform_policy(key_room()))["B0"] == pytest.approx(taken.mean())


def test_the_logs_take_the_key_as_often_as_they_should() -> None:
    records = list(family.records(1500, seed=0))
    keys = np.mean([record["outcome"]["components"]["key"] for record in records])
    successes = np.mean([record["outcome"]["success"] for record in records])
    assert keys == pytest.approx(0.1761, abs=0.03)  # three standard errors
    assert successes == pytest.approx(0.031, abs=0.0135)


@pytest.mark.slow
def test_twenty_thousand_random_episodes() -> None:
    successes = np.mean([record["outcome"]["success"] for record in family.records(20_000, seed=0)])
    assert successes == pytest.approx(0.031, abs=0.006)


def test_splits_share_no_start_and_cover_all() -> None:
    found = {split: {item.label for item in family.starts(split, seed=0)} for split in ("train", "validation", "test")}
    assert {split: len(labels) for split, labels in found.items()} == {"train": 2216, "validation": 699, "test": 685}
    assert len(set().union(*found.values())) == len(KEY_STARTS) * 16 * len(DOOR_STARTS) == 3600
