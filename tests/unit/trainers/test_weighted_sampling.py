"""Weights as frequencies: their product is the weight, an epoch stays as long, and the loss adds up to the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from toys import ToyTokenizer, toy_dataset, toy_model, toy_rows

from offline_arl.datasets.segments import SegmentDataset
from offline_arl.errors import DataError
from offline_arl.trainers.config import WeightedBCConfig
from offline_arl.trainers.weighted_bc import train_weighted_bc
from offline_arl.trainers.weighted_sampling import as_frequencies, keep_tokens

ONE_UPDATE = WeightedBCConfig(epochs=1, tokens_per_batch=100_000, warmup_fraction=0, logging_steps=1)


@pytest.fixture
def dataset(tmp_path: Path) -> SegmentDataset:
    return toy_dataset(tmp_path / "data", toy_rows(30))


def _keys(dataset: SegmentDataset) -> list[list[tuple[str, int]]]:
    """The steps of each row."""
    return [[(row.trajectory_id, int(step)) for step in np.unique(row.step_index[row.action_mask])] for row in dataset]


def test_frequency_times_what_is_left_is_the_weight(dataset: SegmentDataset) -> None:
    generator = np.random.default_rng(0)
    weights = {key: float(generator.exponential()) for keys in _keys(dataset) for key in keys}
    sampled = as_frequencies(dataset, weights)
    assert sampled.step_weights is not None
    for frequency, keys in zip(sampled.frequencies, _keys(dataset), strict=True):
        left = [sampled.step_weights[key] for key in keys]
        assert np.mean(left) == pytest.approx(1)
        assert [frequency * weight for weight in left] == pytest.approx([weights[key] for key in keys])


def test_steps_of_one_weight_are_left_with_none(dataset: SegmentDataset) -> None:
    weights = {key: 1.0 + number % 3 for number, keys in enumerate(_keys(dataset)) for key in keys}
    sampled = as_frequencies(dataset, weights)
    assert sampled.step_weights is None
    assert sampled.frequencies == pytest.approx([1.0 + number % 3 for number in range(30)])


def test_an_epoch_has_as_many_tokens_in_the_same_proportions(dataset: SegmentDataset) -> None:
    weights = {key: float(number) for number, keys in enumerate(_keys(dataset)) for key in keys}
    sampled = keep_tokens(as_frequencies(dataset, weights), dataset)
    assert sampled.frequencies @ dataset.lengths == pytest.approx(dataset.lengths.sum())
    assert sampled.frequencies == pytest.approx(np.arange(30) * sampled.frequencies[1])


def test_the_loss_of_what_is_seen_adds_up_to_the_weighted_loss(dataset: SegmentDataset, tmp_path: Path) -> None:
    """Every third row weighs nothing, another 1, another 2 of steps that differ: whole frequencies, so no draw."""
    weights = {}
    for number, keys in enumerate(_keys(dataset)):
        raw = np.linspace(1, 2, len(keys))
        weights.update(zip(keys, (number % 3 * raw / raw.mean()).tolist(), strict=True))
    sampled = as_frequencies(dataset, weights)
    totals = []
    for name, step_weights, frequencies in (
        ("loss", weights, None),
        ("sampling", sampled.step_weights, np.round(sampled.frequencies)),
    ):
        record = train_weighted_bc(
            toy_model(),
            ToyTokenizer(),
            dataset,
            ONE_UPDATE,
            tmp_path / name,
            step_weights=step_weights,
            row_frequencies=frequencies,
            seed=0,
        )
        totals.append(record.metrics["loss"] * record.metrics["trained_tokens"])
    assert totals[1] == pytest.approx(totals[0], rel=1e-5)


def test_missing_and_impossible_weights_are_refused(dataset: SegmentDataset) -> None:
    weights = {key: 1.0 for keys in _keys(dataset) for key in keys}
    (first, *_), *_ = _keys(dataset)
    with pytest.raises(DataError, match=r"t0: step 0 has no weight"):
        as_frequencies(dataset, {key: 1.0 for key in weights if key != first})
    with pytest.raises(DataError, match=r"step 0 has the weight -1"):
        as_frequencies(dataset, {**weights, first: -1.0})
    with pytest.raises(DataError, match="nothing to train on"):
        keep_tokens(as_frequencies(dataset, dict.fromkeys(weights, 0.0)), dataset)
