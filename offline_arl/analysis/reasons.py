"""Grouping thousands of reasons that differ in names and numbers only."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from offline_arl.analysis.store_report import Example, Reason, Reasons
from offline_arl.trajectories.validate import CODES

EXAMPLES = 5
_MAX_GROUPS = 10_000  # what is held in memory, however many reasons there are
_OTHER = "other reasons"
_FORMATS_KEPT = 5
_TEXT_LIMIT = 300

_REPLACEMENTS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\s+", " "),
        (r'"(?:[^"\\]|\\.)*"', '"…"'),
        (r"(?<!\w)'(?:[^'\\]|\\.)*'(?!\w)", "'…'"),
        (r"`[^`]*`", "`…`"),
        (r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b", "ID"),
        (r"\b(?=[0-9a-fA-F]*\d)(?=\d*[a-fA-F])[0-9a-fA-F]{8,}\b", "ID"),
        (r"(?<![\w./-])(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[\w-]{12,}(?![\w./-])", "ID"),
        (r"(?:[A-Za-z]:)?(?<![\w/])(?:/|\.{1,2}/|~/)[^\s:;,()\[\]]+", "PATH"),
        (r"(?:[\w.+-]+/)*[\w+-]+\.(?:jsonl?|ndjson|gz|zst|zip|ya?ml|parquet|arrow|hdf5|h5|eval|txt|md|traj)\b", "PATH"),
        (r"(?<!\w)-?\d+(?:[.,_]\d+)*(?:[eE][+-]?\d+)?(?!\w)", "N"),
    )
)
_CODE = re.compile(r"\((\w+)\)$")


def normalized(reason: str) -> str:
    """A reason without the names, paths, ids and numbers in it.

    >>> normalized("messages[3].content[0]: expected a text, got 17 (at byte 4,093)")
    'messages[N].content[N]: expected a text, got N (at byte N)'
    >>> normalized("no tool named 'find_order' in logs/2026/a.jsonl; it isn't in 'tools'")
    "no tool named '…' in PATH; it isn't in '…'"
    >>> normalized("the call chatcmpl-CQF10eCkoFphJZJQ is logged again")
    'the call ID is logged again'
    """
    text = reason[: 4 * _TEXT_LIMIT]
    for pattern, replacement in _REPLACEMENTS:
        text = pattern.sub(replacement, text)
    text = text.strip()
    return text if len(text) <= _TEXT_LIMIT else f"{text[:_TEXT_LIMIT]}…"


def code_of(reason: str) -> str | None:
    """The code of validation that a refusal ends with, or None."""
    found = _CODE.search(reason)
    return found[1] if found is not None and found[1] in CODES else None


@dataclass
class _Group:
    code: str | None
    count: int = 0
    formats: dict[str, None] = field(default_factory=dict)
    examples: list[Example] = field(default_factory=list)


class ReasonGroups:
    """Counts reasons by what they have in common, with the first few of each as examples."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._count = 0

    def add(self, reason: str, format: str | None, examples: list[Example], count: int = 1) -> None:
        """Count `count` records of one reason, of which some are given as examples."""
        name = normalized(reason)
        group = self._groups.get(name)
        if group is None:
            if len(self._groups) >= _MAX_GROUPS:
                name = _OTHER
            group = self._groups.setdefault(name, _Group(None if name == _OTHER else code_of(reason)))
        group.count += count
        self._count += count
        if len(group.formats) < _FORMATS_KEPT:
            group.formats[format or "unknown"] = None
        group.examples.extend(examples[: EXAMPLES - len(group.examples)])

    def of_code(self, code: str) -> tuple[int, list[Example]]:
        """How many records have reasons of this code, with examples."""
        groups = [group for group in self._groups.values() if group.code == code]
        examples = [example for group in groups for example in group.examples]
        return sum(group.count for group in groups), examples[:EXAMPLES]

    def top(self, limit: int) -> Reasons:
        """The most frequent reasons."""
        ordered = sorted(self._groups.items(), key=lambda item: (-item[1].count, item[0]))
        rows = tuple(
            Reason(name, group.code, group.count, tuple(sorted(group.formats)), tuple(group.examples))
            for name, group in ordered[:limit]
        )
        return Reasons(self._count, rows, len(ordered) - len(rows), self._count - sum(row.count for row in rows))
