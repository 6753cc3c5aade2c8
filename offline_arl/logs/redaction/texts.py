"""JSON text as a sequence of string literals, which can be changed without touching what lies between them.

Numbers, the order of keys, white space and whatever is wrong with the text stay as they are, to the byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

# A literal, or what there is of it at the end of the text; a colon makes it a key.
_LITERAL = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)(?:"(\s*:)?|\\?\Z)', re.DOTALL)
# The same for Rust's regular expressions, whole literals only, with what stands before each.
PIECE = r'(?s)[^"]*"(?:[^"\\]|\\.)*"(?:\s*:)?'
_ESCAPE = re.compile(r"(?<!\\)\\+(?:[nrtbf]|u00[01][0-9a-fA-F])")
# Lines of JSON within a text: JSON Lines, the events of a stream.
_JSON_LINE = re.compile(r"^(?:data:[ \t]?)?([\[{].*[\]}])[ \t]*\r?$", re.MULTILINE)


class Literal(NamedTuple):
    """A string literal of a JSON text, without its quotes."""

    start: int
    end: int
    body: str  # as it is written, with escapes
    key: str  # the last one before it, so that elements of lists have one; "" for keys


def literals(text: str) -> Iterator[Literal]:
    """The string literals of a JSON text, in order."""
    key = ""
    for match in _LITERAL.finditer(text):
        start, end = match.span(1)
        if match[2] is not None:
            key = match[1]
            yield Literal(start, end, key, "")
        else:
            yield Literal(start, end, match[1], key)


def body_of(piece: str) -> str:
    """What is between the quotes of a whole literal, whatever stands around it."""
    return piece[piece.index('"') + 1 : piece.rindex('"')]


def decoded(body: str) -> str:
    """The string that a literal stands for; as it is where it is no proper literal."""
    if "\\" not in body:
        return body
    try:
        value: str = json.loads(f'"{body}"', strict=False)
    except ValueError:
        return body
    return value


def encoded(value: str, *, like: str) -> str:
    """A literal for a string, without quotes, escaped in the way of another one."""
    return json.dumps(value, ensure_ascii=like.isascii())[1:-1]


def is_json(text: str) -> bool:
    """Whether a text is a JSON document."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return False
    return True


def json_spans(text: str) -> list[tuple[int, int]]:
    """Where a text holds JSON objects and lists with strings in them: as a whole, or line by line."""
    if '"' not in text:
        return []
    stripped = text.strip()
    if stripped[:1] in ("{", "[") and is_json(stripped):
        start = len(text) - len(text.lstrip())
        return [(start, start + len(stripped))]
    if len(stripped) > 1 and stripped[0] == stripped[-1] == '"' and "\\" in stripped and is_json(stripped):
        start = len(text) - len(text.lstrip())
        return [(start, start + len(stripped))]
    return [match.span(1) for match in _JSON_LINE.finditer(text) if '"' in match[1] and is_json(match[1])]


def without_escapes(text: str) -> str:
    r"""The text with escaped line ends and tabs as line ends, of the same length.

    Text that quotes JSON without being it holds `\nann@example.com`, where the address does not begin with n.
    """
    return _ESCAPE.sub(lambda match: "\n" * len(match[0]), text) if "\\" in text else text
