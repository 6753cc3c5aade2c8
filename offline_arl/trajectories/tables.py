"""Rows of Python values as frames, which is faster than what polars does by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl


def table(rows: Sequence[Sequence[Any]], columns: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """A frame of `rows` (values in the order of `columns`); text may come as UTF-8 bytes."""
    data = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    series = []
    for (name, dtype), values in zip(columns.items(), data, strict=True):
        if dtype == pl.String() and values and isinstance(values[0], bytes):
            series.append(pl.Series(name, values, dtype=pl.Binary()).cast(pl.String()))
        elif isinstance(dtype, pl.List):
            series.append(_list_series(name, values))
        else:
            series.append(pl.Series(name, values, dtype=dtype))
    return pl.DataFrame(series)


def _list_series(name: str, values: Sequence[Sequence[str]]) -> pl.Series:
    """Lists of strings; polars itself builds a series for each list, which is many times slower."""
    positions = [row for row, value in enumerate(values) for _ in value]
    items = [item for value in values for item in value]
    flat = pl.DataFrame({"row": positions, name: items}, schema={"row": pl.Int64(), name: pl.String()})
    lists = flat.group_by("row", maintain_order=True).agg(name)
    rows = pl.DataFrame({"row": range(len(values))}, schema={"row": pl.Int64()})
    joined = rows.join(lists, on="row", how="left", maintain_order="left")
    return joined[name].fill_null(pl.Series([[]], dtype=pl.List(pl.String())))
