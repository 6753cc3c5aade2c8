"""Estimates with 95 % intervals: Wilson for shares, the bootstrap for means and for paired differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from offline_arl.errors import DataError, UsageError

RESAMPLES = 10_000
_BLOCK = 2_000_000  # resampled values held in memory at the same time


@dataclass(frozen=True)
class Estimate:
    """A number with its interval and the number of observations behind it.

    Without observations the estimate is NaN and the bounds are the widest possible: 0 and 1 for a share, minus and
    plus infinity for a mean.
    """

    estimate: float
    low: float
    high: float
    n: int

    def as_dict(self) -> dict[str, float | int | None]:
        """The four fields for JSON; what is not finite becomes None."""
        bounds = {"estimate": self.estimate, "low": self.low, "high": self.high}
        return {**{name: value if math.isfinite(value) else None for name, value in bounds.items()}, "n": self.n}


def wilson_interval(successes: float, n: int, *, confidence: float = 0.95) -> Estimate:
    """A share and its Wilson score interval (Wilson 1927), which stays within [0, 1] and is honest at 0 and n.

    >>> share = wilson_interval(8, 10)
    >>> round(share.low, 4), share.estimate, round(share.high, 4)
    (0.4902, 0.8, 0.9433)

    Args:
        successes: How many of the `n` observations are hits, between 0 and `n`.
        n: Independent observations; 0 gives (NaN, 0, 1).
        confidence: Of the interval.

    Raises:
        UsageError: `successes` is not between 0 and `n`, or `confidence` not between 0 and 1.
    """
    _check_confidence(confidence)
    if not 0 <= successes <= n:
        raise UsageError(f"{successes} successes of {n} observations; give a number between 0 and {n}")
    if n == 0:
        return Estimate(math.nan, 0.0, 1.0, 0)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share = successes / n
    scale = 1 + z * z / n
    center = (share + z * z / (2 * n)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # Rounding may leave a bound a hair outside of what it is exactly at 0 and n.
    low = 0.0 if successes == 0 else max(0.0, center - half)
    high = 1.0 if successes == n else min(1.0, center + half)
    return Estimate(share, low, high, n)


def bootstrap_mean(
    values: Sequence[float] | NDArray[np.floating],
    *,
    generator: np.random.Generator,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
) -> Estimate:
    """A mean and its percentile bootstrap interval.

    Args:
        values: Independent observations; none gives (NaN, -inf, inf).
        generator: Of the resampling.
        confidence: Of the interval.
        resamples: Bootstrap samples.

    Raises:
        UsageError: `confidence` is not between 0 and 1 or `resamples` below 1.
        DataError: A value is not finite.
    """
    _check_confidence(confidence)
    observations = np.asarray(values, dtype=np.float64)
    if len(observations) == 0:
        return Estimate(math.nan, -math.inf, math.inf, 0)
    if not np.isfinite(observations).all():
        raise DataError("a value to average is not finite; leave out what has no value")
    means = _resampled_means(observations, resamples, generator)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Estimate(float(observations.mean()), float(low), float(high), len(observations))


def paired_bootstrap(
    successes_a: Sequence[float] | NDArray[np.floating],
    successes_b: Sequence[float] | NDArray[np.floating],
    *,
    generator: np.random.Generator,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
) -> Estimate:
    """How much better a does than b, paired over tasks: the mean of a - b and its percentile interval.

    Tasks are resampled, not episodes, so that what makes a task hard for both cancels. a is better where the
    interval lies above 0.

    Args:
        successes_a: One value a task: success, or its mean over the attempts at the task.
        successes_b: The same tasks in the same order.
        generator: Of the resampling.
        confidence: Of the interval.
        resamples: Bootstrap samples.

    Returns:
        `n` is the number of tasks; no tasks give (NaN, -inf, inf).

    Raises:
        UsageError: The lengths differ, `confidence` is not between 0 and 1 or `resamples` below 1.
        DataError: A value is not finite.
    """
    if len(successes_a) != len(successes_b):
        raise UsageError(f"{len(successes_a)} and {len(successes_b)} tasks cannot be paired; give the same tasks twice")
    differences = np.asarray(successes_a, dtype=np.float64) - np.asarray(successes_b, dtype=np.float64)
    return bootstrap_mean(differences, generator=generator, confidence=confidence, resamples=resamples)


def _resampled_means(
    observations: NDArray[np.float64], resamples: int, generator: np.random.Generator
) -> NDArray[np.float64]:
    if resamples < 1:
        raise UsageError(f"resamples is {resamples}; give at least 1")
    n = len(observations)
    means = np.empty(resamples)
    rows = max(1, _BLOCK // n)
    for start in range(0, resamples, rows):
        count = min(rows, resamples - start)
        means[start : start + count] = observations[generator.integers(n, size=(count, n))].mean(axis=1)
    return means


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise UsageError(f"confidence is {confidence}; give a number between 0 and 1, such as 0.95")
