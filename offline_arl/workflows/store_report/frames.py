"""What the parts of a report share: bounded lists of counts, shares, and collecting in bounded memory."""

from __future__ import annotations

import math

import polars as pl

from offline_arl.analysis.store_report import NamedCount, Rate, TopList
from offline_arl.evaluation.intervals import wilson_interval

TOP = 12
EXAMPLES = 5


def collected(frame: pl.LazyFrame) -> pl.DataFrame:
    """The rows of a query, computed piece by piece."""
    return frame.collect(engine="streaming")


def top(frame: pl.LazyFrame, column: str, limit: int = TOP) -> TopList:
    """The most frequent values of a column of texts; ties in the order of the texts."""
    counts = collected(frame.group_by(column).agg(pl.len().cast(pl.Int64).alias("count")))
    missing = int(counts.filter(pl.col(column).is_null())["count"].sum())
    present = counts.drop_nulls(column).sort("count", column, descending=[True, False])
    rows = tuple(NamedCount(name, count) for name, count in present.head(limit).iter_rows())
    return TopList(rows, present.height, int(present["count"].sum()) - sum(row.count for row in rows), missing)


def rate(successes: int, n: int) -> Rate:
    """A share with its interval."""
    found = wilson_interval(successes, n)
    return Rate(None if math.isnan(found.estimate) else found.estimate, found.low, found.high, n)
