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

from offline_arl.datasets.card import CARD_NAME
from offline_arl.datasets.folders import MAPPED_NAME, part_paths
from offline_arl.datasets.manifest import MANIFEST_NAME, DatasetManifest, load_manifest, write_manifest
from offline_arl.datasets.pairs.folder import PairDataset, PreferenceRow, PreferenceWriter, UnpairedDataset
from offline_arl.datasets.segments import SegmentDataset, SegmentRow, SegmentWriter
from offline_arl.errors import DataError, reason_of

_ID_COLUMNS = {"pairs": ("chosen_trajectory_id", "rejected_trajectory_id")}


def rows_by_trajectory(folder: Path) -> pl.DataFrame:
    """How many rows a dataset has of each trajectory: columns trajectory_id and rows. A pair is a row of both.

    Raises:
        DataError: The folder is no dataset, or it is damaged.
    """
    columns = _ID_COLUMNS.get(load_manifest(folder).kind, ("trajectory_id",))
    try:
        rows = pl.scan_parquet(part_paths(folder)).select(*columns).with_row_index("row")
        sides = [rows.select("row", pl.col(column).alias("trajectory_id")) for column in columns]
        ids = pl.concat(sides).unique(maintain_order=True)
        return ids.group_by("trajectory_id", maintain_order=True).agg(pl.len().cast(pl.Int64).alias("rows")).collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{folder}: cannot read the dataset ({reason_of(error)})") from error


def remove_trajectories(folder: Path, trajectory_ids: Collection[str]) -> DatasetManifest:
    """Rewrite a dataset without the rows of some trajectories; counts and checksum are those of what is left.

    The new folder takes the place of the old one when it is complete. Files that do not belong to the dataset stay.
    A dataset of which nothing is left has no rows, and its manifest says so.

    Raises:
        DataError: The folder is no dataset, or it is damaged.
    """
    manifest = load_manifest(folder)
    gone = set(trajectory_ids)
    work = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.rewritten")
    try:
        if manifest.kind in ("pairs", "unpaired"):
            written, removed = _without_preferences(folder, work, manifest, gone)
        else:
            written, removed = _without_segments(folder, work, manifest, gone)
        rewritten = msgspec.structs.replace(
            written,
            excluded=manifest.excluded,
            assumed=manifest.assumed,
            lineage=manifest.lineage,
            deleted=manifest.deleted + removed,
        )
        write_manifest(work, rewritten)
        _swap(folder, work, {MANIFEST_NAME, CARD_NAME, MAPPED_NAME, *(part.name for part in part_paths(folder))})
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return rewritten


def _without_segments(
    folder: Path, work: Path, manifest: DatasetManifest, gone: Collection[str]
) -> tuple[DatasetManifest, int]:
    """Write a segment dataset without some trajectories; returns its manifest and how many are gone."""
    assert manifest.kind != "pairs" and manifest.kind != "unpaired"  # noqa: PT018 (mypy narrows this form)
    writer = SegmentWriter(
        work, kind=manifest.kind, fingerprint=manifest.fingerprint, config=manifest.config, may_be_empty=True
    )
    removed = 0
    rows: Iterator[SegmentRow] = (row for table in _tables(folder) for row in SegmentDataset(table, manifest))
    with writer:
        for name, own in groupby(rows, key=lambda row: row.trajectory_id):
            if name in gone:
                removed += 1
            else:
                writer.add(list(own))
    assert writer.manifest is not None
    return writer.manifest, removed


def _without_preferences(
    folder: Path, work: Path, manifest: DatasetManifest, gone: Collection[str]
) -> tuple[DatasetManifest, int]:
    """The same for pairs and labeled answers: a pair goes with either of its trajectories."""
    assert manifest.kind == "pairs" or manifest.kind == "unpaired"
    writer = PreferenceWriter(
        work, kind=manifest.kind, fingerprint=manifest.fingerprint, config=manifest.config, may_be_empty=True
    )
    kind = PairDataset if manifest.kind == "pairs" else UnpairedDataset
    rows: Iterator[PreferenceRow] = (row for table in _tables(folder) for row in kind(table, manifest))
    removed: set[str] = set()
    with writer:
        for row in rows:
            found = {name for name in row.trajectory_ids if name in gone}
            removed |= found
            if not found:
                writer.add(row)
    assert writer.manifest is not None
    return writer.manifest, len(removed)


def _tables(folder: Path) -> Iterator[pa.Table]:
    for part in part_paths(folder):
        try:
            yield pq.read_table(part)
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"{part}: cannot be read ({reason_of(error)}); build the dataset again") from error


def _swap(folder: Path, work: Path, own: set[str]) -> None:
    for path in folder.iterdir():
        if path.name not in own:
            path.rename(work / path.name)
    old = work.with_name(f"{work.name}.old")
    os.rename(folder, old)
    os.rename(work, folder)
    shutil.rmtree(old)
