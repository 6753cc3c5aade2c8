"""Points in time in the columns of a store: text as it was logged, compared as what it means."""

from __future__ import annotations

import polars as pl

_ISO_8601 = (
    r"^\s*(\d{4}-\d{2}-\d{2})"  # date
    r"(?:[T ](\d{2}:\d{2})(?::(\d{2})(?:[.,](\d{1,6})\d*)?)?)?"  # time, seconds, microseconds
    r"\s*(Z|z|UTC|GMT|[+-]\d{2}(?::?\d{2})?)?\s*$"  # offset
)


def moment(text: pl.Expr) -> pl.Expr:
    """The moment that a text in ISO 8601 names, in UTC; null where it is none.

    A blank may stand in place of the T. A text without an offset is taken as UTC, a date as its beginning.

    >>> frame = pl.DataFrame({"at": ["2026-01-01T01:30:00+02:00", "2026-01-01", "soon"]})
    >>> [None if at is None else at.isoformat() for at in frame.select(moment(pl.col("at"))).to_series()]
    ['2025-12-31T23:30:00+00:00', '2026-01-01T00:00:00+00:00', None]
    """
    groups = text.str.extract_groups(_ISO_8601)
    date, minutes, seconds, fraction, offset = (groups.struct.field(str(number)) for number in range(1, 6))
    clock = minutes.fill_null("00:00") + ":" + seconds.fill_null("00") + "." + fraction.fill_null("0")
    local = (date + "T" + clock).str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", time_unit="us", strict=False)
    sign = pl.when(offset.str.starts_with("-")).then(-1).otherwise(1)
    hours = offset.str.extract(r"[+-](\d{2})").cast(pl.Int32).fill_null(0)
    rest = offset.str.extract(r"[+-]\d{2}:?(\d{2})").cast(pl.Int32).fill_null(0)
    return (local - pl.duration(minutes=sign * (60 * hours + rest))).dt.replace_time_zone("UTC")


def began() -> pl.Expr:
    """When a trajectory began; where the log does not say, when it ended; else null."""
    return pl.coalesce(moment(pl.col("started_at")), moment(pl.col("ended_at"))).alias("began")
