"""Rows of Python values as frames, which is faster than what polars does by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl


class GrowingTable:
    """Rows on their way to a file, one after another or many at once.

    Args:
        columns: Names and types of the columns.
    """

    def __init__(self, columns: Mapping[str, pl.DataType]) -> None:
        self._columns = columns
        self._frames: list[pl.DataFrame] = []
        self._rows: list[Sequence[Any]] = []
        self._height = 0

    def __len__(self) -> int:
        return self._height + len(self._rows)

    def extend(self, rows: Iterable[Sequence[Any]]) -> None:
        """Add rows, values in the order of the columns."""
        self._rows.extend(rows)

    def extend_frame(self, frame: pl.DataFrame) -> None:
        """Add the rows of a frame that has the columns."""
        self._settle()
        self._frames.append(frame)
        self._height += frame.height

    def frame(self) -> pl.DataFrame:
        """All rows in order."""
        self._settle()
        return pl.concat(self._frames, rechunk=True) if self._frames else table([], self._columns)

    def _settle(self) -> None:
        if self._rows:
            self._frames.append(table(self._rows, self._columns))
            self._height += len(self._rows)
            self._rows = []


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
    """Lists of strings, of which few differ; polars itself builds a series for each, which is many times slower."""
    places: dict[tuple[str, ...], int] = {}
    chosen = [places.setdefault(tuple(value), len(places)) for value in values]
    return pl.Series(name, [list(value) for value in places], dtype=pl.List(pl.String())).gather(chosen)
