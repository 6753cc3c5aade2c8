"""Broken copies of log files: bytes flipped, files cut, and JSON values replaced by what no format expects."""

from __future__ import annotations

import copy
import io
import json
import random
import zipfile
from collections.abc import Callable
from typing import Any

Mutation = Callable[[bytes, random.Random], bytes]

DEPTH = 10_000
_DEEP = object()
# What a value may turn into. NaN and lone surrogates are no JSON by the standard, and real logs hold both.
JUNK: list[Any] = [
    None, True, False, 0, -1, 3.5, 10**20, -(10**30), 1e308, float("nan"), float("inf"), "", " ", "text", "null", "{}",
    "[", "\ud800", "\x00", "9" * 400, [], {}, [[]], [None], [{}], {"": None}, {"role": "assistant"}, {"type": "text"},
    {"content": {"content": []}}, [{"type": "tool_use"}], [{"function": None}], "x" * 100_000, _DEEP,
]  # fmt: skip


def flip_bytes(data: bytes, rng: random.Random) -> bytes:
    """A few bytes become others."""
    broken = bytearray(data)
    for _ in range(rng.choice([1, 3, 30])):
        broken[rng.randrange(len(broken))] = rng.randrange(256)
    return bytes(broken)


def truncate(data: bytes, rng: random.Random) -> bytes:
    """The file ends early, maybe at once."""
    return data[: rng.randrange(len(data))]


def remove_middle(data: bytes, rng: random.Random) -> bytes:
    """A stretch is missing."""
    start = rng.randrange(len(data))
    return data[:start] + data[start + rng.randrange(1, 2000) :]


def shuffle_lines(data: bytes, rng: random.Random) -> bytes:
    """Lines are repeated, lost and out of order."""
    lines = data.split(b"\n")
    return b"\n".join(rng.choices(lines, k=len(lines)))


def replace_values(data: bytes, rng: random.Random) -> bytes:
    """Values of the JSON are replaced by junk, keys are lost or renamed."""
    return _structural(data, rng, _replace)


def nest_deeply(data: bytes, rng: random.Random) -> bytes:
    """One value becomes a list nested 10,000 deep."""
    return _structural(data, rng, lambda document, random: _put(document, random, _DEEP))


def break_archive(data: bytes, rng: random.Random) -> bytes:
    """A zip archive with hostile members: `../` names, absolute names, bombs, members that are no JSON."""
    source = zipfile.ZipFile(io.BytesIO(data))
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in source.namelist():
            content = source.read(name)
            if rng.random() < 0.3:
                content = rng.choice([flip_bytes, truncate, replace_values])(content or b" ", rng)
            if rng.random() < 0.2:
                name = rng.choice(["../" * 8 + name, "/" + name, name + "\x00", "samples/../../" + name, name * 20])
            archive.writestr(name, content)
        if rng.random() < 0.3:
            archive.writestr("samples/bomb_epoch_1.json", b'{"a": "' + b"0" * 50_000_000 + b'"}')
    return target.getvalue()


def mutations_of(data: bytes) -> list[Mutation]:
    """The mutations that fit a file."""
    if data.startswith(b"PK"):
        return [break_archive, flip_bytes, truncate, remove_middle]
    found: list[Mutation] = [flip_bytes, truncate, remove_middle, shuffle_lines]
    if data.lstrip()[:1] in (b"{", b"["):
        # Most of the faults are found by values of the wrong kind in the right place.
        found += [replace_values] * 5 + [nest_deeply]
    return found


def _structural(data: bytes, rng: random.Random, change: Callable[[Any, random.Random], Any]) -> bytes:
    text = data.decode("utf-8", "surrogateescape")
    try:
        return _dump(change(json.loads(text), rng))
    except ValueError:
        pass
    lines = text.split("\n")
    filled = [index for index, line in enumerate(lines) if line.strip()]
    for index in rng.sample(filled, k=min(len(filled), rng.choice([1, 1, 3, len(filled)]))):
        try:
            lines[index] = _dump(change(json.loads(lines[index]), rng)).decode("utf-8", "surrogatepass")
        except ValueError:
            continue
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _replace(document: Any, rng: random.Random) -> Any:
    for _ in range(rng.choice([1, 1, 2, 5])):
        junk = rng.choice(JUNK)
        document = _put(document, rng, junk if junk is _DEEP else copy.deepcopy(junk))
    return document


def _put(document: Any, rng: random.Random, junk: Any) -> Any:
    """Put `junk` at a random place (or, now and then, take the key away); deeper places are as likely as high ones."""
    parents = [(None, None)] if not isinstance(document, (dict, list)) or rng.random() < 0.02 else []
    stack = [document]
    places: list[tuple[Any, Any]] = list(parents)
    while stack:
        node = stack.pop()
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, value in items:
            places.append((node, key))
            if isinstance(value, (dict, list)):
                stack.append(value)
    if not places:
        return junk
    parent, key = rng.choice(places)
    if parent is None:
        return junk
    if isinstance(parent, dict) and rng.random() < 0.15:
        value = parent.pop(key)
        if rng.random() < 0.5:
            parent[rng.choice(["role", "type", "content", "id", "messages", "x"])] = value
    else:
        parent[key] = junk
    return document


def _dump(document: Any) -> bytes:
    text = json.dumps(document, default=lambda value: "@deep@" if value is _DEEP else str(value), ensure_ascii=False)
    text = text.replace('"@deep@"', "[" * DEPTH + "]" * DEPTH)
    return text.encode("utf-8", "surrogatepass")
