"""Rehearsal: what is cloned in between, how often, with what weight, and what belongs to the identity of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from toys import ToyTokenizer, toy_dataset, toy_model, toy_rows

from offline_arl.datasets.rehearsal import Rehearsal, RehearsedSegments
from offline_arl.datasets.segments import SegmentDataset, SegmentWriter
from offline_arl.errors import DataError
from offline_arl.trainers.checkpoint import load_record
from offline_arl.trainers.config import WeightedBCConfig
from offline_arl.trainers.weighted_bc import dataset_nll, train_weighted_bc
from offline_arl.workflows.stages import TrainCloning

ONE_UPDATE = WeightedBCConfig(epochs=1, tokens_per_batch=100_000, warmup_fraction=0, logging_steps=1)


@pytest.fixture
def dataset(tmp_path: Path) -> SegmentDataset:
    return toy_dataset(tmp_path / "data", toy_rows(24))


@pytest.fixture
def earlier(tmp_path: Path) -> SegmentDataset:
    return toy_dataset(tmp_path / "earlier", toy_rows(40, seed=1))  # with the same ids as the data


def _train(dataset: SegmentDataset, config: WeightedBCConfig, folder: Path, model: Any = None, **options: Any) -> Any:
    model = toy_model() if model is None else model
    return train_weighted_bc(model, ToyTokenizer(), dataset, config, folder, **{"seed": 0, **options})


def _share(dataset: SegmentDataset, earlier: SegmentDataset) -> float:
    """The share at which each row of both is seen as often."""
    return earlier.lengths.sum() / (dataset.lengths.sum() + earlier.lengths.sum())


def test_the_loss_holds_weighted_steps_and_rehearsed_ones_with_weight_one(
    dataset: SegmentDataset, earlier: SegmentDataset, tmp_path: Path
) -> None:
    weights = {(row.trajectory_id, step): 3.0 for row in dataset for step in range(5)}
    learned, n_learned = dataset_nll(toy_model(), ToyTokenizer(), dataset)
    rehearsed, n_rehearsed = dataset_nll(toy_model(), ToyTokenizer(), earlier)
    rehearsal = Rehearsal(earlier, _share(dataset, earlier))
    for options, factor in (({}, 1.0), ({"step_weights": weights}, 3.0)):
        record = _train(dataset, ONE_UPDATE, tmp_path / "out", rehearsal=rehearsal, **options)
        metrics = record.metrics
        expected = (factor * learned * n_learned + rehearsed * n_rehearsed) / (n_learned + n_rehearsed)
        assert metrics["loss"] == pytest.approx(expected, rel=1e-5)
        assert metrics["trained_tokens"] == n_learned + n_rehearsed
        assert load_record(tmp_path / "out") == record
        assert record.rehearsal_sha256 == earlier.manifest.content_sha256


@pytest.mark.parametrize("fraction", [0.05, 0.3, 0.8])
def test_the_fraction_is_one_of_tokens(
    fraction: float, dataset: SegmentDataset, earlier: SegmentDataset, tmp_path: Path
) -> None:
    config = ONE_UPDATE.model_copy(update={"epochs": 40.0, "tokens_per_batch": 300})
    record = _train(dataset, config, tmp_path / "out", rehearsal=Rehearsal(earlier, fraction))
    learned = 40 * int(dataset.lengths.sum())
    assert 1 - learned / record.metrics["tokens"] == pytest.approx(fraction, abs=0.01)


def test_what_is_rehearsed_is_kept(dataset: SegmentDataset, earlier: SegmentDataset, tmp_path: Path) -> None:
    before = toy_model()
    config = WeightedBCConfig(epochs=60, tokens_per_batch=1_000, learning_rate=3e-3)
    _train(earlier, config, tmp_path / "before", before)
    known, _ = dataset_nll(before, ToyTokenizer(), earlier)
    kept = {}
    for name, rehearsal in (("without", None), ("with", Rehearsal(earlier, 0.3))):
        model = toy_model()
        model.load_state_dict(before.state_dict())
        _train(dataset, config, tmp_path / name, model, rehearsal=rehearsal)
        kept[name], _ = dataset_nll(model, ToyTokenizer(), earlier)
        assert dataset_nll(model, ToyTokenizer(), dataset)[0] < dataset_nll(before, ToyTokenizer(), dataset)[0] / 2
    # Learned by heart and against one another (random tokens): most of what was known is lost, or less than half.
    assert kept["without"] > known + 2.0
    assert kept["with"] - known < (kept["without"] - known) / 2


def test_rows_behind_those_of_the_dataset_are_the_rehearsed_ones(
    dataset: SegmentDataset, earlier: SegmentDataset
) -> None:
    both = RehearsedSegments(dataset, Rehearsal(earlier, 0.5))
    assert len(both) == len(both.lengths) == 64
    assert [len(row) for row in both] == both.lengths.tolist()
    assert both[3].trajectory_id == dataset[3].trajectory_id
    assert np.array_equal(both[-1].token_ids, earlier[39].token_ids)
    assert np.array_equal(both[24:26][1].token_ids, earlier[1].token_ids)
    assert not {row.trajectory_id for row in both[24:]} & {row.trajectory_id for row in dataset}
    with pytest.raises(IndexError):
        both[64]


def test_a_run_goes_on_only_with_what_it_rehearsed(
    dataset: SegmentDataset, earlier: SegmentDataset, tmp_path: Path
) -> None:
    config = WeightedBCConfig(epochs=3, tokens_per_batch=150, save_steps=4)
    straight, resumed = toy_model(), toy_model()
    rehearsal = Rehearsal(earlier, 0.2)
    record = _train(dataset, config, tmp_path / "straight", straight, rehearsal=rehearsal)
    first: list[int] = []
    for change in (None, Rehearsal(earlier, 0.3), Rehearsal(toy_dataset(tmp_path / "o", toy_rows(9, seed=5)), 0.2)):
        seen: list[int] = []

        def report(update: int, updates: int, seen: list[int] = seen) -> None:
            seen.append(update)
            if update == 6:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            _train(dataset, config, tmp_path / "out", rehearsal=rehearsal, report=report)
        changed: list[int] = []
        _train(
            dataset, config, tmp_path / "out", resumed if change is None else None, rehearsal=change or rehearsal,
            resume_from_checkpoint="latest", report=lambda update, updates, changed=changed: changed.append(update),
        )  # fmt: skip
        first.append(changed[0])
    assert first == [5, 1, 1]
    assert record.metrics["updates"] > 6
    for one, other in zip(straight.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)


def test_what_cannot_be_rehearsed_is_refused(dataset: SegmentDataset, earlier: SegmentDataset, tmp_path: Path) -> None:
    with SegmentWriter(tmp_path / "x", kind="bc", fingerprint="another", config={}) as writer:
        writer.add([earlier[0]])
    with SegmentWriter(tmp_path / "y", kind="bc", fingerprint="toy", config={}, may_be_empty=True):
        pass
    for folder, message in (("x", "another tokenizer or chat template"), ("y", "to rehearse is empty")):
        with pytest.raises(DataError, match=message):
            _train(
                dataset, ONE_UPDATE, tmp_path / "out", rehearsal=Rehearsal(SegmentDataset.load(tmp_path / folder), 0.5)
            )
    for fraction in (0.0, 1.0):
        with pytest.raises(ValueError, match="share above 0 and below 1"):
            Rehearsal(earlier, fraction)


def test_a_fraction_without_a_dataset_is_refused() -> None:
    stage = {"kind": "train", "algorithm": "bc", "dataset": "d", "policy": "p"}
    assert TrainCloning(**stage, rehearsal="e").rehearsal_fraction == 0.1
    with pytest.raises(ValidationError, match="goes with a dataset to rehearse"):
        TrainCloning(**stage, rehearsal_fraction=0.2)
