"""Which actions the logs hold for one and the same state, by the tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from toys import toy_dataset
from toys.transitions import features_of, transition_row

from offline_arl.datasets.segments import SegmentRow
from offline_arl.trainers.candidates import Candidates, StateActions

# A state is a prefix: after [5], 7 or 8; after [5, 7, 6], 9.
TOKENS = {
    "a": ([5, 7, 6, 9], [-1, 0, -1, 1]),
    "b": ([5, 8, 6, 9], [-1, 0, -1, 1]),  # [5, 8, 6] is another state than [5, 7, 6]
    "c": ([5, 7, 6, 4], [-1, 0, -1, 1]),
    "d": ([5, 7, 6, 9], [-1, 0, -1, 1]),
    "e": ([5, 7, 7, 6], [-1, 0, 0, -1]),  # the action goes on: 7 7 is not 7
}


def _row(name: str) -> SegmentRow:
    tokens, steps = TOKENS[name]
    index = np.array(steps, dtype=np.int32)
    row = transition_row(name, int(index.max()) + 1, ending="terminated")
    return replace(row, token_ids=np.array(tokens, dtype=np.int32), action_mask=index >= 0, step_index=index)


def _names(tmp_path: Path, rows: list[SegmentRow]) -> tuple[StateActions, dict[tuple[str, int], int]]:
    features = features_of(rows)
    dataset = toy_dataset(tmp_path / "data", rows, kind="transitions")
    return StateActions.of((features, dataset)), features.row_of()


def test_equal_tokens_make_equal_states_and_actions(tmp_path: Path) -> None:
    names, at = _names(tmp_path, [_row(name) for name in TOKENS])
    states = {key: int(names.states[row]) for key, row in at.items()}
    actions = {key: int(names.actions[row]) for key, row in at.items()}
    assert len({states[name, 0] for name in TOKENS}) == 1
    assert states["a", 1] == states["c", 1] == states["d", 1] != states["b", 1]
    assert actions["a", 0] == actions["c", 0] == actions["d", 0]
    assert len({actions["a", 0], actions["b", 0], actions["e", 0]}) == 3
    assert actions["a", 1] == actions["d", 1] != actions["c", 1]
    assert actions["b", 1] != actions["a", 1]  # the same message in another state


def test_the_state_after_a_cut_is_the_state_in_which_others_acted(tmp_path: Path) -> None:
    cut = replace(
        _row("a"),
        trajectory_id="cut",
        token_ids=np.array([5, 7, 6], dtype=np.int32),
        step_index=np.array([-1, 0, -1], dtype=np.int32),
        action_mask=np.array([False, True, False]),
        n_steps=1,
        steps=np.array([0], dtype=np.int32),
        rewards=np.zeros(1, dtype=np.float32),
        terminated=np.array([False]),
        truncated=np.array([True]),
        final_state=True,
    )
    names, at = _names(tmp_path, [_row("a"), cut])
    assert names.states[at["cut", 1]] == names.states[at["a", 1]]
    assert names.actions[at["cut", 1]] == -1
    candidates = Candidates.of(names, torch.tensor([at["a", 0], at["a", 1]]), max_candidates=4)
    rows, exists, own = candidates.at(torch.tensor([at["cut", 1]]))
    assert rows[exists].tolist() == [at["a", 1]]
    assert not own.any()


def test_candidates_are_the_different_actions_most_frequent_first(tmp_path: Path) -> None:
    names, at = _names(tmp_path, [_row(name) for name in TOKENS])
    candidates = Candidates.of(names, torch.arange(len(names.states)), max_candidates=8)
    rows, exists, own = candidates.at(torch.tensor([at["b", 0], at["d", 1], at["b", 1]]))
    # After [5]: 7 three times, then 8 and 7 7 once each; a row's own action stands for itself.
    assert rows[0][exists[0]].tolist() == [at["a", 0], at["b", 0], at["e", 0]]
    assert rows[1][exists[1]].tolist() == [at["d", 1], at["c", 1]]
    assert rows[2][exists[2]].tolist() == [at["b", 1]]
    assert rows[own].tolist() == [at["b", 0], at["d", 1], at["b", 1]]
    # Two of the three states have more than one action.
    assert abs(candidates.alternatives() - 2 / 3) < 1e-6


def test_an_action_beyond_the_cap_takes_the_last_place(tmp_path: Path) -> None:
    names, at = _names(tmp_path, [_row(name) for name in TOKENS])
    candidates = Candidates.of(names, torch.arange(len(names.states)), max_candidates=2)
    rows, exists, own = candidates.at(torch.tensor([at["e", 0]]))
    assert rows[exists].tolist() == [at["a", 0], at["e", 0]]
    assert own.tolist() == [[False, True]]


def test_rows_that_are_held_out_propose_nothing_but_have_their_own_action(tmp_path: Path) -> None:
    names, at = _names(tmp_path, [_row(name) for name in TOKENS])
    candidates = Candidates.of(names, torch.tensor([at["a", 0], at["e", 0]]), max_candidates=3)
    rows, exists, own = candidates.at(torch.tensor([at["a", 0], at["b", 0], at["b", 1]]))
    assert rows[0][exists[0]].tolist() == [at["a", 0], at["e", 0]]
    assert rows[1][exists[1]].tolist() == [at["a", 0], at["b", 0]]  # of a list that is full it takes the last place
    assert rows[2][exists[2]].tolist() == [at["b", 1]]
    assert rows[own].tolist() == [at["a", 0], at["b", 0], at["b", 1]]


def test_proposed_actions_come_after_all_that_were_logged(tmp_path: Path) -> None:
    """Proposed after [5]: 8, which was logged, and twice 3, which was not; rows of a second table follow the first."""
    rows = [_row(name) for name in ("a", "b")]
    proposals = []
    for number, action in enumerate((8, 3, 3)):
        row = replace(_row("a"), trajectory_id=f"p{number}", token_ids=np.array([5, action], dtype=np.int32))
        index = np.array([-1, 0], dtype=np.int32)
        proposals.append(replace(row, step_index=index, action_mask=index >= 0))
    features, proposed = features_of(rows), features_of([replace(row, n_steps=1) for row in proposals])
    names = StateActions.of(
        (features, toy_dataset(tmp_path / "data", rows, kind="transitions")),
        (proposed, toy_dataset(tmp_path / "proposals", proposals)),
    )
    logged = torch.arange(len(features))
    candidates = Candidates.of(names, logged, max_candidates=8, proposed=len(features) + torch.arange(3))
    at = features.row_of()
    found, exists, own = candidates.at(torch.tensor([at["a", 0]]))
    assert found[exists].tolist() == [at["a", 0], at["b", 0], len(features) + 1]
    assert found[own].tolist() == [at["a", 0]]
    capped = Candidates.of(names, logged, max_candidates=2, proposed=len(features) + torch.arange(3))
    assert capped.at(torch.tensor([at["a", 0]]))[0].tolist() == [[at["a", 0], at["b", 0]]]
