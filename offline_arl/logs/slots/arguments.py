"""How arguments of calls are spelled: formats that hold them as objects lose the text that the model wrote."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec


def _compact(value: dict[str, Any]) -> str:
    return msgspec.json.encode(value).decode()


def _spaced(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False)


def _spaced_ascii(value: dict[str, Any]) -> str:
    return json.dumps(value)


def _compact_ascii(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))


def _indented(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


# The usual ones: those of Python's and JavaScript's libraries. Any other spelling is kept as it is, call by call.
STYLES: Mapping[str, Callable[[dict[str, Any]], str]] = {
    "compact": _compact,
    "spaced": _spaced,
    "spaced_ascii": _spaced_ascii,
    "compact_ascii": _compact_ascii,
    "indented": _indented,
}
