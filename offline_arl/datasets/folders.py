"""What all dataset folders share: Parquet parts that are written group by group, and tables read as flat arrays."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from offline_arl.errors import DataError, UsageError


class FolderWriter:
    """Writes rows into the parts of a folder that appears at `output` when it is complete.

    Args:
        output: Folder to create, or to replace where it holds `manifest_name`.
        schema: The columns; a row has an attribute for each.
        manifest_name: The file that tells a dataset folder.
        rows_per_group: Rows that are held in memory.
        rows_per_part: Rows at which a new file begins.

    Raises:
        UsageError: `output` exists and is not a dataset folder.
    """

    def __init__(
        self, output: Path, schema: pa.Schema, *, manifest_name: str, rows_per_group: int, rows_per_part: int
    ) -> None:
        if output.exists() and not (output / manifest_name).is_file() and any(output.iterdir()):
            raise UsageError(f"{output} exists and is not a dataset folder; choose another output folder")
        self._output = output
        self._schema = schema
        self._rows_per_group = rows_per_group
        self._rows_per_part = rows_per_part
        self.folder = output.parent / f".{output.name}.{uuid.uuid4().hex[:8]}.tmp"
        self._buffer: list[Any] = []
        self._parquet: pq.ParquetWriter | None = None
        self._rows_in_part = 0
        self._parts = 0

    def __enter__(self) -> FolderWriter:
        self.folder.mkdir(parents=True)
        return self

    def add(self, rows: Sequence[Any]) -> None:
        """Add rows; they are written when a group is full."""
        self._buffer.extend(rows)
        if len(self._buffer) >= self._rows_per_group:
            self._flush()

    def finish(self, *, even_nothing: bool = False) -> None:
        """Write what is still held. `even_nothing`: make a part where there is no row at all."""
        self._flush(even_nothing=even_nothing)
        self._close()

    def publish(self) -> None:
        """Give the complete folder its name, in the place of one that is there."""
        if self._output.exists():
            shutil.rmtree(self._output)
        self.folder.rename(self._output)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _flush(self, *, even_nothing: bool = False) -> None:
        if not self._buffer and not even_nothing:
            return
        if self._parquet is None:
            path = self.folder / f"part-{self._parts:05d}.parquet"
            self._parquet = pq.ParquetWriter(path, self._schema, compression="zstd")
            self._parts += 1
            self._rows_in_part = 0
        columns = {
            field.name: pa.array([getattr(row, field.name) for row in self._buffer], type=field.type)
            for field in self._schema
        }
        self._parquet.write_table(pa.table(columns, schema=self._schema))
        self._rows_in_part += len(self._buffer)
        self._buffer.clear()
        if self._rows_in_part >= self._rows_per_part:
            self._close()

    def _close(self) -> None:
        if self._parquet is not None:
            self._parquet.close()
            self._parquet = None


class ColumnTable:
    """A table in memory: lists as flat arrays with offsets, everything else as Python lists."""

    def __init__(self, table: pa.Table) -> None:
        self.scalars: dict[str, list[Any]] = {}
        self._lists: dict[str, tuple[NDArray[Any], NDArray[np.int64], NDArray[np.bool_]]] = {}
        self._rows: int = table.num_rows
        for name in table.column_names:
            column = table.column(name).combine_chunks()
            if pa.types.is_large_list(column.type):
                values = column.values.to_numpy(zero_copy_only=False)
                valid = column.is_valid().to_numpy(zero_copy_only=False)
                self._lists[name] = (values, column.offsets.to_numpy(), valid)
            else:
                self.scalars[name] = column.to_pylist()

    def __len__(self) -> int:
        return self._rows

    def lengths(self, name: str) -> NDArray[np.int64]:
        """[rows] length of each list of a column."""
        return np.diff(self._lists[name][1])

    def position(self, index: int) -> int:
        """The row that `index` means, counted from the end where negative.

        Raises:
            IndexError: There is no such row.
        """
        if not -self._rows <= index < self._rows:
            raise IndexError(index)
        return int(index) % self._rows

    def values(self, position: int) -> dict[str, Any]:
        """The values of a row; lists are views."""
        found: dict[str, Any] = {name: column[position] for name, column in self.scalars.items()}
        for name, (flat, offsets, valid) in self._lists.items():
            found[name] = flat[offsets[position] : offsets[position + 1]] if valid[position] else None
        return found


def part_paths(folder: Path) -> list[Path]:
    """The Parquet parts of a dataset folder, in order."""
    return sorted(folder.glob("part-*.parquet"))


def read_parts(folder: Path, expected_rows: int) -> pa.Table:
    """All parts of a dataset folder as one table.

    Raises:
        DataError: A part cannot be read, or there are not as many rows as the manifest says.
    """
    try:
        table = pa.concat_tables([pq.read_table(part) for part in part_paths(folder)])
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{folder}: cannot read the dataset ({error}); build it again") from error
    if table.num_rows != expected_rows:
        raise DataError(f"{folder}: {table.num_rows} rows but its manifest says {expected_rows}; build it again")
    return table
