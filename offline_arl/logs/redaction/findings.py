"""What detectors give, and what they are given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from offline_arl.logs.redaction.config import Kind

# Characters before a value that may say what it is.
CONTEXT = 40


class Finding(NamedTuple):
    """Something to be replaced, in `text[start:end]`.

    `value` is its normal form: what is written in several ways (a phone number with and without blanks) has one.
    `label` starts the placeholder. It depends on the value alone, so that a value has one placeholder wherever it
    stands; what is secret because of its surroundings is labelled SECRET, whatever they are.
    """

    start: int
    end: int
    kind: str
    label: str
    value: str
    by_context: bool = False  # elsewhere the same value would not be recognized


class Detector(Protocol):
    """Finds one kind of value.

    Attributes:
        kind: What it finds.
        gate: Regular expression, of Python's `re` and of Rust's, that matches somewhere in every text where the
            detector finds something. It must hold for JSON text too, in which line ends and quotes are escaped.
    """

    kind: Kind
    gate: str

    def find(self, text: str, key: str) -> Iterator[Finding]:
        """What is in `text`; `key` is the JSON key that it stands under, or ""."""
        ...


def words(text: str) -> frozenset[str]:
    """The words of a text, for long lists of them."""
    return frozenset(text.split())


def words_before(text: str, start: int, key: str) -> str:
    """What stands before a value, in lower case; its key where the text begins with it."""
    before = text[max(0, start - CONTEXT) : start]
    return (f"{key} {before}" if key and start < CONTEXT else before).lower()
