"""Zip archives of Inspect (`.eval`): one sample a record, streamed.

An archive holds `header.json` (in one that is still written `_journal/start.json`), one member `samples/*.json` for
each sample, and summaries that repeat what the samples say. Each sample becomes a record that has the form of a
whole log with this one sample: what the log says of the run, and under `samples` the sample. Of the header only what
is there from the start is carried (`version`, `eval`, `plan`), so that a sample is the same record before and after
its run has ended.

An archive comes from elsewhere and may be meant to do harm: member names never reach the file system, and how much a
member may unpack to is limited by number and by ratio while it is unpacked, whatever its entry claims.
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

import msgspec

from offline_arl.errors import DataError
from offline_arl.logs.adapter import RawRecord
from offline_arl.logs.containers.inspect_document import record_prefix
from offline_arl.logs.primitives.json_values import decode_json
from offline_arl.logs.records import LogFile
from offline_arl.optional import require

MAX_MEMBER_BYTES = 256 * 2**20
# Samples repeat their history, so that honest ones shrink a lot; deflate cannot reach 1,033, a Zstandard bomb can.
MAX_RATIO = 500
# Small members may shrink by any ratio.
FREE_BYTES = 2**20
MAX_MEMBERS = 1_000_000

_SIGNATURE = b"PK\x03\x04"
_EMPTY_ARCHIVE = b"PK\x05\x06"
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_STORED, _DEFLATED, _ZSTANDARD = 0, 8, 93
_ENCRYPTED, _SIZES_FOLLOW = 0x1, 0x8
_CHUNK = 1 << 16
_SAMPLE = re.compile(r"samples/[^/\\]+\.json")
# What repeats the samples or is a journal of how they came to be.
_KNOWN = re.compile(r"header\.json|summaries\.json|reductions\.json|_journal/.*")


class _MemberError(Exception):
    """A member cannot be read; the text says why."""


@dataclass(frozen=True)
class _Member:
    name: str
    offset: int  # of its local header
    method: int
    packed: int
    checksum: int
    is_encrypted: bool


def matches(head: bytes, name: str) -> bool:
    """Whether the first bytes are those of a zip archive."""
    return head.startswith((_SIGNATURE, _EMPTY_ARCHIVE))


def read(file: LogFile) -> Iterator[RawRecord]:
    """Yield the samples in the order in which they were written; what is wrong becomes a record with a problem.

    Raises:
        DataError: The file cannot be opened.
    """
    try:
        stream = file.path.open("rb")
    except OSError as error:
        raise DataError(f"{file.shown}: cannot be read: {error.strerror or error}") from error
    with stream:
        members, damage = _members(stream)
        position = 0
        for raw, problem in _samples(stream, members, damage):
            yield RawRecord(file.shown, file.label, position, raw, problem=problem)
            position += 1
        if damage is not None:
            yield RawRecord(file.shown, file.label, position, b"", problem=damage)


def _samples(stream: BinaryIO, members: list[_Member], damage: str | None) -> Iterator[tuple[bytes, str | None]]:
    """The raw record and the problem, if any, of each member that is or should be a sample."""
    latest = {member.name: member for member in members}
    try:
        prefix = _record_prefix(stream, latest)
    except _MemberError as error:
        if damage is None:
            yield b"", str(error)
        return
    count = 0
    for member in members:
        name = member.name
        if _KNOWN.fullmatch(name) or (name.endswith("/") and _is_safe(name)):
            continue
        count += 1
        shown = repr(name[:200])
        if not _is_safe(name):
            yield b"", f"the member {shown} names a place outside of the archive"
        elif not _SAMPLE.fullmatch(name):
            yield b"", f"the member {shown} is not a part of an Inspect log that is known"
        elif latest[name] is not member:
            yield b"", f"the member {shown} is replaced by a later one of the same name"
        else:
            try:
                yield prefix + _unpack(stream, member).strip() + b"]}", None
            except _MemberError as error:
                yield b"", f"{shown}: {error}"
    if not count and damage is None:
        yield prefix + b"]}", None


def _is_safe(name: str) -> bool:
    parts = name.replace("\\", "/").split("/")
    return ".." not in parts and parts[0] != "" and ":" not in parts[0] and "\0" not in name


def _record_prefix(stream: BinaryIO, members: dict[str, _Member]) -> bytes:
    """The start of every record: the header's lasting part, up to the opened list of samples."""
    member = members.get("_journal/start.json") or members.get("header.json")
    if member is None:
        raise _MemberError("the zip archive has no header.json: it is not an Inspect log")
    try:
        header = decode_json(_unpack(stream, member))
    except msgspec.DecodeError as error:
        raise _MemberError(f"{member.name}: {error}") from error
    except RecursionError as error:
        raise _MemberError(f"{member.name}: JSON is nested too deeply") from error
    if not isinstance(header, dict):
        raise _MemberError(f"{member.name}: expected an object")
    return record_prefix({key: msgspec.json.encode(value) for key, value in header.items()})


