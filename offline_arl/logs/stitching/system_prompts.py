"""When two system prompts are of one agent: many change a little from call to call."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from offline_arl.trajectories.schema import Message
from offline_arl.trajectories.text_cache import cached_by_text

SystemTexts = tuple[str, ...]

_SAME_AGENT = 0.8  # share of the words that two prompts of one agent have in common at least
_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?|"
    r"Nov(?:ember)?|Dec(?:ember)?)\b\.?"
)
_WEEKDAY = r"(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?\b"
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?"
_TIMES = re.compile(
    rf"""
    \b(?:
      \d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}(?:[T ]{_CLOCK}\s?(?:Z|[+-]\d{{2}}:?\d{{2}})?)?     # 2025-03-03T10:15Z
    | \d{{1,2}}[-/.]\d{{1,2}}[-/.]\d{{2,4}}\b                                                # 03/03/2025
    | {_CLOCK}(?:\s?[AaPp]\.?[Mm]\b)?(?:\s(?:UTC|GMT)\b)?                                    # 10:15 AM
    | {_MONTH}(?:\s+\d{{1,2}}(?:st|nd|rd|th)?\b)?(?:,?\s+\d{{4}}\b)?                         # March 3, 2025
    | \d{{1,2}}(?:st|nd|rd|th)?\s+(?:of\s+)?{_MONTH}(?:,?\s+\d{{4}}\b)?                      # 3rd of March 2025
    | {_WEEKDAY}
    )
    """,
    re.VERBOSE,
)
_NUMBERS = re.compile(r"\b(?:[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}|\d{6,}(?:\.\d+)?)\b")


def leading_system_messages(messages: Sequence[Message]) -> int:
    """How many messages at the start are system prompts."""
    for index, message in enumerate(messages):
        if message.role not in ("system", "developer"):
            return index
    return len(messages)


def without_times(text: str) -> str:
    """A system prompt with dates and times taken out.

    >>> without_times("Today is Monday, March 3, 2025, 10:15 AM. You are agent 2.")
    'Today is , , . You are agent 2.'
    """
    return _TIMES.sub("", text)


@cached_by_text(entries=128)
def without_volatile(text: str) -> str:
    """A system prompt with dates, times, long numbers and UUIDs taken out: what may differ from call to call.

    >>> without_volatile("Request 1741003200 at 10:15 of agent 2.")
    'Request  at  of agent 2.'
    """
    return _NUMBERS.sub("", without_times(text))


def are_alike(texts: SystemTexts, others: SystemTexts) -> bool:
    """Whether the system prompts of two calls, of which one repeats the other's history, are of one agent.

    They are where most of the words are the same. A prompt that is missing from one of the calls was not logged.
    """
    if texts == others or not texts or not others:
        return True
    one, other = "\n".join(texts), "\n".join(others)
    start, end = common_ends(one, other)
    if start + end >= _SAME_AGENT * max(len(one), len(other)):
        return True
    if without_volatile(one) == without_volatile(other):
        return True
    words, other_words = Counter(one.split()), Counter(other.split())
    return (words & other_words).total() >= _SAME_AGENT * max(words.total(), other_words.total())


def common_ends(one: str, other: str) -> tuple[int, int]:
    """Lengths of the common start and, in what is left, of the common end of two texts.

    >>> common_ends("it is 10:15 now", "it is 9:15 now")
    (6, 7)
    """
    shorter = min(len(one), len(other))
    start = _longest(shorter, lambda low, high: one[low:high] == other[low:high])
    return start, _longest(
        shorter - start,
        lambda low, high: one[len(one) - high : len(one) - low] == other[len(other) - high : len(other) - low],
    )


def _longest(limit: int, is_common: Callable[[int, int], bool]) -> int:
    """The greatest length up to which two texts agree; each character is compared about once."""
    low, step = 0, limit
    while step:
        step = min(step, limit - low)
        if step and is_common(low, low + step):
            low += step
        else:
            step //= 2
    return low
