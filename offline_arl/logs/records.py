"""Cutting log files into raw records: JSON Lines, JSON arrays and single JSON documents, gzip or plain.

JSON Lines are read line by line with bounded memory. A JSON array or document has to be read whole; its elements
are cut out without being built as Python objects.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, cast

import msgspec

from offline_arl.errors import DataError
from offline_arl.logs.adapter import RawRecord

MAX_RECORD_BYTES = 256 * 2**20
_PROBE_LINES = 20
_BOM = b"\xef\xbb\xbf"

Layout = Literal["lines", "document"]


@dataclass(frozen=True)
class LogFile:
    """A file to read. `shown` is its path as the user gave it, `label` relative to the source that was named."""

    path: Path
    shown: str
    label: str


def read_records(file: LogFile, *, max_record_bytes: int = MAX_RECORD_BYTES) -> Iterator[RawRecord]:
    """Yield the records of a file in order. Blank lines are not records.

    Whatever is wrong with the file becomes a record with a `problem`: an empty file, a compressed stream that
    ends early (after the records before it), an array that is cut off (after its whole elements).

    Raises:
        DataError: The file cannot be opened.
    """
    try:
        stream = _open(file.path)
    except OSError as error:
        raise DataError(f"{file.shown}: cannot be read: {error.strerror or error}") from error
    with stream:
        count = 0
        try:
            blank_lines, first = _skip_blank(stream, max_record_bytes)
            if not first:
                yield RawRecord(file.shown, file.label, 0, b"", problem="the file is empty")
                return
            rewound = _Rewound(blank_lines, first, stream)
            if _layout(rewound) == "lines":
                records = _lines(file, rewound, max_record_bytes)
            else:
                records = _document(file, rewound.read())
            for record in records:
                count += 1
                yield record
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            problem = f"the compressed stream is damaged after record {count}: {error}"
            yield RawRecord(file.shown, file.label, count, b"", problem=problem)
        except OSError as error:
            problem = f"the file cannot be read after record {count}: {error.strerror or error}"
            yield RawRecord(file.shown, file.label, count, b"", problem=problem)


def parse(raw: bytes) -> object:
    """Parse a raw record as JSON.

    Raises:
        ValueError: It is not JSON; the message says why.
    """
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        raise ValueError(explain(raw, error)) from error
    except RecursionError as error:
        raise ValueError("JSON is nested too deeply") from error


def explain(raw: bytes, error: Exception) -> str:
    """A short reason why `raw` does not decode."""
    try:
        raw.decode()
    except UnicodeDecodeError as problem:
        return f"not UTF-8: byte 0x{raw[problem.start]:02x} at byte {problem.start + 1} of the record"
    if isinstance(error, msgspec.ValidationError):
        return str(error)
    return f"invalid JSON: {error}"


class _Rewound:
    """A stream of lines whose first lines were looked at already."""

    def __init__(self, blank_lines: int, first: bytes, stream: BinaryIO) -> None:
        self.blank_lines = blank_lines
        self.seen: list[bytes] = [first]
        self.stream = stream

    def peek(self, count: int, limit: int) -> list[bytes]:
        while len(self.seen) < count:
            line = self.stream.readline(limit)
            if not line:
                break
            self.seen.append(line)
        return self.seen

    def read(self) -> bytes:
        return b"".join([*self.seen, self.stream.read()])


def _open(path: Path) -> BinaryIO:
    stream = path.open("rb")
    if stream.peek(2)[:2] == b"\x1f\x8b":
        return cast(BinaryIO, io.BufferedReader(gzip.GzipFile(fileobj=stream), 1 << 20))
    return stream


def _skip_blank(stream: BinaryIO, limit: int) -> tuple[int, bytes]:
    """The number of blank lines at the start and the first other line; b"" at the end of the file."""
    count = 0
    while line := stream.readline(limit):
        if count == 0 and line.startswith(_BOM):
            line = line[len(_BOM) :]
        if line.strip():
            return count, line
        count += 1
    return count, b""


def _layout(lines: _Rewound) -> Layout:
    """Tell JSON Lines from a document that happens to span lines.

    A line that is a whole non-empty JSON object (and is not indented) only occurs in JSON Lines; so does a whole
    value that is followed by another line.
    """
    first = lines.seen[0]
    if _is_json(first):
        is_object = first.lstrip()[:1] == b"{"
        if is_object or any(line.strip() for line in lines.peek(2, 1 << 16)[1:]):
            return "lines"
        return "document"
    if first.lstrip()[:1] not in (b"{", b"["):
        return "lines"
    for line in lines.peek(_PROBE_LINES, 1 << 20)[1:]:
        if line[:2] in (b'{"', b"{ ") and _is_json(line):
            return "lines"
    # A file of one broken line of JSON Lines looks like a broken document; both give one refused record.
    return "document"


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _lines(file: LogFile, lines: _Rewound, limit: int) -> Iterator[RawRecord]:
    number, position = lines.blank_lines, 0
    pending, stream = lines.seen, lines.stream
    while True:
        line = pending.pop(0) if pending else stream.readline(limit)
        if not line:
            return
        number += 1
        problem = None
        # A line that the look-ahead cut is completed here.
        while not line.endswith(b"\n") and len(line) < limit:
            rest = pending.pop(0) if pending else stream.readline(limit - len(line))
            if not rest:
                break
            line += rest
        if not line.endswith(b"\n") and len(line) >= limit:
            problem = f"the line is longer than {limit} bytes"
            line = line[:4096]
            while (rest := stream.readline(1 << 20)) and not rest.endswith(b"\n"):
                pass
        raw = line.strip()
        if raw:
            yield RawRecord(file.shown, file.label, position, raw, line=number, problem=problem)
            position += 1


def _document(file: LogFile, data: bytes) -> Iterator[RawRecord]:
    data = data.strip()
    if data[:1] != b"[":
        named_lines = Path(file.label.removesuffix(".gz")).suffix in (".jsonl", ".ndjson")
        if named_lines and not _is_json(data):
            stream = io.BytesIO(data)
            yield from _lines(file, _Rewound(0, stream.readline(), stream), len(data) + 1)
        else:
            yield RawRecord(file.shown, file.label, 0, data)
        return
    try:
        elements = msgspec.json.decode(data, type=list[msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as error:
        yield from _salvage(file, data, explain(data, error))
        return
    if not elements:
        yield RawRecord(file.shown, file.label, 0, data, problem="the list is empty")
    for position, element in enumerate(elements):
        yield RawRecord(file.shown, file.label, position, bytes(element))


def _salvage(file: LogFile, data: bytes, problem: str) -> Iterator[RawRecord]:
    """Yield the whole elements of an array that is cut off or damaged, then the rest as a record with `problem`."""
    text = data.decode(errors="surrogateescape")
    decoder = json.JSONDecoder()
    offset, position = 1, 0
    while True:
        start = offset
        while start < len(text) and text[start] in " \t\r\n,":
            start += 1
        try:
            _, offset = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            rest = text[start:].encode(errors="surrogateescape")
            yield RawRecord(file.shown, file.label, position, rest, problem=problem)
            return
        yield RawRecord(file.shown, file.label, position, text[start:offset].encode(errors="surrogateescape"))
        position += 1
