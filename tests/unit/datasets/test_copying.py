"""Exercises in copying: what is trained is known from what stands before it, and nothing else is trained."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from offline_arl.datasets.copying import CopyingConfig, build_copying, identifier_tokens
from offline_arl.datasets.segments import SegmentDataset
from offline_arl.errors import DataError

TOKENS = np.arange(100, 126)
WORDS = np.arange(200, 300)


def exercises(folder: Path, *, seed: int = 0, rows: int = 200, **settings: object) -> SegmentDataset:
    config = CopyingConfig.model_validate({"rows": rows, **settings})
    build_copying(TOKENS, WORDS, folder, fingerprint="f", config=config, seed=seed)
    return SegmentDataset.load(folder)


def test_a_trained_token_followed_the_one_before_it_already(tmp_path: Path) -> None:
    """[a b c] [d e] | [d e] [a b c]: e, b and c are trained, each after what it followed in the first part."""
    for row in exercises(tmp_path / "data"):
        half = len(row) // 2
        first, second = row.token_ids[:half], row.token_ids[half:]
        assert len(set(first)) == half
        assert sorted(first) == sorted(second)
        follower = dict(pairwise(first))
        trained = np.flatnonzero(row.action_mask)
        assert trained.min() > half
        assert all(row.token_ids[at] == follower[row.token_ids[at - 1]] for at in trained)
        assert (row.step_index == np.where(row.action_mask, 0, -1)).all()


def test_what_is_not_trained_of_the_second_part_begins_a_line(tmp_path: Path) -> None:
    """As many tokens are left out as there are lines, and lines have 2 to 4 tokens: 2 or 3 of 4 to 12."""
    data = exercises(tmp_path / "data")
    left_out = [len(row) // 2 - int(row.action_mask.sum()) for row in data]
    assert set(left_out) == {2, 3}
    lengths = {len(row) // 2 for row in data}
    assert (min(lengths), max(lengths)) == (4, 12)


def test_lines_come_back_in_any_order(tmp_path: Path) -> None:
    """Of two lines in a random order the first comes first about half of the time."""
    two = [row for row in exercises(tmp_path / "data") if len(row) // 2 - int(row.action_mask.sum()) == 2]
    same = np.mean([row.token_ids[0] == row.token_ids[len(row) // 2] for row in two])
    assert 0.35 < same < 0.65


def test_a_fifth_is_made_of_other_tokens(tmp_path: Path) -> None:
    """20 of 100 on average, with a standard deviation of 4; no exercise is of both kinds."""
    of_words = [set(row.token_ids) <= set(WORDS) for row in exercises(tmp_path / "data", rows=100)]
    of_identifiers = [set(row.token_ids) <= set(TOKENS) for row in exercises(tmp_path / "data", rows=100)]
    assert 8 <= sum(of_words) <= 32
    assert sum(of_words) + sum(of_identifiers) == 100


def test_gaps_are_not_trained_and_hold_nothing_of_the_lines(tmp_path: Path) -> None:
    """Between the lines are 0 to 30 words; what is left without them is an exercise without gaps."""
    distances, gaps = [], []
    for row in exercises(tmp_path / "data", identifier_fraction=1.0, gap_tokens=30):
        of_lines = np.isin(row.token_ids, TOKENS)
        assert (of_lines | np.isin(row.token_ids, WORDS)).all()
        assert not row.action_mask[~of_lines].any()
        lines = row.token_ids[of_lines]
        half = len(lines) // 2
        assert sorted(lines[:half]) == sorted(lines[half:])
        follower = dict(pairwise(lines[:half]))
        for at in np.flatnonzero(row.action_mask):
            assert of_lines[at - 1]  # a line is not interrupted
            assert row.token_ids[at] == follower[row.token_ids[at - 1]]
            distances.append(at - np.flatnonzero(row.token_ids == row.token_ids[at])[0])
        gaps += [len(word) for word in "".join("x" if line else "." for line in of_lines).split("x") if word]
    assert 25 < max(gaps) <= 30
    assert np.quantile(distances, 0.1) < 10
    assert max(distances) > 60


def test_the_same_seed_gives_the_same_exercises(tmp_path: Path) -> None:
    first, again, other = (exercises(tmp_path / str(index), seed=seed, rows=5) for index, seed in enumerate((3, 3, 4)))
    assert first.manifest.content_sha256 == again.manifest.content_sha256 != other.manifest.content_sha256
    assert first.manifest.counts["rows"] == 5


def test_too_few_tokens_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="up to 12 different pieces of identifiers; the tokenizer has 11"):
        build_copying(TOKENS[:11], WORDS, tmp_path / "data", fingerprint="f", config=CopyingConfig(), seed=0)


def test_gaps_need_a_token_that_no_line_holds(tmp_path: Path) -> None:
    config = CopyingConfig(rows=5, gap_tokens=4, identifier_fraction=1)
    with pytest.raises(DataError, match="up to 12 different tokens of 12 words, which leaves none"):
        build_copying(TOKENS[:12], TOKENS[:12], tmp_path / "data", fingerprint="f", config=config, seed=0)
    manifest = build_copying(TOKENS[:12], TOKENS[:13], tmp_path / "data", fingerprint="f", config=config, seed=0)
    assert manifest.counts["rows"] == 5


@pytest.mark.parametrize(
    "change", [{"lines": (1, 3)}, {"lines": (3, 2)}, {"line_tokens": (1, 4)}, {"rows": 0}, {"gap_tokens": -1}]
)
def test_ranges_that_make_no_exercise_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        CopyingConfig.model_validate(change)


def test_identifiers_are_letters_and_pairs_of_digits() -> None:
    vocabulary = {"Q": 9, "0": 2, "41": 5, "123": 1, "ab": 3, "z": 4, "\u0664": 6}
    assert identifier_tokens(vocabulary).tolist() == [2, 5, 9]
