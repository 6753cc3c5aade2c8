"""Weights of steps as frequencies of rows: what weighs more is seen more often in place of louder.

A weighted loss and weighted sampling have the same expectation. They differ in noise: an update in which one step
weighs twenty times as much as the others learns little but that step, and the share of the tokens that weigh next to
nothing is computed for nothing. Hong et al. 2023 ("Harnessing Mixed Offline Reinforcement Learning Datasets via
Trajectory Weighting") sample trajectories for that reason; here the weights within a trajectory stay exact.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from offline_arl.datasets.collate import StepWeights, weight_of_step
from offline_arl.datasets.segments import SegmentDataset, steps_of
from offline_arl.errors import DataError


class SampledRows(NamedTuple):
    """How often each row is seen in an epoch, and what its steps weigh then; their product is the weight of a step."""

    frequencies: NDArray[np.float64]  # [rows]
    step_weights: StepWeights | None  # None: 1 for all


def as_frequencies(dataset: SegmentDataset, step_weights: StepWeights) -> SampledRows:
    """Take the mean weight of the steps of a row as its frequency, and leave to its steps what they differ by.

    Args:
        dataset: The rows.
        step_weights: Weight of each of their steps.

    Raises:
        DataError: A step has no weight, or one that is negative or no number.
    """
    frequencies = np.zeros(len(dataset))
    left: dict[tuple[str, int], float] = {}
    for number, row in enumerate(dataset):
        keys = [(row.trajectory_id, int(step)) for step in steps_of(row)]
        weights = [weight_of_step(key, step_weights) for key in keys]
        mean = float(np.mean(weights)) if weights else 0.0
        frequencies[number] = mean
        left.update(zip(keys, (weight / mean if mean else 0.0 for weight in weights), strict=True))
    alike = np.allclose(list(left.values()), 1.0)
    return SampledRows(frequencies, None if alike else left)


def keep_tokens(sampled: SampledRows, dataset: SegmentDataset) -> SampledRows:
    """The same proportions, at frequencies with which an epoch has as many tokens as the dataset.

    Raises:
        DataError: No step has a weight above 0.
    """
    seen = float(sampled.frequencies @ dataset.lengths)
    if seen == 0:
        raise DataError("no step has a weight above 0: nothing to train on")
    return sampled._replace(frequencies=sampled.frequencies * float(dataset.lengths.sum()) / seen)
