"""Selecting trajectories: conditions for `Store.iter_trajectories`.

They are polars expressions on the columns of `Store.trajectories`, so they combine with `&`, `|` and `~`.
"""

from __future__ import annotations

import polars as pl


def successful() -> pl.Expr:
    """Scored as a success."""
    return (pl.col("status") == "scored") & pl.col("success").fill_null(value=False)


def failed() -> pl.Expr:
    """Scored as a failure. A crash of the harness is neither a success nor a failure."""
    return (pl.col("status") == "scored") & ~pl.col("success").fill_null(value=True)


def scored() -> pl.Expr:
    """Has an outcome that a reward can be made of."""
    return (pl.col("status") == "scored") & (pl.col("success").is_not_null() | pl.col("score").is_not_null())


def in_split(*names: str) -> pl.Expr:
    """Assigned to one of the named splits (see `splits.assign_splits`)."""
    return pl.col("split").is_in(list(names)).fill_null(value=False)


def of_task_type(*task_types: str) -> pl.Expr:
    """Of one of the named task types."""
    return pl.col("task_type").is_in(list(task_types)).fill_null(value=False)


def original() -> pl.Expr:
    """Not marked as a copy of an earlier record."""
    return pl.col("duplicate_of").is_null()
