"""Token-level decisions: which state, reward and next state each action token gets, across segments and endings."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from toys import toy_dataset, toy_row

from offline_arl.datasets.segments import SegmentRow
from offline_arl.datasets.token_transitions import NO_STATE, TokenTransitions, token_transitions
from offline_arl.errors import DataError, UsageError
from offline_arl.objectives import step_discounts


def segment(
    tokens: list[int],
    step_index: list[int],
    rewards: list[float],
    *,
    name: str = "a",
    ending: str | None = None,
    number: int = 0,
    final_state: bool = False,
) -> SegmentRow:
    """A segment whose steps are those of `step_index`; `ending` is that of its last step."""
    index = np.array(step_index, dtype=np.int32)
    steps = np.unique(index[index >= 0]).astype(np.int32)
    last = np.arange(len(steps)) == len(steps) - 1
    return SegmentRow(
        name, f"task of {name}", None, True, number, np.array(tokens, dtype=np.int32), index >= 0, index,
        n_steps=int(index.max()) + 1, steps=steps, rewards=np.array(rewards, dtype=np.float32),
        terminated=last & (ending == "terminated"), truncated=last & (ending == "truncated"), final_state=final_state,
    )  # fmt: skip


def laid_out(rows: list[SegmentRow], folder: Path, **changes: object) -> TokenTransitions:
    settings = {"discount": 0.5, "discount_unit": "step", "truncation": "bootstrap", **changes}
    return token_transitions(toy_dataset(folder / "data", rows, kind="transitions"), **settings)


def places(table: TokenTransitions, states: np.ndarray) -> list[tuple[int, int] | None]:
    """(row, position) of states."""
    return [
        None if state == NO_STATE else (int(table.state_rows[state]), int(table.state_positions[state]))
        for state in states
    ]


def test_a_token_is_decided_in_the_state_before_it_and_leads_to_the_state_before_the_next_action_token(
    tmp_path: Path,
) -> None:
    """Observation, two tokens, observation of two, one token that ends the task."""
    table = laid_out([segment([5, 6, 7, 8, 9, 4], [-1, 0, 0, -1, -1, 1], [1.0, 2.0], ending="terminated")], tmp_path)
    assert table.token_ids.tolist() == [6, 7, 4]
    assert places(table, table.states) == [(0, 0), (0, 1), (0, 4)]
    assert places(table, table.next_states) == [(0, 1), (0, 4), None]
    assert table.rewards.tolist() == [0.0, 1.0, 2.0]
    assert table.terminated.tolist() == [False, False, True]
    assert table.discounts.tolist() == [1.0, 0.5, 0.5]
    assert table.has_target.all()


def test_a_constant_discount_is_one_a_token(tmp_path: Path) -> None:
    row = segment([5, 6, 7, 4], [-1, 0, 0, 0], [1.0], ending="terminated")
    assert laid_out([row], tmp_path, discount_unit="token").discounts.tolist() == [0.5, 0.5, 0.5]


def test_the_next_state_may_lie_in_another_segment(tmp_path: Path) -> None:
    """One segment a step, as of a template that rewrites earlier turns; another trajectory follows."""
    rows = [
        segment([5, 6], [-1, 0], [1.0]),
        segment([5, 8, 9, 7], [-1, -1, -1, 1], [2.0], ending="terminated", number=1),
        segment([3, 2], [-1, 0], [4.0], name="b", ending="terminated"),
    ]
    table = laid_out(rows, tmp_path)
    assert places(table, table.next_states) == [(1, 2), None, None]
    assert table.rewards.tolist() == [1.0, 2.0, 4.0]
    assert table.trajectories.tolist() == [0, 0, 1]


def test_a_step_that_is_missing_leaves_its_predecessor_without_a_target(tmp_path: Path) -> None:
    """Step 1 was too long for the dataset: what follows step 0 is not the state of step 2."""
    rows = [segment([5, 6], [-1, 0], [1.0]), segment([5, 7], [-1, 2], [2.0], ending="terminated", number=1)]
    table = laid_out(rows, tmp_path)
    assert places(table, table.next_states) == [None, None]
    assert table.has_target.tolist() == [False, True]


@pytest.mark.parametrize(
    ("final_state", "truncation", "expected"),
    [
        (True, "bootstrap", (True, False, (0, 3))),
        (False, "bootstrap", (False, False, None)),
        (True, "terminal", (True, True, None)),
        (False, "terminal", (True, True, None)),
    ],
)
def test_a_truncated_attempt_goes_on_from_its_final_state_or_counts_as_over(
    final_state: bool, truncation: str, expected: tuple[bool, bool, object], tmp_path: Path
) -> None:
    row = segment([5, 6, 7, 8], [-1, 0, -1, -1], [1.0], ending="truncated", final_state=final_state)
    table = laid_out([row], tmp_path, truncation=truncation)
    assert (bool(table.has_target[0]), bool(table.terminated[0]), *places(table, table.next_states)) == expected
    assert len(table.state_rows) == 1 + final_state


def test_a_final_state_may_be_a_segment_of_its_own(tmp_path: Path) -> None:
    alone = segment([5, 6, 9], [-1, -1, -1], [], number=1, final_state=True)
    rows = [segment([5, 6], [-1, 0], [1.0], ending="truncated"), dataclasses.replace(alone, n_steps=1)]
    table = laid_out(rows, tmp_path)
    assert places(table, table.next_states) == [(1, 2)]
    assert table.decision_rows.tolist() == [0]


def test_attempts_do_not_bootstrap_from_one_another(tmp_path: Path) -> None:
    """A truncated attempt without a final state, then another of the same task."""
    rows = [
        segment([5, 6], [-1, 0], [1.0], ending="truncated"),
        segment([5, 7], [-1, 0], [1.0], name="b", ending="terminated"),
    ]
    assert places(laid_out(rows, tmp_path), laid_out(rows, tmp_path).next_states) == [None, None]


def test_discounts_are_those_of_the_objectives(tmp_path: Path) -> None:
    """`step_discounts` of [1, T] rows, where a step's last token is known by the next action token."""
    rows = []
    for seed in range(8):
        row = toy_row(f"t{seed}", np.random.default_rng(seed), steps=3)
        rows.append(segment(row.token_ids.tolist(), row.step_index.tolist(), [0.0] * 3, name=row.trajectory_id))
    table = laid_out(rows, tmp_path, discount=0.9)
    expected = [
        step_discounts(torch.tensor(row.step_index[None].astype(np.int64)), torch.tensor(row.action_mask[None]),
                       discount=0.9)[0][torch.tensor(row.action_mask)].tolist()
        for row in rows
    ]  # fmt: skip
    assert table.discounts.tolist() == [value for row in expected for value in row]


def test_an_action_without_a_state_before_it_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="trajectory a: a segment starts with an action"):
        laid_out([segment([6, 5], [0, -1], [1.0], ending="terminated")], tmp_path)


def test_a_cloning_dataset_has_no_transitions(tmp_path: Path) -> None:
    dataset = toy_dataset(tmp_path / "data", [toy_row("a", np.random.default_rng(0))])
    with pytest.raises(UsageError, match="kind bc, this needs transitions"):
        token_transitions(dataset, discount=0.9, discount_unit="step", truncation="bootstrap")
