"""The rows of a store's parts as lazy frames, without those that later parts made void."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from offline_arl.trajectories import files
from offline_arl.trajectories.files import Part

VoidIds = Mapping[int, frozenset[str]]


def scan(
    root: Path, parts: Sequence[Part], kind: str, columns: Mapping[str, pl.DataType], void: VoidIds
) -> pl.LazyFrame:
    """The rows of one kind of file of some parts, in order; columns that a file lacks are null.

    Args:
        root: Folder of the store.
        parts: The parts.
        kind: Name of a field of `Part`.
        columns: Names and types of all columns that such files have.
        void: For each part (by number) the ids of the trajectories whose rows there do not count.
    """
    runs: list[tuple[list[Path], frozenset[str]]] = []
    for part in parts:
        entry = getattr(part, kind)
        if entry is None:
            continue
        path, ids = files.whole_file(root, entry), void.get(part.number, frozenset())
        if runs and not ids and not runs[-1][1]:
            runs[-1][0].append(path)
        else:
            runs.append(([path], ids))
    frames = []
    for paths, ids in runs:
        frame = pl.scan_parquet(paths, schema=dict(columns), missing_columns="insert")
        frames.append(frame.filter(~pl.col("trajectory_id").is_in(sorted(ids))) if ids else frame)
    if not frames:
        return pl.LazyFrame(schema=dict(columns))
    return frames[0] if len(frames) == 1 else pl.concat(frames)
