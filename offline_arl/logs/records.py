"""Cutting log files into raw records: JSON Lines, JSON arrays and single JSON documents, gzip or plain.

JSON Lines are read line by line with bounded memory. A JSON array or document has to be read whole; its elements
are cut out without being built as Python objects. Files that are not JSON text are for `logs.containers`.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from offline_arl.errors import DataError
from offline_arl.logs.adapter import RawRecord
from offline_arl.logs.containers import HEAD_BYTES, container_of
from offline_arl.logs.primitives.json_values import decode_json

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
        MissingDependencyError: It is a table or archive, and the package that reads it is not installed.
    """
    try:
        stream = file.path.open("rb")
    except OSError as error:
        raise DataError(f"{file.shown}: cannot be read: {error.strerror or error}") from error
    if (container := container_of(_head(stream), file.path.name)) is not None:
        stream.close()
        yield from container.read(file)
        return
    pieces = _Pieces(stream)
    with io.BufferedReader(pieces, 1 << 16) as buffered:
        blank_lines, first = _skip_blank(buffered, max_record_bytes)
        if first:
            lines = _Lines(blank_lines, first, buffered, pieces)
            cut = _lines if _layout(lines) == "lines" else _document
            yield from cut(file, lines, max_record_bytes)
        else:
            yield RawRecord(file.shown, file.label, 0, b"", problem=pieces.damage or "the file is empty")


def parse(raw: bytes) -> object:
    """Parse a raw record as JSON; NaN and the like, which some programs write, come as text.

    Raises:
        ValueError: It is not JSON; the message says why.
    """
    try:
        value: object = decode_json(raw)
    except msgspec.DecodeError as error:
        raise ValueError(explain(raw, error)) from error
    except RecursionError as error:
        raise ValueError("JSON is nested too deeply") from error
    return value


def explain(raw: bytes, error: Exception) -> str:
    """A short reason why `raw` does not decode."""
    try:
        raw.decode()
    except UnicodeDecodeError as problem:
        return f"not UTF-8: byte 0x{raw[problem.start]:02x} at byte {problem.start + 1} of the record"
    if isinstance(error, msgspec.ValidationError):
        return str(error)
    return f"invalid JSON: {error}"


def _head(stream: io.BufferedReader) -> bytes:
    try:
        return stream.peek(HEAD_BYTES)[:HEAD_BYTES]
    except OSError:
        return b""  # a folder; `_Pieces` says what is wrong with it


class _Pieces(io.RawIOBase):
    """A file, decompressed if need be, that ends where it cannot be read further; `damage` then says why.

    An exception in the middle of a line would lose what was read of it.
    """

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream
        self._source: io.BufferedReader | gzip.GzipFile = stream
        self.damage: str | None = None
        try:
            if stream.peek(2)[:2] == b"\x1f\x8b":
                self._source = gzip.GzipFile(fileobj=stream)
        except OSError as error:
            self.damage = f"the file cannot be read: {error}"

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if self.damage is not None:
            return 0
        try:
            piece = self._source.read1(len(buffer))
        except (EOFError, zlib.error, OSError) as error:
            self.damage = f"the file cannot be read further: {error}"
            return 0
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        self._stream.close()
        super().close()


class _Lines:
    """A stream of lines whose first ones were looked at already."""

    def __init__(self, blank_lines: int, first: bytes, stream: BinaryIO, pieces: _Pieces | None) -> None:
        self.blank_lines = blank_lines
        self.seen: list[bytes] = [first]
        self.stream = stream
        self._pieces = pieces

    @property
    def damage(self) -> str | None:
        return None if self._pieces is None else self._pieces.damage

    def peek(self, count: int, limit: int) -> list[bytes]:
        while len(self.seen) < count:
            line = self.stream.readline(limit)
            if not line:
                break
            self.seen.append(line)
        return self.seen

    def next_piece(self, limit: int) -> bytes:
        """The next line or, where the look-ahead or `limit` cut it, the next piece of it; b"" at the end."""
        return self.seen.pop(0) if self.seen else self.stream.readline(limit)

    def read(self) -> bytes:
        return b"".join([*self.seen, self.stream.read()])


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


def _layout(lines: _Lines) -> Layout:
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


def _lines(file: LogFile, lines: _Lines, limit: int) -> Iterator[RawRecord]:
    number, position = lines.blank_lines, 0
    shown, label, next_piece = file.shown, file.label, lines.next_piece
    told = False
    while line := next_piece(limit):
        number += 1
        problem = None
        if line[-1:] != b"\n":
            line, problem = _rest_of_line(line, lines, limit)
            told = lines.damage is not None and problem == lines.damage
        raw = line.strip()
        if raw:
            yield RawRecord(shown, label, position, raw, number, problem)
            position += 1
    if lines.damage is not None and not told:
        yield RawRecord(shown, label, position, b"", number + 1, lines.damage)


def _rest_of_line(line: bytes, lines: _Lines, limit: int) -> tuple[bytes, str | None]:
    """The whole of a line of which a piece was read, and what is wrong with it."""
    while not line.endswith(b"\n") and len(line) < limit and (rest := lines.next_piece(limit - len(line))):
        line += rest
    if line.endswith(b"\n"):
        return line, None
    if len(line) < limit:
        return line, lines.damage
    while (rest := lines.next_piece(1 << 20)) and not rest.endswith(b"\n"):
        pass
    return line[:4096], f"the line is longer than {limit} bytes"


def _document(file: LogFile, lines: _Lines, limit: int) -> Iterator[RawRecord]:
    data = lines.read().strip()
    if data[:1] == b"[":
        yield from _array(file, data, lines.damage, limit)
    elif Path(file.label.removesuffix(".gz")).suffix in (".jsonl", ".ndjson") and not _is_json(data):
        stream = io.BytesIO(data)
        yield from _lines(file, _Lines(lines.blank_lines, stream.readline(), stream, None), len(data) + 1)
    else:
        yield _within(limit, RawRecord(file.shown, file.label, 0, data, problem=lines.damage))


def _within(limit: int, record: RawRecord) -> RawRecord:
    """The record, or its beginning with a problem where it is too long: converting takes many times its size."""
    if len(record.raw) <= limit:
        return record
    problem = f"the record is longer than {limit} bytes"
    return RawRecord(record.file, record.label, record.position, record.raw[:4096], problem=problem)


def _array(file: LogFile, data: bytes, damage: str | None, limit: int) -> Iterator[RawRecord]:
    try:
        elements = msgspec.json.decode(data, type=list[msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as error:
        yield from _salvage(file, data, damage or explain(data, error))
        return
    if not elements:
        yield RawRecord(file.shown, file.label, 0, data, problem="the list is empty")
    for position, element in enumerate(elements):
        yield _within(limit, RawRecord(file.shown, file.label, position, bytes(element)))


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
