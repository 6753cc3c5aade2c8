"""Experiment trackers, for real: what TensorBoard and trackio hold after a run, and after an interrupted one."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import pytest
from toys import ToyTokenizer, toy_dataset, toy_model, toy_rows

from offline_arl.datasets.segments import SegmentDataset
from offline_arl.errors import MissingDependencyError
from offline_arl.trainers.config import WeightedBCConfig
from offline_arl.trainers.weighted_bc import train_weighted_bc

NAMES = {
    "loss", "learning_rate", "grad_norm", "epoch", "trained_tokens", "tokens_per_update",
    "effective_tokens_per_update", "padding_fraction",
}  # fmt: skip


@pytest.fixture
def dataset(tmp_path: Path) -> SegmentDataset:
    return toy_dataset(tmp_path / "data", toy_rows(24))


def _train(dataset: SegmentDataset, folder: Path, tracker: str, *, stop_at: int = 0, **settings: Any) -> Any:
    config = WeightedBCConfig(
        **{"epochs": 3, "tokens_per_batch": 150, "logging_steps": 2, "report_to": (tracker,), **settings}
    )

    def report(update: int, updates: int) -> None:
        if update == stop_at:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        return train_weighted_bc(
            toy_model(), ToyTokenizer(), dataset, config, folder, seed=5, resume_from_checkpoint="latest", report=report
        )


def _events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_shows_loss_learning_rate_and_effective_tokens(dataset: SegmentDataset, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    record = _train(dataset, tmp_path / "out", "tensorboard")
    events = _events(tmp_path / "out.tensorboard")
    assert {f"train/{name}" for name in NAMES} <= events.keys()
    steps = [step for step, _ in events["train/loss"]]
    assert steps == [*range(2, int(record.metrics["updates"]), 2), int(record.metrics["updates"])]
    assert events["train/loss"][-1][1] == pytest.approx(record.metrics["last_loss"], rel=1e-6)
    assert events["train/trained_tokens"][-1][1] == record.metrics["trained_tokens"]
    _train(dataset, tmp_path / "out", "tensorboard", learning_rate=1e-4)
    assert len(list((tmp_path / "out.tensorboard").iterdir())) == 1  # another run leaves no lines of this one


def test_tensorboard_shows_an_interrupted_run_as_one(dataset: SegmentDataset, tmp_path: Path) -> None:
    """What was logged behind the last checkpoint is logged again, and seen once."""
    pytest.importorskip("tensorboard")
    folders = {}
    for name, stop_at in (("straight", 0), ("interrupted", 9)):
        folders[name] = tmp_path / f"{name}.tensorboard"
        _train(dataset, tmp_path / name, "tensorboard", save_steps=4, stop_at=stop_at)
    before = [step for step, _ in _events(folders["interrupted"])["train/loss"]]
    assert before == [2, 4, 6, 8]
    _train(dataset, tmp_path / "interrupted", "tensorboard", save_steps=4)
    assert _events(folders["interrupted"])["train/loss"] == _events(folders["straight"])["train/loss"]


def test_trackio_shows_loss_learning_rate_and_effective_tokens(
    dataset: SegmentDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read when trackio is imported for the first time
    pytest.importorskip("trackio", exc_type=ImportError)
    from trackio.sqlite_storage import SQLiteStorage

    record = _train(dataset, tmp_path / "out", "trackio", project="toys")
    assert list((tmp_path / "trackio").glob("toys*"))
    (run,) = SQLiteStorage.get_runs("toys")
    assert run == "out-seed5"
    lines = [line for line in SQLiteStorage.get_logs("toys", run) if "train/loss" in line]
    assert {f"train/{name}" for name in NAMES} <= lines[-1].keys()
    assert lines[-1]["train/loss"] == pytest.approx(record.metrics["last_loss"], rel=1e-6)
    assert lines[-1]["train/trained_tokens"] == record.metrics["trained_tokens"]


@pytest.mark.parametrize("tracker", ["tensorboard", "trackio", "wandb"])
def test_a_tracker_that_is_not_installed_is_told_before_training(
    tracker: str, dataset: SegmentDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, tracker, None)  # importing it fails as if it were not there
    with pytest.raises(MissingDependencyError, match=rf"{tracker} is not installed; .*offline_arl\[trackers\]"):
        _train(dataset, tmp_path / "out", tracker)
    assert not list(tmp_path.glob("out*"))
