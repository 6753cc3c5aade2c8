"""Small charts as inline SVG. Colors come from the page's style, so that they follow light and dark."""

from __future__ import annotations

from collections.abc import Sequence

from offline_arl.analysis.store_report import Bin

_WIDTH, _HEIGHT, _BASE = 640, 200, 168
_LEFT = 8


def interval_bar(estimate: float, low: float, high: float) -> str:
    """A share on a line from 0 to 1, with its interval; beside the numbers, so it is hidden from screen readers."""
    x, width = low * 100, max(1.0, (high - low) * 100)
    return (
        '<svg width="110" height="10" viewBox="-5 0 110 10" aria-hidden="true">'
        '<rect class="track" x="0" y="4" width="100" height="2" rx="1"/>'
        f'<rect class="span" x="{x:.1f}" y="2" width="{width:.1f}" height="6" rx="2"/>'
        f'<circle class="dot" cx="{estimate * 100:.1f}" cy="5" r="3.5"/></svg>'
    )


def histogram(bins: Sequence[Bin], title: str) -> str:
    """Bars of counts over whole numbers; the last bin may hold all that is larger.

    Args:
        bins: In order.
        title: What is counted; for screen readers the chart is this sentence and the numbers.
    """
    if not bins:
        return ""
    highest = max(bin.count for bin in bins) or 1
    slot = (_WIDTH - 2 * _LEFT) / len(bins)
    every = -(-len(bins) // 10)  # labels must not overlap
    drawn = []
    for place, bin in enumerate(bins):
        height = bin.count / highest * (_BASE - 28)
        x = _LEFT + place * slot
        drawn.append(
            f'<rect class="bar" x="{x + slot * 0.08:.1f}" y="{_BASE - height:.1f}" width="{slot * 0.84:.1f}" '
            f'height="{height:.1f}"><title>{_range(bin)}: {bin.count:,}</title></rect>'
        )
        middle = x + slot / 2
        if place % every == 0:
            drawn.append(f'<text class="label" x="{middle:.1f}" y="{_BASE + 18}" {_CENTERED}>{_range(bin)}</text>')
        if bin.count == highest:
            drawn.append(
                f'<text class="label" x="{middle:.1f}" y="{_BASE - height - 6:.1f}" {_CENTERED}>{bin.count:,}</text>'
            )
    told = ", ".join(f"{_range(bin)}: {bin.count:,}" for bin in bins)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img" aria-label="{title}; {told}">'
        f'{"".join(drawn)}<line class="axis" x1="0" x2="{_WIDTH}" y1="{_BASE}" y2="{_BASE}"/></svg>'
    )


_CENTERED = 'text-anchor="middle"'


def _range(bin: Bin) -> str:
    if bin.high is None:
        return f"{bin.low}+"
    return str(bin.low) if bin.low == bin.high else f"{bin.low}-{bin.high}"
