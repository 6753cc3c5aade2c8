"""Stores of earlier schema versions, read as if this version had written them.

Nothing on disk changes: parts are immutable, and a store may hold parts of several versions.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from offline_arl.trajectories.schema import SCHEMA_VERSION

EARLIER_VERSIONS = ("1.0",)
# Columns of trajectories that a later version added, with what a row of before has there; null where not named.
_ADDED: Mapping[str, object] = {"n_scores": 0, "identifiers": "{}", "scores": "[]"}


def upgraded(frame: pl.LazyFrame, columns: Mapping[str, pl.DataType]) -> pl.LazyFrame:
    """The rows of a trajectory file of any version, with the columns that earlier versions lack filled in.

    Args:
        frame: Scan whose missing columns are null.
        columns: The columns that are shown.
    """
    version = pl.col("schema_version")
    return frame.with_columns(
        pl.when(version.is_in(list(EARLIER_VERSIONS)))
        .then(pl.lit(SCHEMA_VERSION))
        .otherwise(version)
        .alias("schema_version"),
        *(pl.col(name).fill_null(value) for name, value in _ADDED.items() if name in columns),
    )


def is_readable(version: str) -> bool:
    """Whether a store of a schema version can be read: every version up to this one of the same major number."""
    return version == SCHEMA_VERSION or version in EARLIER_VERSIONS