def _members(stream: BinaryIO) -> tuple[list[_Member], str | None]:
    """The members in file order, and what is wrong with the archive as a whole, if anything."""
    size = stream.seek(0, io.SEEK_END)
    try:
        with zipfile.ZipFile(stream) as archive:
            listed = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, struct.error, OverflowError) as error:
        return _salvage(stream, size), f"the zip archive is cut off or damaged: {error}"
    if len(listed) > MAX_MEMBERS:
        return [], f"the zip archive has {len(listed)} members, more than {MAX_MEMBERS}"
    members = sorted(
        (
            _Member(
                info.filename,
                info.header_offset,
                info.compress_type,
                info.compress_size,
                info.CRC,
                bool(info.flag_bits & _ENCRYPTED),
            )
            for info in listed
        ),
        key=lambda member: member.offset,
    )
    if sum(member.packed for member in members) > size:
        # Members that share their bytes are a way to make an archive unpack to many times what a ratio allows.
        return [], "the zip archive is damaged: its members overlap"
    return members, None


def _salvage(stream: BinaryIO, size: int) -> list[_Member]:
    """The whole members at the start of an archive whose index is missing, from their local headers."""
    members: list[_Member] = []
    offset = 0
    while len(members) < MAX_MEMBERS:
        stream.seek(offset)
        head = stream.read(_LOCAL_HEADER.size)
        if len(head) < _LOCAL_HEADER.size or not head.startswith(_SIGNATURE):
            break
        _, _, flags, method, _, _, checksum, packed, _, name_length, extra_length = _LOCAL_HEADER.unpack(head)
        name = stream.read(name_length).decode("utf-8", "replace")
        end = offset + _LOCAL_HEADER.size + name_length + extra_length + packed
        if flags & _SIZES_FOLLOW or end > size:
            break
        members.append(_Member(name, offset, method, packed, checksum, bool(flags & _ENCRYPTED)))
        offset = end
    return members


def _unpack(stream: BinaryIO, member: _Member) -> bytes:
    """The content of a member, checked.

    Raises:
        _MemberError: It is encrypted, damaged, too large, or packed in a way that cannot be read.
    """
    if member.is_encrypted:
        raise _MemberError("is encrypted")
    try:
        stream.seek(member.offset)
        head = stream.read(_LOCAL_HEADER.size)
        if len(head) < _LOCAL_HEADER.size or not head.startswith(_SIGNATURE):
            raise _MemberError("is damaged: it does not start where the index says")
        name_length, extra_length = _LOCAL_HEADER.unpack(head)[-2:]
        stream.seek(name_length + extra_length, io.SEEK_CUR)
        content = _bounded(_reader(_Slice(stream, member.packed), member.method), member.packed)
    except (zlib.error, OSError, EOFError, ValueError) as error:
        raise _MemberError(f"is damaged: {error}") from error
    if zlib.crc32(content) != member.checksum:
        raise _MemberError("is damaged: its checksum is wrong")
    return content


def _bounded(read: Callable[[int], bytes], packed: int) -> bytes:
    limit = min(MAX_MEMBER_BYTES, max(FREE_BYTES, packed * MAX_RATIO))
    chunks, total = [], 0
    while chunk := read(_CHUNK):
        total += len(chunk)
        if total > limit:
            raise _MemberError(f"unpacks to more than {limit} bytes from {packed}, which no honest log does")
        chunks.append(chunk)
    return b"".join(chunks)


def _reader(packed: _Slice, method: int) -> Callable[[int], bytes]:
    """A function that gives at most so many unpacked bytes, b"" at the end."""
    if method == _STORED:
        return packed.read
    if method == _DEFLATED:
        return _Inflate(packed).read
    if method == _ZSTANDARD:
        return _zstandard_reader(packed)
    raise _MemberError(f"is packed by method {method}, which is not known")


def _zstandard_reader(packed: _Slice) -> Callable[[int], bytes]:
    zstandard = require("zstandard", extra="logs")
    # The window is the memory that a frame asks for; the reference tool's own limit is 128 MiB.
    decompressor = zstandard.ZstdDecompressor(max_window_size=2**27)
    reader = decompressor.stream_reader(packed, read_size=_CHUNK, read_across_frames=True)

    def read(size: int) -> bytes:
        try:
            return bytes(reader.read(size))
        except zstandard.ZstdError as error:
            raise _MemberError(f"is damaged: {error}") from error

    return read


class _Slice:
    """The next `length` bytes of a stream."""

    def __init__(self, stream: BinaryIO, length: int) -> None:
        self._stream = stream
        self._left = length

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes, b"" at the end."""
        wanted = self._left if size < 0 else min(size, self._left)
        data = self._stream.read(wanted) if wanted else b""
        self._left -= len(data)
        if len(data) < wanted:
            raise EOFError("the archive ends within it")
        return data


class _Inflate:
    """A deflated stream, unpacked in pieces of bounded size."""

    def __init__(self, packed: _Slice) -> None:
        self._packed = packed
        self._inflater = zlib.decompressobj(-zlib.MAX_WBITS)

    def read(self, size: int) -> bytes:
        """At most `size` bytes, b"" at the end."""
        while not self._inflater.eof:
            data = self._inflater.unconsumed_tail or self._packed.read(_CHUNK)
            piece = self._inflater.decompress(data, size)
            if piece:
                return piece
            if not data:
                raise EOFError("its compressed data end early")
        return b""
