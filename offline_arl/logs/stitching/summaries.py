"""Messages that stand for a history that was compacted."""

from __future__ import annotations

import re
from collections.abc import Iterable

_HEAD = 600  # characters in which a summary tells what it is
_LONG_LINE = 40  # characters of a line that is not in another text by chance
_SHORT_LINE = 20  # the same, of a summary without longer lines
_SAYS_SO = re.compile(
    r"""
      \bcontinued\ from\ a\ previous\ (?:conversation|session|chat)
    | \b(?:conversation|context|history|(?:earlier|previous)\ (?:messages|turns)|so\ far)\b[^.\n]{0,40}
      \b(?:summar(?:y|ized|ised)|compacted|compressed|condensed)\b
    | \bsummary\ (?:of|for)\b[^.\n]{0,40}\b(?:conversation|context|history|earlier|previous|so\ far|work)\b
    | \banother\ language\ model\ started\b
    | <(?:[a-z]+_)?summary> | <state_snapshot>
    """,
    re.IGNORECASE | re.VERBOSE,
)
_ASKS_FOR_ONE = re.compile(
    r"\b(?:write|create|generate|provide|produce|make|give)\b[^.\n]{0,60}\bsummary\b", re.IGNORECASE
)


def says_it_is_a_summary(text: str) -> bool:
    """Whether a message calls itself a summary of a conversation, and does not ask for one."""
    head = text[:_HEAD]
    return _SAYS_SO.search(head) is not None and _ASKS_FOR_ONE.search(head) is None


class Summaries:
    """Answers of calls that were asked for a summary, to be found in the messages that carry them on."""

    def __init__(self, answers: Iterable[str]) -> None:
        self._lines = [lines for answer in answers if (lines := _long_lines(answer))]

    def are_in(self, text: str) -> bool:
        """Whether a text holds one of the summaries: half of its long lines at least (a harness may cut out parts)."""
        return any(2 * sum(line in text for line in lines) >= len(lines) for lines in self._lines)


def _long_lines(text: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if len(line) >= _LONG_LINE] or [
        line for line in lines if len(line) >= _LONG_LINE // 2
    ]
