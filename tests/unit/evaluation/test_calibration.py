"""Achieved against target returns: numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from offline_arl.errors import DataError
from offline_arl.evaluation.calibration import calibration_metrics


def test_the_curve_and_its_error() -> None:
    """Asked for 0 it gets 0.25 on average, asked for 1 it gets 0.5: off by 0.25 and 0.5, 0.375 on average."""
    achieved = {1.0: [1.0, 0.0, 1.0, 0.0], 0.0: [0.0, 1.0, 0.0, 0.0]}
    measured = calibration_metrics(achieved, generator=np.random.default_rng(0))
    assert list(measured) == ["achieved_return/0", "achieved_return/1", "calibration_error"]
    assert measured["achieved_return/0"].estimate == 0.25
    assert measured["achieved_return/1"].estimate == 0.5
    error = measured["calibration_error"]
    assert (error.estimate, error.n) == (0.375, 4)
    assert 0 <= error.low < 0.375 < error.high <= 1


def test_tasks_are_resampled_together() -> None:
    """Both targets fail by the same amount on every resample, opposite in sign, so the error never varies."""
    achieved = {0.0: [0.4, 0.0], 1.0: [0.6, 1.0]}
    error = calibration_metrics(achieved, generator=np.random.default_rng(0))["calibration_error"]
    assert error.estimate == pytest.approx(0.2)
    # The three resamples of two tasks have errors of 0.4, 0.2 and 0.0, for both targets alike.
    assert (error.low, error.high) == pytest.approx((0.0, 0.4))


def test_unknown_returns_are_left_out_of_the_mean_and_their_task_of_the_error() -> None:
    achieved = {0.0: [0.5, None, 0.0], 1.0: [1.0, 1.0, 0.5]}
    measured = calibration_metrics(achieved, generator=np.random.default_rng(0))
    assert measured["achieved_return/0"].n == 2
    assert measured["achieved_return/1"].n == 3
    error = measured["calibration_error"]
    assert error.n == 2
    assert error.estimate == pytest.approx((0.25 + 0.25) / 2)


def test_nothing_known_is_no_error_of_zero() -> None:
    error = calibration_metrics({0.5: [None]}, generator=np.random.default_rng(0))["calibration_error"]
    assert error.n == 0
    assert np.isnan(error.estimate)


@pytest.mark.parametrize("achieved", [{}, {0.0: [0.0], 1.0: [0.0, 1.0]}])
def test_targets_are_compared_on_the_same_tasks(achieved: dict[float, list[float | None]]) -> None:
    with pytest.raises(DataError, match="same tasks"):
        calibration_metrics(achieved, generator=np.random.default_rng(0))
