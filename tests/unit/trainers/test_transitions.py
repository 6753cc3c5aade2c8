"""Transitions: joined with features, their returns, and what is held out."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from toys import toy_dataset, toy_row
from toys.transitions import features_of, transition_row

from offline_arl.datasets.segments import SegmentRow
from offline_arl.errors import DataError, UsageError
from offline_arl.trainers.transitions import AttemptReturns, TransitionTable, held_out_trajectories, join_transitions


def _joined(row: SegmentRow, tmp_path: Path, truncation: str = "bootstrap") -> dict[str, list[object]]:
    dataset = toy_dataset(tmp_path / "data", [row], kind="transitions")
    table = join_transitions(features_of([row]), dataset, truncation=truncation, discount=0.5)
    return {name: value.tolist() for name, value in vars(table).items()}


def test_the_next_state_of_a_step_is_the_state_of_the_next_step(tmp_path: Path) -> None:
    table = _joined(transition_row("a", 3, ending="terminated"), tmp_path)
    assert table["state_rows"] == [0, 1, 2]
    assert table["next_rows"][:2] == [1, 2]
    assert table["rewards"] == [1.0, 2.0, 3.0]
    assert table["terminated"] == [False, False, True]
    assert table["has_target"] == [True, True, True]


def test_a_truncated_step_bootstraps_from_the_state_after_it(tmp_path: Path) -> None:
    table = _joined(transition_row("a", 2, ending="truncated", final_state=True), tmp_path)
    assert table["next_rows"] == [1, 2]
    assert table["terminated"] == [False, False]
    assert table["has_target"] == [True, True]


def test_a_truncated_step_without_a_next_state_has_no_target(tmp_path: Path) -> None:
    table = _joined(transition_row("a", 2, ending="truncated"), tmp_path)
    assert table["terminated"] == [False, False]
    assert table["has_target"] == [True, False]


def test_truncation_can_count_as_the_end(tmp_path: Path) -> None:
    table = _joined(transition_row("a", 2, ending="truncated", final_state=True), tmp_path, truncation="terminal")
    assert table["terminated"] == [False, True]
    assert table["has_target"] == [True, True]


def test_a_step_without_features_is_an_error(tmp_path: Path) -> None:
    row = transition_row("a", 2, ending="terminated")
    dataset = toy_dataset(tmp_path / "data", [row], kind="transitions")
    with pytest.raises(DataError, match="trajectory a: step 0 has no features"):
        join_transitions(
            features_of([dataclasses.replace(row, trajectory_id="b")]), dataset, truncation="bootstrap", discount=0.5
        )


def test_a_cloning_dataset_has_no_transitions(tmp_path: Path) -> None:
    dataset = toy_dataset(tmp_path / "data", [toy_row("a", np.random.default_rng(0))])
    with pytest.raises(UsageError, match="kind bc, this needs transitions"):
        join_transitions(features_of([]), dataset, truncation="bootstrap", discount=0.5)


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_reward_that_is_no_number_is_refused(reward: float, tmp_path: Path) -> None:
    row = transition_row("a", 2, ending="terminated", rewards=[1.0, reward])
    with pytest.raises(DataError, match=r"trajectory a: the reward of step 1 is (nan|inf); leave"):
        _joined(row, tmp_path)


def test_logged_returns_are_discounted_sums(tmp_path: Path) -> None:
    """At 0.5: 3, then 2 + 0.5 * 3 = 3.5, then 1 + 0.5 * 3.5 = 2.75."""
    table = _joined(transition_row("a", 3, ending="terminated"), tmp_path)
    assert table["logged_returns"] == [2.75, 3.5, 3.0]


def test_an_attempt_of_one_step_returns_its_reward(tmp_path: Path) -> None:
    table = _joined(transition_row("a", 1, ending="terminated"), tmp_path)
    assert table["logged_returns"] == [1.0]


@pytest.mark.parametrize("final_state", [False, True])
def test_what_an_attempt_that_was_cut_off_would_have_earned_is_not_known(final_state: bool, tmp_path: Path) -> None:
    table = _joined(transition_row("a", 2, ending="truncated", final_state=final_state), tmp_path)
    assert table["logged_returns"] == [float("-inf")] * 2


def test_a_cut_that_counts_as_the_end_has_a_return(tmp_path: Path) -> None:
    table = _joined(transition_row("a", 2, ending="truncated", final_state=True), tmp_path, truncation="terminal")
    assert table["logged_returns"] == [2.0, 2.0]


def _table(rows: list[SegmentRow], tmp_path: Path) -> TransitionTable:
    dataset = toy_dataset(tmp_path / "data", rows, kind="transitions")
    return join_transitions(features_of(rows), dataset, truncation="bootstrap", discount=0.5)


def test_returns_bootstrap_from_the_state_after_a_cut(tmp_path: Path) -> None:
    """Monte-Carlo at 0.5 with V = 8 after the cut: 2 + 4 = 6 and 1 + 3 = 4; the terminated attempt does not see it."""
    rows = [
        transition_row("a", 2, ending="truncated", final_state=True),
        transition_row("b", 2, ending="terminated"),
    ]
    returns = AttemptReturns(_table(rows, tmp_path)).of(
        torch.zeros(4), torch.full((4,), 8.0), discount=0.5, trace_decay=1.0
    )
    assert returns.tolist() == [4.0, 6.0, 2.0, 2.0]


def test_lambda_returns_mix_values_and_returns(tmp_path: Path) -> None:
    """V = 4 of every state: 2 at the end; 1 + 0.5 * (0.75 * 4 + 0.25 * 2) = 2.75."""
    table = _table([transition_row("a", 2, ending="terminated")], tmp_path)
    returns = AttemptReturns(table).of(torch.full((2,), 4.0), torch.full((2,), 4.0), discount=0.5, trace_decay=0.25)
    assert returns.tolist() == [2.75, 2.0]


def test_a_step_that_cannot_be_bootstrapped_hands_on_the_value_of_its_state(tmp_path: Path) -> None:
    """The second step was cut off and nothing is known of what followed; the first one takes V = 8 of the state in
    which it was taken: 1 + 0.5 * 8 = 5.
    """
    table = _table([transition_row("a", 2, ending="truncated")], tmp_path)
    returns = AttemptReturns(table).of(torch.full((2,), 8.0), torch.full((2,), 8.0), discount=0.5, trace_decay=1.0)
    assert returns.tolist() == [5.0, 0.0]


def test_returns_do_not_cross_a_step_that_the_dataset_left_out(tmp_path: Path) -> None:
    """Steps 0, 1 and 3 of 4: step 1 has no next state, so step 0 ends with V of the state of step 1."""
    row = transition_row("a", 4, ending="terminated")
    kept = [0, 1, 3]
    row = dataclasses.replace(
        row,
        **{name: getattr(row, name)[kept] for name in ("steps", "rewards", "terminated", "truncated")},
    )
    dataset = toy_dataset(tmp_path / "data", [row], kind="transitions")
    features = features_of([row])
    there = torch.tensor([0, 1, 3])
    features = dataclasses.replace(
        features,
        trajectory_ids=["a"] * 3,
        steps=features.steps[there],
        has_action=features.has_action[there],
        states=features.states[there],
        actions=features.actions[there],
    )
    table = join_transitions(features, dataset, truncation="bootstrap", discount=0.5)
    assert table.has_target.tolist() == [True, False, True]
    returns = AttemptReturns(table).of(torch.full((3,), 8.0), torch.full((3,), 8.0), discount=0.5, trace_decay=1.0)
    assert returns.tolist() == [1 + 0.5 * 8, 0.0, 4.0]


def test_whole_tasks_are_held_out(tmp_path: Path) -> None:
    rows = [
        transition_row(f"{task}-{attempt}", 2, ending="terminated", task=f"task {task}")
        for task in range(10)
        for attempt in range(3)
    ]
    dataset = toy_dataset(tmp_path / "data", rows, kind="transitions")
    held_out = held_out_trajectories(dataset, 0.3, generator=torch.Generator().manual_seed(0))
    assert len(held_out) == 9
    assert len({name.split("-")[0] for name in held_out}) == 3
    other = held_out_trajectories(dataset, 0.3, generator=torch.Generator().manual_seed(1))
    assert other != held_out
