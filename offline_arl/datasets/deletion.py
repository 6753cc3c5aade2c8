"""Taking trajectories out of a dataset that is built already."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Collection, Iterator
from itertools import groupby
from pathlib import Path

import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from offline_arl.datasets.segments import (
    MANIFEST_NAME,
    DatasetManifest,
    SegmentDataset,
    SegmentRow,
    SegmentWriter,
    load_manifest,
    write_manifest,
)
from offline_arl.errors import DataError


def rows_by_trajectory(folder: Path) -> pl.DataFrame:
    """How many rows a dataset has of each trajectory: columns trajectory_id and rows.

    Raises:
        DataError: The folder is no dataset, or it is damaged.
    """
    load_manifest(folder)
    try:
        ids = pl.scan_parquet(_parts(folder)).select("trajectory_id")
        return ids.group_by("trajectory_id", maintain_order=True).agg(pl.len().cast(pl.Int64).alias("rows")).collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{folder}: cannot read the dataset ({str(error).partition(chr(10))[0]})") from error


def remove_trajectories(folder: Path, trajectory_ids: Collection[str]) -> DatasetManifest:
    """Rewrite a dataset without the rows of some trajectories; counts and checksum are those of what is left.

    The new folder takes the place of the old one when it is complete. Files that do not belong to the dataset stay.
    A dataset of which nothing is left has no rows, and its manifest says so.

    Raises:
        DataError: The folder is no dataset, or it is damaged.
    """
    manifest = load_manifest(folder)
    parts = _parts(folder)
    gone = set(trajectory_ids)
    work = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.rewritten")
    writer = SegmentWriter(
        work, kind=manifest.kind, fingerprint=manifest.fingerprint, config=manifest.config, may_be_empty=True
    )
    removed = 0
    try:
        with writer:
            for name, rows in groupby(_rows(parts, manifest), key=lambda row: row.trajectory_id):
                if name in gone:
                    removed += 1
                else:
                    writer.add(list(rows))
        assert writer.manifest is not None
        rewritten = msgspec.structs.replace(
            writer.manifest,
            excluded=manifest.excluded,
            assumed=manifest.assumed,
            lineage=manifest.lineage,
            deleted=manifest.deleted + removed,
        )
        write_manifest(work, rewritten)
        _swap(folder, work, {MANIFEST_NAME, *(part.name for part in parts)})
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return rewritten


def _parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*.parquet"))


def _rows(parts: list[Path], manifest: DatasetManifest) -> Iterator[SegmentRow]:
    for part in parts:
        try:
            table = pq.read_table(part)
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"{part}: cannot be read ({error}); build the dataset again") from error
        yield from SegmentDataset(table, manifest)


def _swap(folder: Path, work: Path, own: set[str]) -> None:
    for path in folder.iterdir():
        if path.name not in own:
            path.rename(work / path.name)
    old = work.with_name(f"{work.name}.old")
    os.rename(folder, old)
    os.rename(work, folder)
    shutil.rmtree(old)
