"""Caches whose memory is bounded although their keys, texts from logs, may be of any size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache, wraps
from threading import Lock
from typing import Any, Generic, TypeVar, cast

Text = TypeVar("Text", bound=str | bytes | None)
Result = TypeVar("Result")

_SHORT = 8_192
_LONG_CHARACTERS = 4 * 2**20


def cached_by_text(*, entries: int) -> Callable[[Callable[[Text], Result]], Callable[[Text], Result]]:
    """Keep the results of a function of one text: those of `entries` short ones, and of some megabytes of long ones.

    >>> @cached_by_text(entries=8)
    ... def length(text: str) -> int:
    ...     print("called")
    ...     return len(text)
    >>> length("abc"), length("abc")
    called
    (3, 3)
    """

    def decorate(function: Callable[[Text], Result]) -> Callable[[Text], Result]:
        short = cast("Callable[[Text], Result]", lru_cache(maxsize=entries)(function))
        long = _LongTexts(function)

        @wraps(function)
        def look_up(text: Text) -> Result:
            return short(text) if text is None or len(text) <= _SHORT else long(text)

        return look_up

    return decorate


class _LongTexts(Generic[Result]):
    """The latest results by text, as many as their texts are no longer than a limit together, and one at least."""

    def __init__(self, function: Callable[[Any], Result]) -> None:
        self._function = function
        self._results: OrderedDict[str | bytes, Result] = OrderedDict()
        self._characters = 0
        self._lock = Lock()

    def __call__(self, text: str | bytes) -> Result:
        with self._lock:
            if text in self._results:
                self._results.move_to_end(text)
                return self._results[text]
        result = self._function(text)
        with self._lock:
            if text not in self._results:
                self._characters += len(text)
            self._results[text] = result
            while self._characters > _LONG_CHARACTERS and len(self._results) > 1:
                oldest, _ = self._results.popitem(last=False)
                self._characters -= len(oldest)
        return result
