"""Curves over the steps of a training as inline SVG, with marks at the steps where something happened."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 640, 190
_LEFT, _RIGHT, _TOP, _BASE = 52, 12, 22, 156
_TICKS = 4
# What goes far beyond nearly all other values is drawn at the edge; else one exploded step would flatten the rest.
_QUANTILE, _BEYOND = 0.9, 5.0


@dataclass(frozen=True)
class Curve:
    """Values over steps; NaN leaves a gap."""

    name: str
    points: Sequence[tuple[int, float]]
    dots: bool = False  # single measurements; otherwise a line alone


@dataclass(frozen=True)
class Mark:
    """Something that happened at a step."""

    step: int
    label: str  # short: it stands above the chart
    text: str
    is_error: bool = False


def curves_chart(title: str, curves: Sequence[Curve], marks: Sequence[Mark] = (), *, share: bool = False) -> str:
    """A figure with its legend; nothing where no curve has a value.

    Args:
        title: What is measured.
        curves: At most three, told apart by color and dashes.
        marks: Drawn as vertical lines through the chart.
        share: Whether values are shares, drawn between 0 and 1.
    """
    curves = [curve for curve in curves if any(math.isfinite(value) for _, value in curve.points)]
    if not curves:
        return ""
    steps = [step for curve in curves for step, _ in curve.points] + [mark.step for mark in marks]
    first, last = min(steps), max(max(steps), min(steps) + 1)
    low, high, is_cut = (0.0, 1.0, False) if share else _range(curves)
    scale = _Scale(first, last, low, high)
    drawn = [_grid(scale), *(_mark(mark, scale) for mark in marks)]
    drawn += [_curve(curve, place, scale) for place, curve in enumerate(curves)]
    legend = "".join(f'<span class="key-{place}">{escape(curve.name)}</span>' for place, curve in enumerate(curves))
    cut = " Values beyond the upper edge are drawn at it." if is_cut else ""
    told = escape(_told(title, curves))
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><p class="legend">{legend}{cut}</p>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img" aria-label="{told}">'
        f"{''.join(drawn)}</svg></figure>"
    )


@dataclass(frozen=True)
class _Scale:
    first: int
    last: int
    low: float
    high: float

    def x(self, step: float) -> float:
        return _LEFT + (step - self.first) / (self.last - self.first) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        inside = min(max(value, self.low), self.high)
        return _BASE - (inside - self.low) / (self.high - self.low) * (_BASE - _TOP)


def _range(curves: Sequence[Curve]) -> tuple[float, float, bool]:
    values = sorted(value for curve in curves for _, value in curve.points if math.isfinite(value))
    usual = max(abs(values[0]), values[int(_QUANTILE * (len(values) - 1))])
    is_cut = values[-1] > _BEYOND * usual > 0
    low, high = min(0.0, values[0]), _BEYOND * usual if is_cut else values[-1]
    step = _nice((high - low) / _TICKS) if high > low else 0.25
    return math.floor(low / step) * step, max(math.ceil(high / step), math.floor(low / step) + 1) * step, is_cut


def _nice(size: float) -> float:
    """The smallest of 1, 2, 2.5, 5 and 10 times a power of ten that is at least `size`."""
    power = 10.0 ** math.floor(math.log10(size))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= size * (1 - 1e-9))


def _grid(scale: _Scale) -> str:
    drawn = []
    size = (scale.high - scale.low) / _TICKS
    count = round((scale.high - scale.low) / _nice(size)) if size > 0 else _TICKS
    for place in range(count + 1):
        value = scale.low + place * (scale.high - scale.low) / count
        y = scale.y(value)
        drawn.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(f'<text class="label" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>')
    every = max(1, round(_nice((scale.last - scale.first) / 8)))
    start = -(-scale.first // every) * every
    drawn += [
        f'<text class="label" x="{scale.x(step):.1f}" y="{_BASE + 18}" text-anchor="middle">{step}</text>'
        for step in range(start, scale.last + 1, every)
    ]
    return "".join(drawn)


def _curve(curve: Curve, place: int, scale: _Scale) -> str:
    path, gap = [], True
    for step, value in curve.points:
        if not math.isfinite(value):
            gap = True
            continue
        path.append(f"{'M' if gap else 'L'}{scale.x(step):.1f} {scale.y(value):.1f}")
        gap = False
    drawn = f'<path class="curve curve-{place}" d="{" ".join(path)}"/>'
    if curve.dots or len(path) == 1:
        drawn += "".join(
            f'<circle class="point-{place}" cx="{scale.x(step):.1f}" cy="{scale.y(value):.1f}" r="3">'
            f"<title>step {step}: {value:.3g}</title></circle>"
            for step, value in curve.points
            if math.isfinite(value)
        )
    return drawn


def _mark(mark: Mark, scale: _Scale) -> str:
    x = scale.x(mark.step)
    kind = "mark error-mark" if mark.is_error else "mark"
    return (
        f'<g class="{kind}"><title>step {mark.step}: {escape(mark.text)}</title>'
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_BASE}"/>'
        f'<text x="{x:.1f}" y="{_TOP - 7}" text-anchor="middle">{escape(mark.label)}</text></g>'
    )


def _told(title: str, curves: Sequence[Curve]) -> str:
    """The chart in a sentence, for who cannot see it."""
    parts = []
    for curve in curves:
        known = [(step, value) for step, value in curve.points if math.isfinite(value)]
        (first, start), (last, end) = known[0], known[-1]
        parts.append(f"{curve.name} {start:.3g} at step {first}, {end:.3g} at step {last}")
    return f"{title}; {'; '.join(parts)}"
