"""Refused records as they are kept: raw, with the place and the reason."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import polars as pl

from offline_arl.trajectories import files
from offline_arl.trajectories.files import Part

QUARANTINE_COLUMNS: dict[str, pl.DataType] = {
    "file": pl.String(),
    "record": pl.Int64(),
    "line": pl.Int64(),
    "format": pl.String(),
    "reason": pl.String(),
    "raw": pl.String(),
    "raw_base64": pl.String(),
}


class RefusedRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a quarantine file: a record that did not become a trajectory, raw, with the reason.

    `raw` is the record's text; bytes that are not UTF-8 are kept in `raw_base64` instead. `key` (hexadecimal)
    identifies the record by position and content.
    """

    file: str
    record: int | None
    line: int | None
    format: str | None
    reason: str
    key: str
    raw: str | None = None
    raw_base64: str | None = None

    @classmethod
    def of(
        cls, raw: bytes, *, file: str, record: int | None, line: int | None, format: str | None, reason: str, key: bytes
    ) -> RefusedRecord:
        """Build one from raw bytes."""
        try:
            text, encoded = raw.decode(), None
        except UnicodeDecodeError:
            text, encoded = None, base64.b64encode(raw).decode()
        return cls(file, record, line, format, reason, key.hex(), text, encoded)


class RefusedPlace(msgspec.Struct, frozen=True):
    """Where a refused record lies, and why it was refused."""

    file: str
    reason: str
    record: int | None = None
    line: int | None = None
    format: str | None = None


_place_decoder = msgspec.json.Decoder(RefusedPlace)


def refused_places(root: Path, parts: Sequence[Part]) -> Iterator[RefusedPlace]:
    """The refused records of some parts without their content, one at a time."""
    for part in parts:
        if part.quarantine is not None:
            with files.whole_file(root, part.quarantine).open("rb") as stream:
                yield from map(_place_decoder.decode, stream)
