"""Curves as SVG: what is drawn where, what is left out, what a reader is told."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree as ET

import pytest

from offline_arl.analysis.curves import Curve, Mark, curves_chart


def svg(chart: str) -> ET.Element:
    return ET.fromstring(re.search(r"<svg.*</svg>", chart, flags=re.DOTALL)[0])  # type: ignore[index]


def path(chart: str, place: int = 0) -> str:
    (found,) = [item for item in svg(chart).iter("path") if item.get("class") == f"curve curve-{place}"]
    return found.get("d", "")


def heights(chart: str) -> list[float]:
    return [float(point.split()[1]) for point in re.split("[ML]", path(chart))[1:]]


def test_values_stand_between_the_labels_of_the_axis() -> None:
    chart = curves_chart("KL", [Curve("a token", [(1, 0.0), (2, 0.3), (3, 0.6)])])
    labels = {item.text: float(item.get("y", "nan")) for item in svg(chart).iter("text")}
    low, middle, high = heights(chart)
    assert labels["0"] == pytest.approx(low + 4)
    assert labels["0.6"] == pytest.approx(high + 4)
    assert middle == pytest.approx((low + high) / 2, abs=0.1)


def test_what_was_not_measured_is_a_gap() -> None:
    assert path(curves_chart("KL", [Curve("k", [(1, 0.1), (2, math.nan), (3, 0.1), (4, 0.2)])])).count("M") == 2
    assert curves_chart("KL", [Curve("k", [(1, math.nan)])]) == ""
    assert curves_chart("KL", []) == ""


def test_an_exploded_step_does_not_flatten_the_rest() -> None:
    points = [(step, 0.1 + 0.1 * (step % 2)) for step in range(1, 20)] + [(20, 1e9)]
    chart = curves_chart("KL", [Curve("k", points)])
    drawn = heights(chart)
    assert drawn[0] - drawn[1] == pytest.approx(drawn[2] - drawn[1])
    assert abs(drawn[0] - drawn[1]) > 5
    assert min(drawn) == drawn[-1]
    assert "beyond the upper edge" in chart
    assert "beyond" not in curves_chart("KL", [Curve("k", points[:-1])])


@pytest.mark.parametrize("values", [[0.0], [0.0, 0.0], [-1.0, -2.0], [1e-12, 2e-12], [3e22, 1.0], [5.0, 5.0]])
def test_every_range_is_drawn_inside_the_frame(values: list[float]) -> None:
    chart = curves_chart("Loss", [Curve("loss", list(enumerate(values, start=1)))])
    assert all(22 <= height <= 156 for height in heights(chart))
    assert "nan" not in chart


def test_a_finding_is_marked_at_its_step_and_escaped() -> None:
    chart = curves_chart("Loss", [Curve("loss", [(1, 0.0), (11, 1.0)])], [Mark(6, "1", "<b>", is_error=True)])
    (mark,) = [item for item in svg(chart).iter("g") if item.get("class") == "mark error-mark"]
    line = mark.find("line")
    assert line is not None
    points = [float(point.split()[0]) for point in re.split("[ML]", path(chart))[1:]]
    assert float(line.get("x1", "nan")) == pytest.approx(sum(points) / 2, abs=0.1)
    assert "&lt;b&gt;" in chart


def test_who_cannot_see_it_is_told_where_it_begins_and_ends() -> None:
    chart = curves_chart("Loss", [Curve("loss", [(1, 0.25), (9, 0.5)])])
    assert svg(chart).get("aria-label") == "Loss; loss 0.25 at step 1, 0.5 at step 9"
