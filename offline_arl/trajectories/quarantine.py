"""Refused records as they are kept: raw, with the place and the reason."""

from __future__ import annotations

import base64

import msgspec
import polars as pl

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
