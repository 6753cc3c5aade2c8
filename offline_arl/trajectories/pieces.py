"""Pieces: what records contribute to interactions that are spread over records, kept until all of it is there.

A group is what one assembly needs: the pieces with one key (a session, a trace), or those of one file. Groups are
numbered in the order in which they were first seen, and each part's pieces lie in the order of these numbers.
Assembling the groups in that order reads every part about once, whether the records of a session follow one
another or are scattered over the whole log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from offline_arl.trajectories import files
from offline_arl.trajectories.files import FileEntry, Manifest
from offline_arl.trajectories.index import StoreIndex
from offline_arl.trajectories.tables import table

PIECE_COLUMNS: dict[str, pl.DataType] = {
    "group": pl.Int64(),
    "group_id": pl.Binary(),
    "format": pl.String(),
    "key": pl.String(),
    "scope": pl.String(),  # the file's real path, or ""
    "record_key": pl.Binary(),
    "fragment": pl.Int64(),  # 0-based among the pieces of the record
    "label": pl.String(),
    "file": pl.String(),
    "position": pl.Int64(),
    "line": pl.Int64(),
    "sha256": pl.String(),
    "payload": pl.Binary(),
}
# Bytes of payload that are read, and held by an assembly, at a time; a larger group comes alone.
BATCH_BYTES = 16 * 2**20
_ROW_GROUP_BYTES = 2**20
_GROUPS_AT_A_TIME = 4096


@dataclass(frozen=True)
class StoredPiece:
    """A piece as it was added, with the place of its record."""

    record_key: bytes
    label: str
    file: str
    position: int
    line: int | None
    sha256: str  # of the raw record
    payload: bytes


@dataclass(frozen=True)
class PendingGroup:
    """A group to be assembled, with all its pieces in the order of file label, file and position."""

    number: int
    group_id: bytes
    format: str
    key: str | None  # None: the pieces are those of one file
    scope: str  # the file's real path where `key` is None
    pieces: list[StoredPiece] = field(default_factory=list)
    corrected: int = 0  # how many pieces are left out because their records were refused and are not there any more


def group_identity(format: str, key: str | None, scope: str) -> bytes:
    """The identity of a group, 16 bytes; `scope` is a file or another place where `key` is None."""
    name = f"{format}\0file\0{scope}" if key is None else f"{format}\0key\0{key}"
    return hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=16).digest()


def storable(text: str) -> str:
    r"""The text with what UTF-8 cannot hold (file names in other encodings) as `\udc..`."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def write_pieces(root: Path, name: str, rows: list[tuple[Any, ...]]) -> FileEntry:
    """Write the pieces of a part, ordered by group."""
    rows.sort(key=lambda row: row[0])
    size = row_group_size(len(rows), sum(len(row[-1]) for row in rows))
    return files.write_parquet(root, name, table(rows, PIECE_COLUMNS), row_group_size=size)


def row_group_size(rows: int, payload_bytes: int) -> int:
    """Rows of a row group, such that a reader of few groups decompresses little else."""
    return max(1, rows * _ROW_GROUP_BYTES // (payload_bytes + 1))


def read_groups(root: Path, manifest: Manifest, index: StoreIndex, numbers: list[int]) -> list[PendingGroup]:
    """Groups by number, with all their pieces."""
    found: dict[int, PendingGroup] = {}
    rows: dict[int, list[tuple[Any, ...]]] = {number: [] for number in numbers}
    # The same file may be named in another way when it is read again; its first name holds.
    names: dict[tuple[int, str], tuple[str, str]] = {}
    entries = {part.number: part.pieces for part in manifest.parts}
    for part, present in index.piece_parts(numbers).items():
        entry = entries.get(part)
        if entry is None:
            continue
        for row in _rows_of(files.whole_file(root, entry), present):
            number, group_id, format, key, scope, record_key, fragment, label, file, *rest = row
            if scope:
                label, file = names.setdefault((number, scope), (label, file))
            rows[number].append((label, file, rest[0], fragment, record_key, *rest[1:]))
            if number not in found:
                found[number] = PendingGroup(number, group_id, format, key, scope if key is None else "")
    for number, group in found.items():
        ordered = sorted(rows.pop(number), key=lambda piece: piece[:4])
        for label, file, position, _, record_key, line, sha256, payload in ordered:
            group.pieces.append(StoredPiece(record_key, label, file, position, line, sha256, payload))
    return [found[number] for number in numbers if number in found]


def _rows_of(path: Path, numbers: Sequence[int]) -> Iterator[tuple[Any, ...]]:
    # The range lets the reader pass over row groups by their statistics.
    wanted = pl.col("group").is_between(min(numbers), max(numbers)) & pl.col("group").is_in(list(numbers))
    with files.told_reading(path):
        frame = pl.scan_parquet(path).filter(wanted).select(*PIECE_COLUMNS).collect()
    yield from frame.iter_rows()


def batches(index: StoreIndex) -> Iterator[list[int]]:
    """Numbers of the groups to be assembled, in order, so many at a time as `BATCH_BYTES` of payload allow.

    The index may change meanwhile; a group that is assembled is not given out again.
    """
    batch: list[int] = []
    size = after = 0
    while found := index.dirty_groups(after, _GROUPS_AT_A_TIME):
        for number, group_bytes in found:
            if batch and size + group_bytes > BATCH_BYTES:
                yield batch
                batch, size = [], 0
            batch.append(number)
            size += group_bytes
            after = number
    if batch:
        yield batch
