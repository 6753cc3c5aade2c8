"""Side tables: what changes about trajectories, keyed by their id, and how the trajectory table shows it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

import polars as pl

from offline_arl.errors import UsageError
from offline_arl.trajectories import files
from offline_arl.trajectories.duplicates import DUPLICATES
from offline_arl.trajectories.files import FileEntry, Manifest
from offline_arl.trajectories.schema import OutcomeStatus

SPLITS = "splits"
OUTCOMES = "outcomes"

# Side tables whose one column the trajectory table shows.
_SHOWN: Mapping[str, str] = {DUPLICATES: "duplicate_of", SPLITS: "split"}
# What the side table `outcomes` has to say; it takes the place of the columns of the same names.
_OUTCOME_COLUMNS: dict[str, pl.DataType] = {
    "status": pl.String(),
    "success": pl.Boolean(),
    "score": pl.Float64(),
    "scorer": pl.String(),
}
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


def check_side_table(name: str, frame: pl.DataFrame) -> None:
    """Whether a frame can be the side table of this name.

    Raises:
        UsageError: The name or the columns do not fit.
    """
    if _NAME.fullmatch(name) is None:
        raise UsageError(f"side table {name!r}: use lowercase letters, digits and underscores")
    if name == DUPLICATES:
        raise UsageError(f"side table {name!r}: is kept by the writer; choose another name")
    if frame.schema.get("trajectory_id") != pl.String():
        raise UsageError(f"side table {name!r}: needs a string column trajectory_id")
    if frame["trajectory_id"].null_count():
        raise UsageError(f"side table {name!r}: trajectory_id is null in some rows")
    needed = _OUTCOME_COLUMNS if name == OUTCOMES else {_SHOWN[name]: pl.String()} if name in _SHOWN else {}
    for column, dtype in needed.items():
        if frame.schema.get(column) != dtype:
            kind = "string" if dtype == pl.String() else "boolean" if dtype == pl.Boolean() else "float"
            raise UsageError(f"side table {name!r}: needs a {kind} column {column}")
    if needed and frame["trajectory_id"].is_duplicated().any():
        raise UsageError(f"side table {name!r}: a trajectory_id occurs twice")
    if name == OUTCOMES:
        unknown = set(frame["status"]) - set(get_args(OutcomeStatus))
        if unknown:
            raise UsageError(f"side table {name!r}: status must be one of {', '.join(get_args(OutcomeStatus))}")


def read_side_table(root: Path, entries: Sequence[FileEntry]) -> pl.LazyFrame:
    """The rows of a side table."""
    return pl.scan_parquet([files.whole_file(root, entry) for entry in entries])


def with_side_tables(root: Path, manifest: Manifest, frame: pl.LazyFrame) -> pl.LazyFrame:
    """Trajectory rows with the columns `duplicate_of` and `split`, and with the outcomes of the side table."""
    if OUTCOMES in manifest.side_tables:
        frame = _with_outcomes(frame, read_side_table(root, manifest.side_tables[OUTCOMES]))
    for name, column in _SHOWN.items():
        entries = manifest.side_tables.get(name)
        if entries is None:
            frame = frame.with_columns(pl.lit(None, dtype=pl.String()).alias(column))
        else:
            side = read_side_table(root, entries).select("trajectory_id", column)
            frame = frame.join(side, on="trajectory_id", how="left", maintain_order="left")
    return frame


def _with_outcomes(frame: pl.LazyFrame, outcomes: pl.LazyFrame) -> pl.LazyFrame:
    new = {name: f"{name} of the side table" for name in _OUTCOME_COLUMNS}
    side = outcomes.select("trajectory_id", *(pl.col(name).alias(alias) for name, alias in new.items()))
    joined = frame.join(side, on="trajectory_id", how="left", maintain_order="left")
    is_known = pl.col(new["status"]).is_not_null()
    return joined.with_columns(
        pl.when(is_known).then(pl.col(alias)).otherwise(pl.col(name)).alias(name) for name, alias in new.items()
    ).drop(*new.values())
