"""Bringing the index of a store level with its parts, from nothing if need be."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

import msgspec
import polars as pl

from offline_arl.trajectories.files import Manifest, Part
from offline_arl.trajectories.index import FILE, GroupRows, IndexRows, StoreIndex
from offline_arl.trajectories.part_frames import read_void
from offline_arl.trajectories.parts import ASSEMBLY_COLUMNS, DELETED_COLUMNS, assembly_entry
from offline_arl.trajectories.quarantine import RefusedRecord
from offline_arl.trajectories.record_states import (
    DELETED,
    REFUSED,
    SET_APART,
    USED,
    RecordEntry,
    after_assembly,
    after_pieces,
)

logger = logging.getLogger(__name__)


def open_index(root: Path, manifest: Manifest) -> StoreIndex:
    """Open the index and bring it level with the manifest; a missing or damaged one is rebuilt from the parts."""
    try:
        index = StoreIndex(root)
    except sqlite3.OperationalError:
        raise  # no room or no permission; the index itself may be sound
    except sqlite3.DatabaseError:
        logger.warning("%s: the index is damaged; it is rebuilt from the parts", root)
        (root / FILE).unlink()
        index = StoreIndex(root)
    if index.generation != manifest.generation:
        # Not emptied but made anew: pages that SQLite sets free would keep what was deleted.
        index.close()
        (root / FILE).unlink()
        index = StoreIndex(root)
        index.reset(manifest.generation)
    last_published = manifest.parts[-1].number if manifest.parts else 0
    behind = [part for part in manifest.parts if part.number > index.last_part]
    if (
        index.last_part > last_published  # an older manifest was put back
        or any(part.removed for part in behind)  # they void rows that the index knows
    ):
        index.reset(manifest.generation)
        behind = manifest.parts
    if behind:
        void = read_void(root, manifest).trajectories
        with index.transaction():
            for part in behind:
                index.add(part.number, _rows_of(root, part, void.get(part.number, frozenset()), index))
    return index


def _rows_of(root: Path, part: Part, void: frozenset[str], index: StoreIndex) -> IndexRows:
    rows = IndexRows()
    if part.trajectories is not None:
        frame = pl.read_parquet(root / part.trajectories.path, columns=["trajectory_id", "record_key", "content_key"])
        for name, key, content in frame.select("trajectory_id", "record_key", "content_key").iter_rows():
            if key is not None:
                rows.records[key] = USED
            if name not in void:
                rows.trajectories[name] = content
                rows.contents.setdefault(content, name)
    if part.feedback is not None:
        keys = pl.read_parquet(root / part.feedback.path, columns=["record_key"])["record_key"].drop_nulls()
        rows.records.update(dict.fromkeys(keys, USED))
    if part.set_apart is not None:
        keys = pl.read_parquet(root / part.set_apart.path, columns=["record_key"])["record_key"]
        rows.records.update(dict.fromkeys(keys, SET_APART))
    _add_pieces(root, part, rows, index)
    _add_assemblies(root, part, rows, index)
    if part.quarantine is not None:
        with (root / part.quarantine.path).open("rb") as stream:
            for line in stream:
                key = bytes.fromhex(msgspec.json.decode(line, type=RefusedRecord).key)
                rows.records.setdefault(key, REFUSED)
    if part.deleted is not None:
        for key, number, name in pl.read_parquet(root / part.deleted.path).select(*DELETED_COLUMNS).iter_rows():
            if key is not None:
                rows.records[key] = DELETED
            if number is not None:
                rows.deleted_groups[number] = name
    return rows


def _add_pieces(root: Path, part: Part, rows: IndexRows, index: StoreIndex) -> None:
    if part.pieces is None:
        return
    path = root / part.pieces.path
    frame = pl.scan_parquet(path).select("group", "group_id", "record_key", size=pl.col("payload").bin.size()).collect()
    groups = frame.group_by("group", maintain_order=True).agg(
        pl.col("group_id").first(), pl.len(), pl.col("size").sum()
    )
    rows.groups.update({number: GroupRows(*group) for number, *group in groups.iter_rows()})
    records = frame.group_by("record_key").agg(pl.col("group").n_unique())
    for key, count in records.iter_rows():
        rows.records[key] = after_pieces(index.record(key), count)


def _add_assemblies(root: Path, part: Part, rows: IndexRows, index: StoreIndex) -> None:
    if part.assemblies is not None:
        frame = pl.read_parquet(root / part.assemblies.path).select(*ASSEMBLY_COLUMNS)
        rows.assembled.update(assembly_entry(row) for row in frame.iter_rows())
    if part.fates is not None:
        for key, state in pl.read_parquet(root / part.fates.path).select("record_key", "state").iter_rows():
            known: RecordEntry | None = rows.records.get(key) or index.record(key)
            rows.records[key] = after_assembly(known, state)
