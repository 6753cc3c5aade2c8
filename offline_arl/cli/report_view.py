"""Drawing the report about a store in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offline_arl.analysis.report_sections import sections
from offline_arl.analysis.report_tables import Cell, Table, examples, occurrences, percent, visible
from offline_arl.analysis.store_report import Rate, StoreReport

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {"error": "red", "warning": "yellow", "note": "blue"}
_EXAMPLES = 2


def draw(console: Console, report: StoreReport) -> None:
    """The summary, the findings and the tables that have rows."""
    from rich.text import Text

    console.print(Text(f"Trajectory store {visible(report.store)}", style="bold"))
    for problem in report.problems:
        console.print(Text.assemble((f"{problem.severity:<8}", _STYLES[problem.severity]), visible(problem.text)))
    if not report.problems:
        console.print(Text("nothing is wrong", style="green"))
    _draw_findings(console, report)
    for section in sections(report):
        console.print(Text(f"\n{section.title}", style="bold"))
        if section.lead:
            console.print(Text(section.lead, style="dim"))
        for table in section.tables:
            _draw_table(console, table)


def _draw_findings(console: Console, report: StoreReport) -> None:
    from rich.text import Text

    console.print(Text("\nFindings", style="bold"))
    for finding in report.findings:
        if finding.count:
            told = occurrences(finding)
            head = Text.assemble((finding.code, _STYLES[finding.severity]), f": {finding.what} ({told})")
            console.print(head)
            console.print(Text(f"  {finding.meaning}", style="dim"))
            for line in examples(finding.examples[:_EXAMPLES]):
                console.print(Text(f"  {line}"))
    missing = [finding.code for finding in report.findings if not finding.count]
    console.print(Text(f"looked for and not found: {', '.join(missing) or 'nothing'}", style="dim"))


def _draw_table(console: Console, table: Table) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as Drawn
    from rich.text import Text

    if not table.rows:
        return
    drawn = Drawn(box=SIMPLE_HEAD, title=Text(table.caption), title_justify="left", pad_edge=False)
    for name, kind in table.columns:
        is_number = kind == "number"
        drawn.add_column(name, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(_text(cell)) for cell in row))
    console.print(drawn)
    if table.note:
        console.print(Text(table.note, style="dim"))


def _text(cell: Cell) -> str:
    if isinstance(cell, Rate):
        return percent(cell)
    return "\n".join(cell[:_EXAMPLES]) if isinstance(cell, tuple) else cell
