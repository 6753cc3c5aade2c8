"""JSON from the values that tables and arrays hold."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

import msgspec

_MEDIA_TYPES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"RIFF": "image/webp",
}
_encoder = msgspec.json.Encoder(decimal_format="number")


def encode(value: object) -> bytes:
    """The JSON of a value made by `plain`."""
    return _encoder.encode(value)


def plain(value: object, *, nested: bool = False) -> Any:
    """Replace what JSON does not have: bytes, NaN, tuples of a map, keys that are not strings.

    NaN and infinities become their names, as `logs.json_values` has them.

    A null inside a struct is dropped: a table gives every struct the keys of all the others, so that there it only
    says that this struct had no such key. A null in a column of the table itself stays.
    """
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): plain(item, nested=True) for key, item in value.items() if item is not None or not nested}
    if isinstance(value, (list, tuple)):
        if value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
            return {text_of(key): plain(item, nested=True) for key, item in value}  # an Arrow map
        return [plain(item, nested=True) for item in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return text_of(bytes(value))
    return value  # dates, times, decimals: the encoder knows them


def text_of(value: object) -> str:
    """The text of a string, of UTF-8 bytes, or a data URI of other bytes."""
    if isinstance(value, str):
        return value
    if not isinstance(value, bytes):
        return str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        media = next((name for magic, name in _MEDIA_TYPES.items() if value.startswith(magic)), None)
        return f"data:{media or 'application/octet-stream'};base64,{base64.b64encode(value).decode()}"
