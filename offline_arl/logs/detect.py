"""Finding the format of a log file from its first readable records."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from offline_arl.errors import DataError
from offline_arl.logs.adapter import LogAdapter, RawRecord, adapters
from offline_arl.logs.records import LogFile, parse, read_records

# How many records may be unreadable before a file counts as unknown.
PROBE_RECORDS = 20


def detect(path: str | Path) -> str:
    """The name of the format of a log file.

    Raises:
        DataError: The file cannot be opened, holds no readable record, or is of no known format.
    """
    path = Path(path)
    adapter, reason = detect_records(islice(read_records(LogFile(path, str(path), path.name)), PROBE_RECORDS))
    if adapter is None:
        raise DataError(f"{path}: {reason}")
    return adapter.name


def detect_records(records: Iterable[RawRecord]) -> tuple[LogAdapter | None, str]:
    """The adapter that recognizes the first readable one of `records`, or None and the reason."""
    reason = "holds no record"
    readable = False
    for record in records:
        if record.problem is not None:
            reason = record.problem
            continue
        try:
            value = parse(record.raw)
        except ValueError as error:
            reason = f"{record.where}: {error}" if record.line is not None else str(error)
            continue
        for adapter in adapters().values():
            if adapter.recognizes(value):
                return adapter, ""
        readable = True
    if readable:
        reason = "not of a known log format; offline-arl formats lists them, --format names one"
    return None, reason
