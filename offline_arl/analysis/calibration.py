"""The calibration curve of a return-conditioned policy, out of a run's metrics: as numbers and as a chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from offline_arl.errors import DataError

_SIZE, _MARGIN = 320, 44


class CalibrationPoint(NamedTuple):
    """What a policy achieved on average, and its 95 % interval, when it was asked for `target`."""

    target: float
    achieved: float
    low: float
    high: float
    n: int


def calibration_points(
    metrics: Mapping[str, Mapping[str, float | int | None]], policy: str, *, sampled: bool = False
) -> list[CalibrationPoint]:
    """The curve of one policy, in the order of the targets.

    Args:
        metrics: Of `results.json`.
        policy: Its name there, for example "dt".
        sampled: Of the episodes at temperature 1 in place of the greedy ones.

    Raises:
        DataError: The run has no such curve.
    """
    prefix = f"achieved_return{'_sampled' if sampled else ''}/{policy}/"
    points = []
    for name, metric in metrics.items():
        if name.startswith(prefix) and metric["estimate"] is not None:
            achieved, low, high = (float(metric[key] or 0.0) for key in ("estimate", "low", "high"))
            target = float(name.removeprefix(prefix))
            points.append(CalibrationPoint(target, achieved, low, high, int(metric["n"] or 0)))
    if not points:
        raise DataError(f"the run has no {prefix}...; evaluate a policy of dt with several target_returns")
    return sorted(points)


def calibration_chart(points: Sequence[CalibrationPoint], title: str) -> str:
    """Achieved against target returns as inline SVG that stands alone; the dashed line is a policy that gets just that.

    Args:
        points: At least one.
        title: What is shown; for screen readers the chart is this sentence and the numbers.
    """
    values = [value for point in points for value in (point.target, point.low, point.high, point.achieved)]
    lowest, highest = min(values), max(values)
    span = (highest - lowest) or 1.0

    def x(value: float) -> float:
        return _MARGIN + (value - lowest) / span * (_SIZE - 2 * _MARGIN)

    def y(value: float) -> float:
        return _SIZE - x(value)

    low_end, high_end = _MARGIN, _SIZE - _MARGIN
    drawn = [
        f'<path d="M{low_end} {low_end}V{high_end}H{high_end}" fill="none" stroke="currentColor" opacity="0.5"/>',
        f'<line x1="{low_end}" y1="{high_end}" x2="{high_end}" y2="{low_end}" stroke="currentColor" '
        'stroke-dasharray="4 4" opacity="0.5"/>',
    ]
    path = " ".join(f"{x(point.target):.1f},{y(point.achieved):.1f}" for point in points)
    drawn.append(f'<polyline points="{path}" fill="none" stroke="#2a6fdb" stroke-width="1.5"/>')
    for point in points:
        at = f"{x(point.target):.1f}"
        drawn.append(
            f'<line x1="{at}" x2="{at}" y1="{y(point.low):.1f}" y2="{y(point.high):.1f}" stroke="#2a6fdb"/>'
            f'<circle cx="{at}" cy="{y(point.achieved):.1f}" r="3.5" fill="#2a6fdb">'
            f"<title>asked for {point.target:g}: {point.achieved:.3f} [{point.low:.3f}, {point.high:.3f}]</title>"
            "</circle>"
        )
    for value in dict.fromkeys((lowest, highest)):
        drawn.append(f'<text x="{x(value):.1f}" y="{high_end + 16}" text-anchor="middle">{value:g}</text>')
        drawn.append(f'<text x="{low_end - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    middle = _SIZE / 2
    drawn.append(f'<text x="{middle}" y="{_SIZE - 8}" text-anchor="middle">target return</text>')
    drawn.append(f'<text transform="rotate(-90)" x="{-middle}" y="14" text-anchor="middle">achieved return</text>')
    told = ", ".join(f"asked for {point.target:g} it gets {point.achieved:.3f}" for point in points)
    return (
        f'<svg viewBox="0 0 {_SIZE} {_SIZE}" width="{_SIZE}" role="img" aria-label="{escape(title)}; {told}" '
        f'font-family="sans-serif" font-size="12" fill="currentColor">{"".join(drawn)}</svg>'
    )
