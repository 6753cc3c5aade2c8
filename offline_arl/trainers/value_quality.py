"""How well a value function tells attempts that will succeed from those that will not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from offline_arl.models.features import StepFeatures
from offline_arl.models.value_heads import ValueHeads


class Interval(NamedTuple):
    """An estimate with a 95 % bootstrap interval; NaN where there is nothing to estimate from. `n` attempts."""

    estimate: float
    low: float
    high: float
    n: int


class ValueQuality(NamedTuple):
    """Area under the ROC curve of V(s) against success: 0.5 is chance, 1 is perfect order."""

    first_step: Interval
    mid_trajectory: Interval


def value_quality(
    heads: ValueHeads,
    features: StepFeatures,
    success: Mapping[str, bool],
    *,
    generator: np.random.Generator,
    clusters: Mapping[str, str] | None = None,
    resamples: int = 1_000,
) -> ValueQuality:
    """AUC of V at the first step and at mid-trajectory (step S // 2 of S) for the success of the attempt.

    Args:
        heads: Trained heads.
        features: Features of the steps of at least the trajectories in `success`.
        success: Verdict of each trajectory to judge on; pass held-out ones.
        generator: Of the bootstrap.
        clusters: Trajectory to cluster, usually its task: attempts at one task are not independent, so whole
            clusters are drawn. None: every trajectory by itself.
        resamples: Bootstrap resamples.
    """
    chosen: dict[str, list[tuple[int, int]]] = {}
    steps, acts = features.steps.tolist(), features.has_action.tolist()
    for row, trajectory_id in enumerate(features.trajectory_ids):
        if trajectory_id in success and acts[row]:
            chosen.setdefault(trajectory_id, []).append((steps[row], row))
    names = sorted(chosen)
    labels = np.array([success[name] for name in names], dtype=np.bool_)
    groups = np.array([name if clusters is None else clusters[name] for name in names])
    intervals = []
    for position in (lambda count: 0, lambda count: count // 2):
        rows = [sorted(chosen[name])[position(len(chosen[name]))][1] for name in names]
        with torch.inference_mode():
            values = heads.v(features.states[rows]).numpy().astype(np.float64)
        intervals.append(_auc_interval(values, labels, groups, generator, resamples))
    return ValueQuality(*intervals)


def auc(values: NDArray[np.float64], labels: NDArray[np.bool_]) -> float:
    """Probability that a random success has a higher value than a random failure, ties counted half.

    >>> auc(np.array([0.9, 0.4, 0.4, 0.1]), np.array([True, True, False, False]))
    0.875
    """
    positives = int(labels.sum())
    negatives = len(labels) - positives
    if positives == 0 or negatives == 0:
        return float("nan")
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]  # mean rank of ties
    return float((ranks[labels].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def _auc_interval(
    values: NDArray[np.float64],
    labels: NDArray[np.bool_],
    groups: NDArray[np.str_],
    generator: np.random.Generator,
    resamples: int,
) -> Interval:
    _, inverse = np.unique(groups, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(inverse[order])) + 1)
    draws = []
    for _ in range(resamples if len(values) else 0):
        drawn = generator.integers(len(members), size=len(members))
        rows = np.concatenate([members[cluster] for cluster in drawn])
        draws.append(auc(values[rows], labels[rows]))
    usable = np.array([draw for draw in draws if not np.isnan(draw)])
    low, high = np.quantile(usable, [0.025, 0.975]) if len(usable) else (float("nan"), float("nan"))
    return Interval(auc(values, labels), float(low), float(high), len(values))
