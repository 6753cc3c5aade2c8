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
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from offline_arl.errors import DataError, UsageError, reason_of

MAPPED_NAME = ".mapped"  # in a dataset folder: an uncompressed copy, made when it is read by mapping
ROWS_PER_BATCH = 2_048


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
        self.schema = schema
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
            self._parquet = pq.ParquetWriter(path, self.schema, compression="zstd")
            self._parts += 1
            self._rows_in_part = 0
        columns = {
            field.name: pa.array([getattr(row, field.name) for row in self._buffer], type=field.type)
            for field in self.schema
        }
        self._parquet.write_table(pa.table(columns, schema=self.schema))
        self._rows_in_part += len(self._buffer)
        self._buffer.clear()
        if self._rows_in_part >= self._rows_per_part:
            self._close()

    def _close(self) -> None:
        if self._parquet is not None:
            self._parquet.close()
            self._parquet = None


class ColumnTable:
    """A table by rows: lists as flat arrays with offsets, everything else as Python values.

    Args:
        table: In memory, or mapped from a file.
        mapped: Read a row's values when they are asked for, instead of all of them now.
    """

    def __init__(self, table: pa.Table, *, mapped: bool = False) -> None:
        self.scalars = _Scalars(table)
        self._mapped = mapped
        self._lists = {
            field.name: _ListColumn(table.column(field.name), mapped=mapped)
            for field in table.schema
            if pa.types.is_large_list(field.type)
        }
        self._others = [name for name in table.column_names if name not in self._lists]
        self._table = table
        self._rows: int = table.num_rows

    def __len__(self) -> int:
        return self._rows

    def lengths(self, name: str) -> NDArray[np.int64]:
        """[rows] length of each list of a column."""
        return self._lists[name].lengths()

    def largest(self, name: str) -> int:
        """The largest value in the lists of a column of integers."""
        flat = pc.list_flatten(self._table.column(name))
        return int(pc.max(flat).as_py())

    def position(self, index: int) -> int:
        """The row that `index` means, counted from the end where negative.

        Raises:
            IndexError: There is no such row.
        """
        if not -self._rows <= index < self._rows:
            raise IndexError(index)
        return int(index) % self._rows

    def values(self, position: int) -> dict[str, Any]:
        """The values of a row; lists are views where they need no unpacking."""
        if self._mapped:
            found = {name: self._table.column(name)[position].as_py() for name in self._others}
        else:
            found = {name: self.scalars[name][position] for name in self._others}
        for name, column in self._lists.items():
            found[name] = column.at(position)
        return found


class _Scalars(dict[str, list[Any]]):
    """Columns as Python lists, made when they are asked for."""

    def __init__(self, table: pa.Table) -> None:
        super().__init__()
        self._table = table

    def __missing__(self, name: str) -> list[Any]:
        self[name] = self._table.column(name).to_pylist()
        return self[name]


class _ListColumn:
    """The lists of a column: values and offsets of each chunk."""

    def __init__(self, column: pa.ChunkedArray, *, mapped: bool) -> None:
        chunks = column.chunks if mapped else [column.combine_chunks()]
        self._starts = np.cumsum([0, *(len(chunk) for chunk in chunks)])
        self._offsets = [chunk.offsets.to_numpy() for chunk in chunks]
        self._valid = [
            chunk.is_valid().to_numpy(zero_copy_only=False) if chunk.null_count else None for chunk in chunks
        ]
        # Bits are unpacked here, or for one row at a time where a file is mapped.
        packed = mapped and pa.types.is_boolean(column.type.value_type)
        self._values = [chunk.values if packed else chunk.values.to_numpy(zero_copy_only=False) for chunk in chunks]

    def lengths(self) -> NDArray[np.int64]:
        """[rows] length of each list."""
        return np.concatenate([np.diff(offsets) for offsets in self._offsets] or [np.zeros(0, dtype=np.int64)])

    def at(self, position: int) -> NDArray[Any] | None:
        """A row's list; None where it has none."""
        chunk = int(np.searchsorted(self._starts, position, side="right")) - 1 if len(self._starts) > 2 else 0
        row = position - int(self._starts[chunk])
        valid, offsets = self._valid[chunk], self._offsets[chunk]
        if valid is not None and not valid[row]:
            return None
        start, end = int(offsets[row]), int(offsets[row + 1])
        values = self._values[chunk]
        if isinstance(values, pa.Array):
            unpacked: NDArray[Any] = values.slice(start, end - start).to_numpy(zero_copy_only=False)
            return unpacked
        found: NDArray[Any] = values[start:end]
        return found


def part_paths(folder: Path) -> list[Path]:
    """The Parquet parts of a dataset folder, in order."""
    return sorted(folder.glob("part-*.parquet"))


def read_parts(folder: Path, expected_rows: int, *, mapped_as: str | None = None) -> pa.Table:
    """All parts of a dataset folder as one table.

    Args:
        folder: The dataset.
        expected_rows: What its manifest says.
        mapped_as: None reads everything into memory. A name (of the content) maps an uncompressed copy of that name
            into memory instead, which is made in `folder/.mapped` when it is not there; other copies are removed.

    Raises:
        DataError: A part cannot be read, the copy cannot be written, or there are not as many rows as the manifest
            says.
    """
    try:
        if mapped_as is None:
            table = pa.concat_tables([pq.read_table(part) for part in part_paths(folder)])
        else:
            table = pa.ipc.open_file(pa.memory_map(str(_uncompressed(folder, mapped_as)))).read_all()
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{folder}: cannot read the dataset ({reason_of(error)}); build it again") from error
    if table.num_rows != expected_rows:
        raise DataError(f"{folder}: {table.num_rows} rows but its manifest says {expected_rows}; build it again")
    return table


def _uncompressed(folder: Path, name: str) -> Path:
    """An Arrow file with the rows of all parts, group by group."""
    place = folder / MAPPED_NAME
    path = place / f"{name}.arrow"
    if path.is_file():
        return path
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    partial = place / f".{name}.{uuid.uuid4().hex[:8]}"
    parts = part_paths(folder)
    with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, pq.read_schema(parts[0])) as writer:
        for part in parts:
            for batch in pq.ParquetFile(part).iter_batches(batch_size=ROWS_PER_BATCH):
                writer.write_batch(batch)
    partial.replace(path)
    return path
