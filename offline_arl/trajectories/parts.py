"""One part in the making: what a writer holds in memory between two commits."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from offline_arl.trajectories import encoding, files
from offline_arl.trajectories.files import FileEntry, Part
from offline_arl.trajectories.index import AssemblyEntry, IndexRows, MadeTrajectory
from offline_arl.trajectories.pieces import write_pieces
from offline_arl.trajectories.scores import FEEDBACK_COLUMNS, JUDGEMENT_COLUMNS
from offline_arl.trajectories.tables import GrowingTable, table

ASSEMBLY_COLUMNS: dict[str, pl.DataType] = {
    "group": pl.Int64(),
    "seen": pl.Int64(),
    "trajectories": pl.String(),  # JSON: [[id that the adapter gave, id in the store, digest], ...]
    "feedback_part": pl.Int64(),
    "feedback": pl.Binary(),
}
FATE_COLUMNS: dict[str, pl.DataType] = {
    "group": pl.Int64(),
    "record_key": pl.Binary(),
    "state": pl.String(),
    "reason": pl.String(),
}
SET_APART_COLUMNS: dict[str, pl.DataType] = {
    "record_key": pl.Binary(),
    "format": pl.String(),
    "file": pl.String(),
    "record": pl.Int64(),
    "line": pl.Int64(),
    "reason": pl.String(),
}
DELETED_COLUMNS: dict[str, pl.DataType] = {
    "record_key": pl.Binary(),  # a record that must not come back, or null
    "group": pl.Int64(),  # a group whose further pieces must not come in, or null
    "group_id": pl.Binary(),
}
REMOVED_COLUMNS: dict[str, pl.DataType] = {"trajectory_id": pl.String(), "group": pl.Int64(), "part": pl.Int64()}


@dataclass
class PartBuffer:
    """Rows of the next part, and what the index will learn of them."""

    rows: GrowingTable = field(default_factory=lambda: GrowingTable(encoding.TRAJECTORY_COLUMNS))
    steps: GrowingTable = field(default_factory=lambda: GrowingTable(encoding.STEP_COLUMNS))
    blobs: dict[str, tuple[str, str]] = field(default_factory=dict)
    findings: list[tuple[Any, ...]] = field(default_factory=list)
    identities: list[tuple[Any, ...]] = field(default_factory=list)
    scores: list[tuple[Any, ...]] = field(default_factory=list)
    refused: list[bytes] = field(default_factory=list)
    pieces: list[tuple[Any, ...]] = field(default_factory=list)
    fates: list[tuple[int, bytes, str, str | None]] = field(default_factory=list)
    set_apart: list[tuple[Any, ...]] = field(default_factory=list)
    feedback: list[tuple[Any, ...]] = field(default_factory=list)
    deleted: list[tuple[bytes | None, int | None, bytes | None]] = field(default_factory=list)
    # Void rows: (trajectory id, None, part) or, for the feedback of a group, (None, group number, part).
    removed: list[tuple[str | None, int | None, int]] = field(default_factory=list)
    index: IndexRows = field(default_factory=IndexRows)
    bytes: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        assembled = self.index.assembled or self.fates or self.removed or self.deleted
        return not (self.rows or self.refused or self.pieces or self.set_apart or self.feedback or assembled)

    def write(self, root: Path, number: int) -> Part:
        """Write the files of the part."""
        name = f"{number:06}"
        written: dict[str, FileEntry] = {}

        def write(folder: str, frame: pl.DataFrame) -> None:
            written[folder] = files.write_parquet(root, f"{folder}/{name}.parquet", frame)

        if self.rows:
            write("trajectories", self.rows.frame())
            write("steps", self.steps.frame())
            blobs = [(key, kind, text) for key, (kind, text) in sorted(self.blobs.items())]
            write("blobs", table(blobs, encoding.BLOB_COLUMNS))
        if self.findings:
            write("findings", table(self.findings, encoding.FINDING_COLUMNS))
        if self.identities:
            write("identities", table(self.identities, encoding.IDENTITY_COLUMNS))
        if self.scores:
            write("scores", table(self.scores, JUDGEMENT_COLUMNS))
        if self.refused:
            path = root / "quarantine" / f"{name}.jsonl"
            text = b"".join(line + b"\n" for line in self.refused)
            files.write_atomically(path, lambda temporary: temporary.write_bytes(text))
            written["quarantine"] = files.describe_file(root, path, len(self.refused))
        if self.pieces:
            written["pieces"] = write_pieces(root, f"pieces/{name}.parquet", self.pieces)
        if self.index.assembled:
            rows = [assembly_row(group, entry) for group, entry in self.index.assembled.items()]
            write("assemblies", table(rows, ASSEMBLY_COLUMNS))
        if self.fates:
            write("fates", table(self.fates, FATE_COLUMNS))
        if self.set_apart:
            write("set_apart", table(self.set_apart, SET_APART_COLUMNS))
        if self.feedback:
            write("feedback", table(self.feedback, FEEDBACK_COLUMNS))
        if self.removed:
            write("removed", table(self.removed, REMOVED_COLUMNS))
        if self.deleted:
            write("deleted", table(self.deleted, DELETED_COLUMNS))
        return Part(number, **written)


def assembly_row(group: int, entry: AssemblyEntry) -> tuple[Any, ...]:
    """The row of an assembly in a part."""
    made = [(name, id, digest.hex()) for name, (id, digest) in entry.trajectories.items()]
    return (group, entry.seen, msgspec.json.encode(made).decode(), entry.feedback_part, entry.feedback)


_made_decoder = msgspec.json.Decoder(list[tuple[str, str, str]])


def assembly_entry(row: tuple[Any, ...]) -> tuple[int, AssemblyEntry]:
    """The group and the assembly of a row; the inverse of `assembly_row`."""
    group, seen, trajectories, feedback_part, feedback = row
    made = {name: MadeTrajectory(id, bytes.fromhex(digest)) for name, id, digest in _made_decoder.decode(trajectories)}
    return group, AssemblyEntry(seen, made, feedback_part, feedback)
