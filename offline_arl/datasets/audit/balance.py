"""Faults of a dataset as a whole: lengths that give the label away, and tasks that drown the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

_STRATA = 5
_MOST_WEIGHT = 4.0


def correlation(left: Numbers, right: Numbers, weights: Numbers) -> float:
    """Pearson's correlation of weighted pairs of numbers; NaN where one of the two does not vary.

    >>> correlation(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0]), np.ones(3))
    1.0
    """
    total = float(weights.sum())
    if len(left) < 2 or total == 0.0:
        return math.nan
    first, second = (values - float((weights * values).sum()) / total for values in (left, right))
    scale = math.sqrt(float((weights * first**2).sum() * (weights * second**2).sum()))
    return math.nan if scale == 0.0 else round(float((weights * first * second).sum()) / scale, 12)


def ranks(values: Numbers) -> Numbers:
    """Ranks from 0 on, equal values with their mean rank.

    >>> ranks(np.array([3.0, 1.0, 3.0])).tolist()
    [1.5, 0.0, 1.5]
    """
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    means = (ends - counts + ends - 1) / 2.0
    return np.asarray(means[inverse], dtype=np.float64)


def chosen_longer(chosen: Numbers, rejected: Numbers, weights: Numbers) -> float:
    """Share of the weight of pairs whose chosen side is the longer one; pairs of equal lengths do not count.

    NaN where all are equal.
    """
    different = chosen != rejected
    total = weights[different].sum()
    return math.nan if total == 0 else float(weights[chosen > rejected].sum() / total)


def length_correlation(chosen: Numbers, rejected: Numbers, weights: Numbers) -> float:
    """Correlation of a side's length with being chosen, over all sides (point-biserial)."""
    labels = np.concatenate([np.ones(len(chosen)), np.zeros(len(rejected))])
    return correlation(np.concatenate([chosen, rejected]), labels, np.concatenate([weights, weights]))


def without_length_bias(chosen: Numbers, rejected: Numbers, weights: Numbers) -> Numbers:
    """New weights under which the chosen side is as often the longer one as the shorter, for small and large gaps.

    Pairs are parted by how much their lengths differ; in each part the rarer direction gains weight and the other one
    loses it, up to a factor of 4 either way, and the total stays. A part with one direction only has nothing to set
    against it and loses as much as that factor allows.

    Returns:
        [rows] Weights with the sum of `weights`.
    """
    gaps = chosen - rejected
    result = weights.astype(np.float64).copy()
    different = gaps != 0
    if not different.any():
        return result
    borders = np.quantile(np.abs(gaps[different]), np.linspace(0, 1, _STRATA + 1)[1:-1])
    strata = np.digitize(np.abs(gaps), borders)
    for stratum in range(_STRATA):
        inside = different & (strata == stratum)
        longer, shorter = inside & (gaps > 0), inside & (gaps < 0)
        sums = [float(weights[part].sum()) for part in (longer, shorter)]
        half = sum(sums) / 2
        for part, total in zip((longer, shorter), sums, strict=True):
            if total > 0:
                wanted = half / total if min(sums) > 0 else 1 / _MOST_WEIGHT
                result[part] *= min(max(wanted, 1 / _MOST_WEIGHT), _MOST_WEIGHT)
    scale = weights[different].sum() / result[different].sum()
    result[different] *= scale
    return result


def task_shares(tasks: Sequence[str | None], weights: Numbers) -> dict[str, float]:
    """Share of the weight of each task, the largest first; rows without a task are none's."""
    sums: dict[str, float] = {}
    for task, weight in zip(tasks, weights.tolist(), strict=True):
        if task is not None:
            sums[task] = sums.get(task, 0.0) + weight
    total = float(weights.sum()) or 1.0
    return {task: weight / total for task, weight in sorted(sums.items(), key=lambda item: (-item[1], item[0]))}


def task_limit(n_tasks: int, share: float, factor: float) -> float:
    """The share from which on a task is dominant: `share`, or `factor` times the mean task where that is more."""
    return max(share, factor / n_tasks) if n_tasks else 1.0


def without_dominant_tasks(tasks: Sequence[str | None], weights: Numbers, limit: float) -> Numbers:
    """Weights under which no task has more than `limit` of the total; those of other tasks stay.

    Returns:
        [rows] Weights, at most those given.
    """
    result = weights.astype(np.float64).copy()
    names: NDArray[Any] = np.array([task if task is not None else "" for task in tasks], dtype=object)
    for _ in range(100):  # lowering one task raises the others' shares
        heavy = {task: share for task, share in task_shares(tasks, result).items() if share > limit * (1 + 1e-9)}
        if not heavy or len(heavy) * limit >= 1:
            break
        inside = np.isin(names, list(heavy))
        rest = float(result[~inside].sum())
        wanted = limit * rest / (1 - limit * len(heavy))
        for task in heavy:
            own = names == task
            result[own] *= wanted / float(result[own].sum())
    return result
