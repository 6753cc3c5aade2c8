"""The rows of a store's parts as lazy frames, without those that later parts made void."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import polars as pl

from offline_arl.trajectories import files
from offline_arl.trajectories.files import Manifest, Part
from offline_arl.trajectories.parts import REMOVED_COLUMNS

# The column by which rows of a kind can be void; rows of other kinds cannot.
_OWNERS = {
    **dict.fromkeys(("trajectories", "steps", "findings", "identities", "scores"), "trajectory_id"),
    "feedback": "group",
}


class Void(NamedTuple):
    """What does not count any more, by the number of the part in which it lies."""

    trajectories: Mapping[int, frozenset[str]]  # ids of trajectories: their rows in all files of the part
    groups: Mapping[int, frozenset[int]]  # numbers of groups: the feedback that they gave


def read_void(root: Path, manifest: Manifest) -> Void:
    """What the parts of a store say is void in earlier parts."""
    frames = []
    for part in manifest.parts:
        if part.removed is not None:
            path = files.whole_file(root, part.removed)
            with files.told_reading(path):
                frames.append(pl.read_parquet(path, columns=list(REMOVED_COLUMNS)))
    if not frames:
        return Void({}, {})
    frame = pl.concat(frames)

    def by_part(column: str) -> pl.DataFrame:
        return frame.filter(pl.col(column).is_not_null()).group_by("part").agg(column)

    return Void(
        {part: frozenset(names) for part, names in by_part("trajectory_id").iter_rows()},
        {part: frozenset(numbers) for part, numbers in by_part("group").iter_rows()},
    )


def scan(root: Path, parts: Sequence[Part], kind: str, columns: Mapping[str, pl.DataType], void: Void) -> pl.LazyFrame:
    """The rows of one kind of file of some parts, in order; columns that a file lacks are null.

    Args:
        root: Folder of the store.
        parts: The parts.
        kind: Name of a field of `Part`.
        columns: Names and types of all columns that such files have.
        void: Rows that do not count.
    """
    owner = _OWNERS.get(kind)
    by_part: Mapping[int, frozenset[str] | frozenset[int]] = {}
    if owner is not None:
        by_part = void.groups if owner == "group" else void.trajectories
    runs: list[tuple[list[Path], frozenset[str] | frozenset[int]]] = []
    for part in parts:
        entry = getattr(part, kind)
        if entry is None:
            continue
        path, names = files.whole_file(root, entry), by_part.get(part.number, frozenset[str]())
        if runs and not names and not runs[-1][1]:
            runs[-1][0].append(path)
        else:
            runs.append(([path], names))
    frames = []
    for paths, names in runs:
        frame = pl.scan_parquet(paths, schema=dict(columns), missing_columns="insert")
        if owner is not None and names:
            frame = frame.filter(~pl.col(owner).is_in(list(names)).fill_null(value=False))
        frames.append(frame)
    if not frames:
        return pl.LazyFrame(schema=dict(columns))
    return frames[0] if len(frames) == 1 else pl.concat(frames)
