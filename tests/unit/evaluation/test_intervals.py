"""Intervals against hand calculations, their own definition, and the coverage that they promise."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from offline_arl.errors import DataError, UsageError
from offline_arl.evaluation.intervals import Estimate, bootstrap_mean, paired_bootstrap, wilson_interval


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_wilson_by_hand() -> None:
    """8 of 10, z = 1.959964, z^2 = 3.841459: the center is (0.8 + 3.841459 / 20) / (1 + 0.3841459) = 0.716740 and
    the half width 1.959964 / 1.3841459 * sqrt(0.16 / 10 + 3.841459 / 400) = 0.226578."""
    share = wilson_interval(8, 10)
    assert share.estimate == 0.8
    assert share.low == pytest.approx(0.716740 - 0.226578, abs=2e-6)
    assert share.high == pytest.approx(0.716740 + 0.226578, abs=2e-6)
    assert share.n == 10


def test_wilson_bounds_solve_the_score_equation() -> None:
    """Each bound p is where the observed share lies exactly z standard errors of p away from it."""
    for successes, n in [(1, 7), (45, 300), (299, 300)]:
        share = wilson_interval(successes, n, confidence=0.9)
        for bound in (share.low, share.high):
            z = abs(successes / n - bound) / math.sqrt(bound * (1 - bound) / n)
            assert z == pytest.approx(1.6448536, abs=1e-6)


def test_wilson_at_the_ends_keeps_the_certain_bound() -> None:
    """0 of n: the upper bound is z^2 / (n + z^2)."""
    none, all_of_them = wilson_interval(0, 10), wilson_interval(10, 10)
    assert (none.estimate, none.low) == (0.0, 0.0)
    assert none.high == pytest.approx(3.841459 / 13.841459, abs=1e-6)
    assert (all_of_them.low, all_of_them.high) == (pytest.approx(1 - none.high), 1.0)


def test_wilson_covers_what_it_promises() -> None:
    """The exact coverage over the binomial distribution, averaged over shares, is close to 95 %."""
    n = 40
    intervals = [wilson_interval(k, n) for k in range(n + 1)]
    coverage = []
    for share in np.linspace(0.05, 0.95, 19):
        chances = [math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(n + 1)]
        inside = (c for c, found in zip(chances, intervals, strict=True) if found.low <= share <= found.high)
        coverage.append(sum(inside))
    assert np.mean(coverage) == pytest.approx(0.95, abs=0.01)


def test_nothing_observed_is_said_so() -> None:
    share, mean = wilson_interval(0, 0), bootstrap_mean([], generator=generator())
    assert math.isnan(share.estimate)
    assert (share.low, share.high, share.n) == (0.0, 1.0, 0)
    assert math.isnan(mean.estimate)
    assert (mean.low, mean.high, mean.n) == (-math.inf, math.inf, 0)
    assert mean.as_dict() == {"estimate": None, "low": None, "high": None, "n": 0}
    assert paired_bootstrap([], [], generator=generator()).n == 0


def test_bootstrap_of_two_values_by_hand() -> None:
    """Means of two draws from {0, 1} are 0, 1/2 and 1 with chances 1/4, 1/2 and 1/4: 90 % spans 0 to 1, and 40 %
    leaves 30 % on either side, which is within the middle."""
    wide = bootstrap_mean([0.0, 1.0], generator=generator(), confidence=0.9)
    narrow = bootstrap_mean([0.0, 1.0], generator=generator(), confidence=0.4)
    assert wide == Estimate(0.5, 0.0, 1.0, 2)
    assert narrow == Estimate(0.5, 0.5, 0.5, 2)


def test_bootstrap_against_all_resamples() -> None:
    values = [0.0, 1.0, 5.0, 2.0]
    exact = [np.mean(draw) for draw in itertools.product(values, repeat=4)]
    found = bootstrap_mean(values, generator=generator(), confidence=0.8, resamples=200_000)
    assert found.low == pytest.approx(np.quantile(exact, 0.1), abs=0.05)
    assert found.high == pytest.approx(np.quantile(exact, 0.9), abs=0.05)


def test_bootstrap_is_the_same_however_it_is_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    values = generator(1).normal(size=50)
    whole = bootstrap_mean(values, generator=generator())
    monkeypatch.setattr("offline_arl.evaluation.intervals._BLOCK", 777)
    assert bootstrap_mean(values, generator=generator()) == whole


def test_bootstrap_covers_what_it_promises() -> None:
    draws = generator(3)
    hits = 0
    for _ in range(400):
        found = bootstrap_mean(draws.normal(1.0, 2.0, size=60), generator=draws, resamples=400)
        hits += found.low <= 1.0 <= found.high
    assert 0.91 <= hits / 400 <= 0.98


def test_pairing_takes_out_what_makes_a_task_hard() -> None:
    """a solves what b solves and one task in ten more: the difference is certain although both vary."""
    b = np.array([0.0, 1.0] * 50)
    a = b.copy()
    a[::10] = 1.0
    difference = paired_bootstrap(a, b, generator=generator())
    assert difference.estimate == pytest.approx(0.1)
    assert difference.low > 0.03
    assert difference.n == 100
    swapped = paired_bootstrap(b, a, generator=generator())
    assert (swapped.estimate, swapped.low, swapped.high) == (-difference.estimate, -difference.high, -difference.low)


def test_the_same_generator_gives_the_same_interval() -> None:
    values = generator(5).normal(size=30)
    assert bootstrap_mean(values, generator=generator(9)) == bootstrap_mean(values, generator=generator(9))
    assert bootstrap_mean(values, generator=generator(9)) != bootstrap_mean(values, generator=generator(10))


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(UsageError, match="11 successes of 10"):
        wilson_interval(11, 10)
    with pytest.raises(UsageError, match="confidence is 95"):
        wilson_interval(1, 10, confidence=95)
    with pytest.raises(UsageError, match="3 and 2 tasks"):
        paired_bootstrap([1, 0, 1], [1, 0], generator=generator())
    with pytest.raises(UsageError, match="resamples is 0"):
        bootstrap_mean([1.0], generator=generator(), resamples=0)
    with pytest.raises(DataError, match="not finite"):
        bootstrap_mean([1.0, math.nan], generator=generator())
