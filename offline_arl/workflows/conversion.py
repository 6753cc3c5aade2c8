"""What other processes do for an ingestion. They start with these imports, so there are few."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from offline_arl.logs.adapter import RawRecord, adapter_named
from offline_arl.logs.convert import (
    ConvertedRecords,
    EncodedGroup,
    PiecePosition,
    assemble_and_encode,
    convert_records,
)
from offline_arl.logs.records import LogFile
from offline_arl.workflows.ingest_report import UNKNOWN_FORMAT

if TYPE_CHECKING:  # redaction is loaded by those who ask for it
    from offline_arl.logs.redaction.plan import RedactionPlan
    from offline_arl.trajectories.pieces import PendingGroup


@dataclass(frozen=True)
class Chunk:
    """Records of one file on their way through conversion."""

    file: LogFile
    format: str
    records: list[RawRecord]
    real_path: str

    def __reduce__(self) -> tuple[Any, ...]:
        """For the way between processes: tuples are pickled several times faster than records."""
        return _unpacked, (self.file, self.format, list(map(msgspec.structs.astuple, self.records)), self.real_path)


def _unpacked(file: LogFile, format: str, records: Iterable[tuple[Any, ...]], real_path: str) -> Chunk:
    return Chunk(file, format, [RawRecord(*fields) for fields in records], real_path)


def convert_chunk(chunk: Chunk, *, plan: RedactionPlan | None) -> tuple[ConvertedRecords, dict[str, int]]:
    """What the records of a chunk became, and what was redacted in them: how many of each kind."""
    adapter = None if chunk.format == UNKNOWN_FORMAT else adapter_named(chunk.format)
    redactor = None if plan is None else plan.redactor
    # Sealed again: what a record remembers does not travel to another process.
    records = chunk.records if plan is None else [plan.sealed(record) for record in chunk.records]
    converted = convert_records(adapter, chunk.real_path, records, redactor)
    return converted, {} if redactor is None else redactor.take_counts()


def convert_group(group: PendingGroup, *, plan: RedactionPlan | None) -> EncodedGroup:
    """What the pieces of a group became."""
    pieces = [
        (PiecePosition(piece.label, piece.file, piece.position, piece.sha256, piece.line), piece.payload)
        for piece in group.pieces
    ]
    return assemble_and_encode(group.format, group.key, pieces, None if plan is None else plan.redactor)
