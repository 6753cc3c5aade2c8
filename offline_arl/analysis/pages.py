"""Self-contained HTML pages: no scripts, no request to anywhere; everything that is given as text is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from string import Template

from offline_arl.analysis.charts import interval_bar
from offline_arl.analysis.report_tables import Cell, ColumnKind, Table, percent
from offline_arl.analysis.store_report import Rate

_NARROW = 3  # columns of tables that stand side by side where there is room
_STYLE = """
:root {
  color-scheme: light dark;
  --page: #fbfbfa; --card: #ffffff; --text: #1d2327; --muted: #5d6972; --line: #dfe3e6; --head: #f1f3f4;
  --accent: #1f6f8b; --accent-soft: #b9dbe6; --error: #a8201a; --warning: #8a5a00; --note: #3d5a80; --good: #2b6a3f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14181b; --card: #1b2024; --text: #e4e8ea; --muted: #9aa6ae; --line: #333b41; --head: #242b30;
    --accent: #6cc3df; --accent-soft: #2c5564; --error: #ff8f87; --warning: #f0bd5e; --note: #9fc0ea; --good: #83d39b;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
main, header, footer { max-width: 68rem; margin: 0 auto; padding: 0 1rem; }
header { padding-top: 1.5rem; }
footer { padding-bottom: 3rem; color: var(--muted); font-size: .875rem; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .25rem; padding-top: .5rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 0; }
p { margin: .25rem 0 .75rem; max-width: 48rem; }
.muted { color: var(--muted); }
.path { overflow-wrap: anywhere; color: var(--muted); margin-top: .25rem; }
a { color: var(--accent); }
a:focus-visible, summary:focus-visible, .scroll:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
nav ul { list-style: none; display: flex; flex-wrap: wrap; gap: .25rem 1rem; padding: 0; margin: 1rem 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .75rem; padding: 0;
  margin: 1.25rem 0; list-style: none; }
.tiles li { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .6rem .8rem; }
.tiles b { display: block; font-size: 1.35rem; line-height: 1.3; font-variant-numeric: tabular-nums; }
.tiles span { color: var(--muted); font-size: .875rem; }
.problems { list-style: none; padding: 0; margin: .75rem 0; }
.problems li { display: grid; grid-template-columns: 5.5rem 1fr; gap: .5rem; padding: .35rem 0;
  border-top: 1px solid var(--line); overflow-wrap: anywhere; }
.severity { font-weight: 600; }
.error { color: var(--error); } .warning { color: var(--warning); } .note { color: var(--note); }
.good { color: var(--good); }
.tables { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 1rem;
  align-items: start; margin: 1rem 0; }
.wide { grid-column: 1 / -1; }
.scroll { overflow-x: auto; min-width: 0; border: 1px solid var(--line); border-radius: .5rem;
  background: var(--card); }
table { border-collapse: collapse; width: 100%; font-size: .9375rem; }
caption { text-align: left; font-weight: 600; padding: .6rem .8rem; }
th, td { padding: .4rem .8rem; border-top: 1px solid var(--line); text-align: left; vertical-align: top; }
thead th { background: var(--head); font-size: .8125rem; color: var(--muted); white-space: nowrap; }
tbody th { font-weight: 400; }
.wide tbody th { min-width: 11rem; }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
td.text, td.code { overflow-wrap: break-word; max-width: 24rem; unicode-bidi: isolate; }
tbody th { overflow-wrap: anywhere; min-width: 8rem; unicode-bidi: isolate; }
code, td.code, th.code { font-family: ui-monospace, monospace; font-size: .875em; overflow-wrap: anywhere; }
td code { font-size: 1em; }
thead th.code { font-family: inherit; font-size: .8125rem; }
.under { color: var(--muted); font-size: .875rem; padding: .4rem .8rem; margin: 0; max-width: none;
  border-top: 1px solid var(--line); }
details summary { cursor: pointer; color: var(--accent); }
td details { min-width: 9rem; }
details ul { margin: .35rem 0; padding-left: 1.1rem; }
.finding { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .75rem 1rem;
  margin: .75rem 0; }
.finding p { margin: .35rem 0; }
.finding .count { font-variant-numeric: tabular-nums; }
svg { display: block; max-width: 100%; height: auto; }
figure { margin: 1rem 0; padding: .6rem .8rem; border: 1px solid var(--line); border-radius: .5rem;
  background: var(--card); }
figcaption { font-weight: 600; margin-bottom: .5rem; }
.bar { fill: var(--accent); } .track { fill: var(--line); } .span { fill: var(--accent-soft); }
.dot { fill: var(--accent); } .axis { stroke: var(--line); } .label { fill: var(--muted); font-size: 13px; }
.grid { stroke: var(--line); } .curve { fill: none; stroke-width: 2; }
.curve-0 { stroke: var(--accent); } .curve-1 { stroke: var(--good); stroke-dasharray: 6 3; }
.curve-2 { stroke: var(--note); stroke-dasharray: 2 3; }
.point-0 { fill: var(--accent); } .point-1 { fill: var(--good); } .point-2 { fill: var(--note); }
.legend { color: var(--muted); font-size: .875rem; margin: 0; }
.legend span { margin-right: 1rem; font-weight: 600; }
.key-0 { color: var(--accent); } .key-1 { color: var(--good); } .key-2 { color: var(--note); }
.mark line { stroke: var(--warning); stroke-dasharray: 3 3; } .mark text { fill: var(--warning); font-size: 12px; }
.error-mark line { stroke: var(--error); } .error-mark text { fill: var(--error); font-weight: 700; }
.rate svg { margin-left: auto; margin-top: .2rem; }
.rate small { color: var(--muted); }
@media (max-width: 40rem) {
  th, td { padding: .35rem .5rem; }
  .problems li { grid-template-columns: 1fr; gap: 0; }
}
@media print { .scroll { overflow: visible; } nav { display: none; } }
"""
_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>$title</title>
<style>$style</style>
</head>
<body>
$body
</body>
</html>
""")


