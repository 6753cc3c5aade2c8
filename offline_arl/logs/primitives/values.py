"""Reading parsed JSON whose shape nobody vouches for: a value of the wrong type is None, never an exception."""

from __future__ import annotations

from typing import Any

import msgspec

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.primitives.json_values import decode_json
from offline_arl.logs.records import explain


def json_type(value: object) -> str:
    """The JSON name of a value's type.

    >>> json_type({}), json_type([]), json_type(True), json_type(None), json_type(1.5)
    ('an object', 'a list', 'a boolean', 'null', 'a number')
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    names: dict[type, str] = {dict: "an object", list: "a list", str: "a string", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__)


def decode_object(raw: bytes) -> dict[str, Any]:
    """The JSON object of a raw record.

    Raises:
        RecordRefusedError: It is not JSON, or not an object.
    """
    try:
        value = decode_json(raw)
    except msgspec.DecodeError as error:
        raise RecordRefusedError(explain(raw, error)) from error
    except RecursionError as error:
        raise RecordRefusedError("JSON is nested too deeply") from error
    if not isinstance(value, dict):
        raise RecordRefusedError(f"expected an object, got {json_type(value)}")
    return value


def json_text(value: object) -> str:
    """The compact JSON text of a value.

    Raises:
        RecordRefusedError: JSON readers do not agree on it (an integer of more than 64 bits).
    """
    try:
        return msgspec.json.encode(value).decode()
    except (OverflowError, UnicodeEncodeError, RecursionError) as error:
        raise RecordRefusedError(f"a value cannot be written as JSON: {error}") from error


def as_text(value: object) -> str | None:
    """A string, or None for any other value."""
    return value if isinstance(value, str) else None


def as_count(value: object) -> int | None:
    """A whole number that is not negative, or None for any other value."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def as_object(value: object) -> dict[str, Any]:
    """An object, or an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """A list, or an empty one for any other value."""
    return value if isinstance(value, list) else []


def take_text(fields: dict[str, Any], key: str) -> str | None:
    """Take a string out of an object; a value of another type stays there, null and missing are None."""
    value = fields.get(key)
    if value is None or isinstance(value, str):
        fields.pop(key, None)
        return value
    return None
