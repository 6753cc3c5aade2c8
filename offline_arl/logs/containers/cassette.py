"""HTTP cassettes (vcrpy and pytest-recording, Ruby's VCR, betamax), YAML or JSON: one interaction a record.

YAML is read event by event: interactions come one at a time, whatever the size of the file, and none of YAML's
object building happens. Only text, null, true, false and small integers are told apart; bytes (`!!binary`) become
`{"base64_string": ...}`, as JSON cassettes have them.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from itertools import islice
from typing import Any, BinaryIO, NamedTuple, cast

import msgspec
import yaml

from offline_arl.errors import DataError
from offline_arl.logs.adapter import RawRecord
from offline_arl.logs.records import MAX_RECORD_BYTES, LogFile

MAX_DEPTH = 200
# Aliases may repeat what was read before, but not many times over: nested ones grow without bound.
MAX_ALIAS_RATIO = 16
FREE_ALIAS_BYTES = 16 * 2**20
_KEYS = ("interactions", "http_interactions")
_GZIP = b"\x1f\x8b"
_YAML_START = re.compile(rb"^(http_)?interactions:[ \t]*(#.*)?\r?$", re.MULTILINE)
_JSON_START = re.compile(rb'\s*\{[^\[{]*"(http_)?interactions"\s*:\s*\[\s*(\{|\])')
_SMALL_INTEGER = re.compile(r"[-+]?[0-9]{1,15}")
_CONSTANTS = {"": None, "~": None, "null": None, "Null": None, "NULL": None, "true": True, "false": False}
_BINARY_TAG = "tag:yaml.org,2002:binary"
_PROBLEM_BYTES = 1 << 16
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _CassetteError(Exception):
    """The cassette cannot be read further; the text says why."""


class _Built(NamedTuple):
    value: Any
    size: int  # characters that the value would take, aliases written out


def matches(head: bytes, name: str) -> bool:
    """Whether a file starts as a cassette does: a list of interactions, in YAML or JSON."""
    if head.startswith(_GZIP):
        try:
            head = zlib.decompressobj(wbits=31).decompress(head, 1 << 12)
        except zlib.error:
            return False
    return _JSON_START.match(head) is not None or _YAML_START.search(head) is not None


def read(file: LogFile) -> Iterator[RawRecord]:
    """Yield the interactions in order. What follows after a fault in the file becomes one record with a problem.

    Raises:
        DataError: The file cannot be opened.
    """
    with _opened(file) as stream:
        is_json = stream.peek(1)[:1] in (b"{", b"\xef", b" ", b"\n", b"\r", b"\t") and _is_json(stream)
        if is_json:
            yield from _json_records(file, stream)
            return
        position, cassette = 0, _YamlCassette(cast(BinaryIO, stream))
        try:
            for value in cassette.interactions():
                raw = msgspec.json.encode(value)
                yield RawRecord(file.shown, file.label, position, raw, line=cassette.line)
                position += 1
            problem = None if position else "the cassette holds no interaction"
        except (_CassetteError, yaml.YAMLError, OSError, EOFError, zlib.error, ValueError) as error:
            problem = f"the cassette cannot be read further: {_reason(error)}"
    if problem is not None:
        yield RawRecord(file.shown, file.label, position, _rest(file, cassette.line), problem=problem)


def _opened(file: LogFile) -> io.BufferedReader:
    try:
        stream = file.path.open("rb")
    except OSError as error:
        raise DataError(f"{file.shown}: cannot be read: {error.strerror or error}") from error
    if stream.peek(2)[:2] != _GZIP:
        return stream
    return io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=stream)))


def _is_json(stream: io.BufferedReader) -> bool:
    try:
        return _JSON_START.match(stream.peek(1 << 12).removeprefix(b"\xef\xbb\xbf")) is not None
    except (OSError, EOFError, zlib.error):
        return False


def _reason(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark
        return f"{error.problem}" + (f" in line {mark.line + 1}" if mark is not None else "")
    if isinstance(error, yaml.reader.ReaderError):
        return f"{error.reason} at byte {error.position}"
    return " ".join(str(error).split())


def _rest(file: LogFile, line: int) -> bytes:
    """What the file has from line `line` on, up to a limit."""
    try:
        with _opened(file) as stream:
            lines = islice(stream, line - 1, None)
            rest, size = [], 0
            for text in lines:
                rest.append(text)
                size += len(text)
                if size >= _PROBLEM_BYTES:
                    break
    except (OSError, EOFError, zlib.error):
        return b""
    return b"".join(rest)[:_PROBLEM_BYTES]


def _json_records(file: LogFile, stream: io.BufferedReader) -> Iterator[RawRecord]:
    try:
        data = stream.read()
    except (OSError, EOFError, zlib.error) as error:
        yield RawRecord(file.shown, file.label, 0, b"", problem=f"the cassette cannot be read: {error}")
        return
    try:
        fields = msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf"), type=dict[str, msgspec.Raw])
        key = next(key for key in _KEYS if key in fields)
        interactions = msgspec.json.decode(fields[key], type=list[msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as error:
        yield RawRecord(file.shown, file.label, 0, data, problem=f"invalid JSON: {error}")
        return
    if not interactions:
        yield RawRecord(file.shown, file.label, 0, data, problem="the cassette holds no interaction")
    for position, interaction in enumerate(interactions):
        yield RawRecord(file.shown, file.label, position, bytes(interaction))


class _YamlCassette:
    """The interactions of a YAML cassette; `line` is where the last one that was begun starts."""

    def __init__(self, stream: BinaryIO) -> None:
        self.line = 1
        self._events = iter(yaml.parse(stream, Loader=_Loader))
        self._builder = _Builder(self._events)

    def interactions(self) -> Iterator[Any]:
        for event in self._events:
            if isinstance(event, yaml.MappingStartEvent):
                break
            if not isinstance(event, (yaml.StreamStartEvent, yaml.DocumentStartEvent)):
                raise _CassetteError("it does not start with keys")
        for event in self._events:
            if isinstance(event, yaml.MappingEndEvent):
                return
            key = self._builder.build(event).value
            event = next(self._events)
            if key in _KEYS and isinstance(event, yaml.SequenceStartEvent):
                yield from self._items()
            else:
                self._builder.build(event)

    def _items(self) -> Iterator[Any]:
        for event in self._events:
            if isinstance(event, yaml.SequenceEndEvent):
                return
            if event.start_mark is not None:
                self.line = event.start_mark.line + 1
            yield self._builder.build(event).value


class _Builder:
    """Builds values from YAML events, without recursion and with limits."""

    def __init__(self, events: Iterator[yaml.Event]) -> None:
        self._events = events
        self._anchors: dict[str, _Built] = {}
        self._plain_size = 0
        self._alias_size = 0

    def build(self, event: yaml.Event) -> _Built:
        """The value that starts with `event`; the events of the value are taken from the iterator."""
        open_nodes: list[_Node] = []
        while True:
            if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
                if len(open_nodes) >= MAX_DEPTH:
                    raise _CassetteError(f"it is nested more than {MAX_DEPTH} deep")
                open_nodes.append(_Node(isinstance(event, yaml.MappingStartEvent), event.anchor))
                event = next(self._events)
                continue
            if isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
                node = open_nodes.pop()
                built, anchor = node.built(), node.anchor
            else:
                built, anchor = self._leaf(event), getattr(event, "anchor", None)
            if anchor is not None and not isinstance(event, yaml.AliasEvent):
                self._anchors[anchor] = built
            if not open_nodes:
                return built
            open_nodes[-1].add(built)
            if open_nodes[-1].size > MAX_RECORD_BYTES:
                raise _CassetteError(f"an interaction is larger than {MAX_RECORD_BYTES} bytes")
            event = next(self._events)

    def _leaf(self, event: yaml.Event) -> _Built:
        if isinstance(event, yaml.ScalarEvent):
            self._plain_size += len(event.value) + 1
            return _Built(_scalar(event), len(event.value) + 1)
        if not isinstance(event, yaml.AliasEvent):
            raise _CassetteError("it ends too early")
        built = self._anchors.get(str(event.anchor))
        if built is None:
            raise _CassetteError(f"the alias *{event.anchor} means nothing, or a value that holds itself")
        self._alias_size += built.size
        if self._alias_size > max(FREE_ALIAS_BYTES, MAX_ALIAS_RATIO * self._plain_size):
            raise _CassetteError("its aliases stand for far more text than the file has")
        return built


class _Node:
    """A mapping or list in the making."""

    def __init__(self, is_mapping: bool, anchor: str | None) -> None:
        self.anchor = anchor
        self.size = 1
        self._is_mapping = is_mapping
        self._items: list[Any] = []

    def add(self, built: _Built) -> None:
        self.size += built.size
        if self._is_mapping and len(self._items) % 2 == 0 and isinstance(built.value, (dict, list)):
            raise _CassetteError("a key is not text")
        self._items.append(built.value)

    def built(self) -> _Built:
        if not self._is_mapping:
            return _Built(self._items, self.size)
        keys = ("null" if key is None else str(key) for key in self._items[::2])
        return _Built(dict(zip(keys, self._items[1::2], strict=True)), self.size)


def _scalar(event: yaml.ScalarEvent) -> Any:
    text: str = event.value
    if event.tag == _BINARY_TAG:
        return {"base64_string": "".join(text.split())}
    if not event.implicit[0] or event.style:
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    return int(text) if _SMALL_INTEGER.fullmatch(text) else text