def page(title: str, body: str) -> str:
    """A whole page.

    Args:
        title: Text.
        body: HTML.
    """
    return _PAGE.substitute(title=escape(title), style=_STYLE, body=body)


def table(found: Table) -> str:
    """A table that scrolls on a narrow screen; the first cell of a row is its head. Without rows: nothing."""
    if not found.rows:
        return ""
    kinds = [kind for _, kind in found.columns]
    head = "".join(f'<th scope="col" class="{kind}">{escape(name)}</th>' for name, kind in found.columns)
    body = "\n".join(f"<tr>{_row(row, kinds)}</tr>" for row in found.rows)
    note = f'<p class="under">{escape(found.note)}</p>' if found.note else ""
    caption = escape(found.caption)
    wide = " wide" if len(kinds) > _NARROW else ""
    # What can be scrolled must be reached by keyboard, and then it needs a name.
    return (
        f'<div class="scroll{wide}" tabindex="0" role="region" aria-label="{caption}">'
        f"<table>\n<caption>{caption}</caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>{note}</div>"
    )


def _row(row: Sequence[Cell], kinds: Sequence[ColumnKind]) -> str:
    cells = []
    for place, (cell, kind) in enumerate(zip(row, kinds, strict=True)):
        if place == 0:
            cells.append(f'<th scope="row" class="{kind}">{_cell(cell)}</th>')
        else:
            extra = " rate" if isinstance(cell, Rate) else ""
            cells.append(f'<td class="{kind}{extra}">{_cell(cell)}</td>')
    return "".join(cells)


def _cell(cell: Cell) -> str:
    if isinstance(cell, Rate):
        if cell.estimate is None:
            return "-"
        share, _, interval = percent(cell).partition(" ")
        return f"{share} <small>{interval}</small>{interval_bar(cell.estimate, cell.low, cell.high)}"
    if isinstance(cell, tuple):
        return examples(cell)
    return escape(cell)


def examples(lines: Sequence[str]) -> str:
    """Examples, closed at first where there are several."""
    if not lines:
        return ""
    if len(lines) == 1:
        return f"<code>{escape(lines[0])}</code>"
    items = "".join(f"<li><code>{escape(line)}</code></li>" for line in lines)
    return f"<details><summary>{len(lines)} examples</summary><ul>{items}</ul></details>"
