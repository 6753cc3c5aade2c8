"""The calibration curve out of a run's metrics."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from offline_arl.analysis.calibration import CalibrationPoint, calibration_chart, calibration_points
from offline_arl.errors import DataError


def metric(estimate: float | None, n: int = 10) -> dict[str, float | int | None]:
    half = 0.1
    return {
        "estimate": estimate,
        "low": None if estimate is None else estimate - half,
        "high": None if estimate is None else estimate + half,
        "n": n,
    }


METRICS = {
    "achieved_return/dt/1": metric(0.8),
    "achieved_return/dt/-0.5": metric(0.0),
    "achieved_return_sampled/dt/1": metric(0.5),
    "achieved_return/other/1": metric(0.1),
    "achieved_return/dt/2": metric(None, n=0),
    "success/dt": metric(0.9),
}


def test_points_are_those_of_the_policy_in_the_order_of_the_targets() -> None:
    assert calibration_points(METRICS, "dt") == [
        CalibrationPoint(-0.5, 0.0, -0.1, 0.1, 10),
        CalibrationPoint(1.0, 0.8, pytest.approx(0.7), pytest.approx(0.9), 10),
    ]
    assert [point.achieved for point in calibration_points(METRICS, "dt", sampled=True)] == [0.5]


def test_a_run_without_a_curve_is_told() -> None:
    with pytest.raises(DataError, match="target_returns"):
        calibration_points(METRICS, "bc")


def test_the_chart_puts_a_policy_that_gets_what_it_is_asked_for_on_the_diagonal() -> None:
    chart = calibration_chart([CalibrationPoint(t, t, t, t, 5) for t in (0.0, 0.25, 1.0)], "exact")
    root = ET.fromstring(chart)
    line = next(node for node in root if node.get("stroke-dasharray"))
    (x1, y1, x2, y2) = (float(line.get(name) or 0) for name in ("x1", "y1", "x2", "y2"))
    for circle, share in zip((node for node in root if node.tag == "circle"), (0.0, 0.25, 1.0), strict=True):
        assert float(circle.get("cx") or 0) == pytest.approx(x1 + share * (x2 - x1))
        assert float(circle.get("cy") or 0) == pytest.approx(y1 + share * (y2 - y1))


def test_a_reader_that_sees_no_picture_gets_the_numbers() -> None:
    chart = calibration_chart(calibration_points(METRICS, "dt"), "What dt achieves")
    assert "What dt achieves; asked for -0.5 it gets 0.000, asked for 1 it gets 0.800" in chart
    assert calibration_chart([CalibrationPoint(1, 1, 1, 1, 1)], "one") != ""  # no division by a span of zero
