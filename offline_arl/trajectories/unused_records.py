"""Records of sources that became nothing: set apart as no interactions, or repeats of others in their session."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import polars as pl

from offline_arl.trajectories.files import Part
from offline_arl.trajectories.part_frames import Void, scan
from offline_arl.trajectories.parts import FATE_COLUMNS, SET_APART_COLUMNS
from offline_arl.trajectories.pieces import PIECE_COLUMNS
from offline_arl.trajectories.record_states import RANK

UnusedState = Literal["set_apart", "duplicate"]
COLUMNS: dict[str, pl.DataType] = {name: dtype for name, dtype in SET_APART_COLUMNS.items() if name != "record_key"}


def unused_records(root: Path, parts: Sequence[Part], void: Void, state: UnusedState) -> pl.LazyFrame:
    """One row a record of this state: format (null: of no known one), file, record, line, reason.

    Args:
        root: Folder of the store.
        parts: Its parts.
        void: Rows that do not count.
        state: "set_apart", or "duplicate": repeats another record of its session or trace.
    """
    fates = scan(root, parts, "fates", FATE_COLUMNS, void).unique(
        ["group", "record_key"], keep="last", maintain_order=True
    )
    # A record with pieces in several groups is what its best piece became.
    best = (
        fates.with_columns(pl.col("state").replace_strict(RANK, return_dtype=pl.Int64()).alias("rank"))
        .filter(pl.col("rank") == pl.col("rank").max().over("record_key"))
        .unique("record_key", keep="first", maintain_order=True)
        .filter(pl.col("state") == state)
        .select("record_key", "reason")
    )
    pieces = scan(root, parts, "pieces", PIECE_COLUMNS, void).select(
        "record_key", "format", "file", pl.col("position").alias("record"), "line"
    )
    places = pieces.unique("record_key", keep="first", maintain_order=True)
    of_groups = best.join(places, on="record_key", how="inner", maintain_order="left").select(*COLUMNS)
    if state == "duplicate":
        return of_groups
    alone = scan(root, parts, "set_apart", SET_APART_COLUMNS, void)
    return pl.concat([alone.select(*COLUMNS), of_groups])
