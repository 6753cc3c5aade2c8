"""HDF5 files of Minari: one episode a record."""

from __future__ import annotations

from collections.abc import Iterator

from offline_arl.logs.adapter import RawRecord
from offline_arl.logs.records import LogFile

_MAGIC = b"\x89HDF\r\n\x1a\n"


def matches(head: bytes, name: str) -> bool:
    """Whether the first bytes are those of an HDF5 file."""
    return head.startswith(_MAGIC)


def read(file: LogFile) -> Iterator[RawRecord]:
    """Yield the episodes in order."""
    yield RawRecord(file.shown, file.label, 0, b"", problem="HDF5 files are not read yet")
