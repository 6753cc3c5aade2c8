"""Passes of hidden states that were interrupted: when what is there is kept, and when it is not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from toys import ToyTokenizer, toy_dataset, toy_model, toy_rows

from offline_arl.datasets.segments import SegmentDataset
from offline_arl.errors import UsageError
from offline_arl.models import feature_writer
from offline_arl.models.config import FeatureConfig
from offline_arl.trainers.step_features import compute_features

CONFIG = FeatureConfig(tokens_per_batch=60)
BATCHES_BEFORE_THE_INTERRUPTION = 2


class _Told:
    """Keeps what is reported; interrupts the pass after some batches, where it is to."""

    def __init__(self, *, interrupt: bool = False) -> None:
        self.tokens: list[int] = []
        self._interrupt = interrupt

    def __call__(self, done: int, total: int) -> None:
        self.tokens.append(done)
        if self._interrupt and len(self.tokens) == BATCHES_BEFORE_THE_INTERRUPTION:
            raise KeyboardInterrupt


def _compute(dataset: SegmentDataset, output: Path, *, interrupt: bool = False, **settings: Any) -> list[int]:
    told, config = _Told(interrupt=interrupt), CONFIG.model_copy(update=settings)
    compute_features(toy_model(), ToyTokenizer(), dataset, output, config=config, report=told)
    return told.tokens


def _content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def dataset(tmp_path: Path) -> SegmentDataset:
    return toy_dataset(tmp_path / "data", toy_rows(10))


@pytest.fixture
def interrupted(dataset: SegmentDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(feature_writer, "SECONDS_BETWEEN_SAVES", 0.0)
    with pytest.raises(KeyboardInterrupt):
        _compute(dataset, tmp_path / "cache", interrupt=True)
    return tmp_path / ".cache.unfinished"


def test_an_interrupted_pass_goes_on(dataset: SegmentDataset, interrupted: Path, tmp_path: Path) -> None:
    told = _compute(dataset, tmp_path / "cache")
    assert told == _compute(dataset, tmp_path / "straight")[BATCHES_BEFORE_THE_INTERRUPTION:]
    assert _content(tmp_path / "cache") == _content(tmp_path / "straight")
    assert not interrupted.exists()


@pytest.mark.parametrize("change", ["data", "dtype", "layers", "tokens_per_batch"])
def test_it_begins_anew_where_the_pass_is_another(
    change: str, dataset: SegmentDataset, interrupted: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"dtype": "float16", "layers": (0,), "tokens_per_batch": 80}
    changed = {change: settings[change]} if change in settings else {}
    if change == "data":
        dataset = toy_dataset(tmp_path / "other", toy_rows(10, seed=1))
    told = _compute(dataset, tmp_path / "cache", **changed)
    assert told == _compute(dataset, tmp_path / "straight", **changed)
    assert _content(tmp_path / "cache") == _content(tmp_path / "straight")


@pytest.mark.parametrize("damaged", ["states.safetensors", "actions.safetensors", "journal.jsonl"])
def test_it_begins_anew_where_a_file_has_less_than_was_saved(
    damaged: str, dataset: SegmentDataset, interrupted: Path, tmp_path: Path
) -> None:
    os.truncate(interrupted / damaged, 0 if damaged == "journal.jsonl" else 600)
    told = _compute(dataset, tmp_path / "cache")
    assert told == _compute(dataset, tmp_path / "straight")
    assert _content(tmp_path / "cache") == _content(tmp_path / "straight")


def test_the_disk_is_asked_for_safety_every_few_seconds_only(dataset: SegmentDataset, tmp_path: Path) -> None:
    """A pass that is over sooner leaves nothing to go on from."""
    with pytest.raises(KeyboardInterrupt):
        _compute(dataset, tmp_path / "cache", interrupt=True)
    assert len((tmp_path / ".cache.unfinished" / "journal.jsonl").read_bytes().splitlines()) == 1
    assert _compute(dataset, tmp_path / "cache") == _compute(dataset, tmp_path / "straight")


def test_two_processes_do_not_write_one_cache(dataset: SegmentDataset, tmp_path: Path) -> None:
    def compute_once_more(done: int, total: int) -> None:
        _compute(dataset, tmp_path / "cache")

    with pytest.raises(UsageError, match="another process computes these features; wait for it or stop it"):
        compute_features(
            toy_model(), ToyTokenizer(), dataset, tmp_path / "cache", config=CONFIG, report=compute_once_more
        )
