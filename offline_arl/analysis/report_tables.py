"""Tables and how values are written in them, for reports that a page and a terminal both draw."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from offline_arl.analysis.store_report import Example, Finding, Rate, TopList

Cell = str | Rate | tuple[str, ...]  # a tuple: examples, of which a narrow table may show the first few only
ColumnKind = Literal["text", "code", "number"]
NONE = "(none)"  # what has no name
_HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


@dataclass(frozen=True)
class Table:
    """A table. `columns` are names and kinds; `note` is a line below it."""

    caption: str
    columns: tuple[tuple[str, ColumnKind], ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the report. `name` is short and stable, for links."""

    name: str
    title: str
    lead: str
    tables: tuple[Table, ...]


def visible(text: str) -> str:
    r"""Text from a log, made safe to show: what moves the cursor or turns the direction of text is replaced.

    >>> visible("a\x1b[31mb\nc")
    'a\ufffd[31mb c'
    """
    return _HIDDEN.sub(lambda found: " " if found[0] in "\n\t\r" else "\ufffd", text)


def number(value: float | None) -> str:
    """A number for people: thousands have commas, other fractions four digits.

    >>> number(12345), number(0.123456), number(None), number(3.0)
    ('12,345', '0.1235', '-', '3')
    """
    if value is None:
        return "-"
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.4g}"


def percent(rate: Rate) -> str:
    """A share with its interval, in percent."""
    if rate.estimate is None:
        return "-"
    return f"{rate.estimate:.1%} [{rate.low:.1%}, {rate.high:.1%}]"


def examples(found: Sequence[Example]) -> tuple[str, ...]:
    """Examples as one line each."""
    lines = []
    for example in found:
        parts = [part for part in (example.trajectory_id, example.where) if part]
        head = " ".join([*parts, f"({example.place})" if parts and example.place else example.place])
        lines.append(visible(f"{head}: {example.text}" if head else example.text))
    return tuple(lines)


def occurrences(finding: Finding) -> str:
    """How often something was found."""
    if finding.severity == "error":
        return f"{finding.count:,} refused"
    rows = counted(finding.trajectories, "trajectory", "trajectories")
    return f"{finding.count:,} in {rows}, {finding.share:.1%} of all"


def top_table(caption: str, name: str, found: TopList, of: int) -> Table:
    """The most frequent values of something, those without one, and a note about the others.

    Args:
        caption: Of the table.
        name: Of the column of values.
        found: The values.
        of: What the shares are of.
    """
    rows = [(visible(row.name), number(row.count), share(row.count, of)) for row in found.rows]
    if found.missing:
        rows.append((NONE, number(found.missing), share(found.missing, of)))
    more = found.distinct - len(found.rows)
    note = f"and {counted(more, 'more')} with {counted(found.others, 'trajectory', 'trajectories')}" if more else ""
    return Table(caption, ((name, "text"), ("trajectories", "number"), ("share", "number")), tuple(rows), note)


def share(count: int, of: int) -> str:
    """A share in percent; a dash where there is nothing to have one of."""
    return f"{count / of:.1%}" if of else "-"


def counted(count: int, one: str, many: str | None = None) -> str:
    """A number of things, in words.

    >>> counted(1, "trajectory", "trajectories"), counted(1200, "call")
    ('1 trajectory', '1,200 calls')
    """
    plural = many or (one if one == "more" else one + "s")
    return f"{count:,} {one if count == 1 else plural}"
