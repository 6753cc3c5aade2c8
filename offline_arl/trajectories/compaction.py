"""Compaction: many small parts become few, and rows that do not count any more go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from offline_arl.trajectories import encoding
from offline_arl.trajectories.files import FileEntry, Part
from offline_arl.trajectories.part_frames import Void, scan
from offline_arl.trajectories.pieces import PIECE_COLUMNS
from offline_arl.trajectories.rewriting import Rewriter, replace_parts, to_be_replaced
from offline_arl.trajectories.store import MAX_PART_BYTES, MAX_PART_TRAJECTORIES, Store


@dataclass(frozen=True)
class CompactionReport:
    """Parts, and bytes on disk of the files of the store, before and after."""

    parts_before: int
    parts_after: int
    bytes_before: int
    bytes_after: int


def compact(
    store: Store, *, max_part_bytes: int = MAX_PART_BYTES, max_part_trajectories: int = MAX_PART_TRAJECTORIES
) -> CompactionReport:
    """Merge small parts, and remove the rows that later parts made void. What the store holds stays the same.

    Raises:
        UsageError: Another writer is at work.
    """
    root = store.path
    with to_be_replaced(root) as (manifest, void):
        runs = _runs(root, manifest.parts, void, max_part_bytes, max_part_trajectories)
        numbers = {part.number: run[-1].number for run in runs for part in run}
        rewriter = Rewriter(root, manifest.generation + 1, void=void, part_numbers=numbers)
        rewritten = [part for run in runs if (part := rewriter.rewrite(run)) is not None]
        if rewritten != manifest.parts:
            replace_parts(root, manifest, rewritten)
    return CompactionReport(
        len(manifest.parts), len(rewritten), _bytes_of(manifest.files()), _bytes_of(store.manifest.files())
    )


def _runs(root: Path, parts: Sequence[Part], void: Void, max_bytes: int, max_rows: int) -> list[list[Part]]:
    """Consecutive parts that fit into one."""
    runs: list[list[Part]] = []
    run_bytes = run_rows = 0
    for part in parts:
        size, rows = _size_of(root, part, void)
        if not runs or run_bytes + size > max_bytes or run_rows + rows > max_rows:
            runs.append([])
            run_bytes = run_rows = 0
        runs[-1].append(part)
        run_bytes += size
        run_rows += rows
    return runs


def _size_of(root: Path, part: Part, void: Void) -> tuple[int, int]:
    """What counts towards the size of a part: bytes of JSON and of payload, and trajectories."""
    content = pl.sum_horizontal(pl.col(name).str.len_bytes() for name in encoding.CONTENT_COLUMNS)
    rows = scan(root, [part], "trajectories", encoding.TRAJECTORY_COLUMNS, void)
    size, count = rows.select(content.sum(), pl.len()).collect().row(0)
    pieces = scan(root, [part], "pieces", PIECE_COLUMNS, void)
    payload = pieces.select(pl.col("payload").bin.size().sum()).collect().item()
    return int(size or 0) + int(payload or 0), int(count)


def _bytes_of(entries: Sequence[FileEntry]) -> int:
    return sum(entry.bytes for entry in entries)
