"""Decoding JSON as some Python programs write it: with NaN, Infinity and numbers beyond any limit.

Such a number is not JSON, and a store could not give it back. It becomes its own text ("NaN", "1e999"), which loses
nothing and can be mistaken for no number.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import msgspec

_BEYOND = re.compile(rb"NaN|Infinity|[0-9][eE]\+?[0-9]{3}|[0-9]{309}")


def decode_json(raw: bytes) -> Any:
    """Decode `raw`; numbers that JSON cannot hold come as text.

    >>> decode_json(b'{"score": NaN, "limit": 1e999, "id": 12345678901234567890}')
    {'score': 'NaN', 'limit': '1e999', 'id': 12345678901234567890}

    Raises:
        msgspec.DecodeError: It is not JSON for other reasons too.
        RecursionError: It is nested too deeply.
    """
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        if not _BEYOND.search(raw):
            raise
        try:
            value = json.loads(raw, parse_constant=str, parse_float=_float, parse_int=_int)
            msgspec.json.encode(value)  # refuses lone surrogates, as msgspec does in decoding
        except ValueError:
            raise error from None
        return value


def _float(text: str) -> float | str:
    value = float(text)
    return value if math.isfinite(value) else text


def _int(text: str) -> int | str:
    # Python itself refuses to convert more than 4,300 digits, msgspec more than 309.
    return int(text) if len(text) <= 308 else text
