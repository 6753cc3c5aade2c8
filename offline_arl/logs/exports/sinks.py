"""Where records go: JSON lines, a Parquet table, a folder of documents. Memory does not grow with their number."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec

from offline_arl.logs.exports.columns import array_of, pyarrow
from offline_arl.logs.exports.exporter import Container

_GROUP_BYTES = 16 * 2**20  # of a row group of Parquet, as JSON
_GROUP_ROWS = 1_000
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_]{1,80}")


class Sink(Protocol):
    """Takes records one by one; used as a context manager, at whose end everything is on the disk."""

    def write(self, record: Mapping[str, Any], name: str) -> None:
        """Take a record; `name` is the id of its (first) trajectory."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Columned(Protocol):
    """Names the Arrow types of its records, where they are written as Parquet."""

    def arrow_columns(self) -> Mapping[str, Any]:
        """The columns, in order."""
        ...


def open_sink(exporter: Columned, container: Container, path: Path) -> Sink:
    """A sink for the records of an exporter; `path` does not exist yet."""
    if container == "folder":
        return _Folder(path)
    if container == "parquet":
        return _Parquet(path, exporter.arrow_columns())
    return _JsonLines(path)


class _JsonLines:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Self:
        self._stream = self._path.open("xb", buffering=1 << 20)
        return self

    def write(self, record: Mapping[str, Any], name: str) -> None:
        self._stream.write(msgspec.json.encode(record) + b"\n")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stream:
            if kind is None:
                self._stream.flush()
                os.fsync(self._stream.fileno())


class _Folder:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Self:
        self._path.mkdir()
        return self

    def write(self, record: Mapping[str, Any], name: str) -> None:
        (self._path / f"{_file_name(name)}.json").write_bytes(msgspec.json.encode(record))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class _Parquet:
    def __init__(self, path: Path, columns: Mapping[str, Any]) -> None:
        pa = pyarrow()
        self._path = path
        self._schema = pa.schema(list(columns.items()))
        self._rows: list[Mapping[str, Any]] = []
        self._bytes = 0
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        import pyarrow.parquet

        self._writer = self._stack.enter_context(pyarrow.parquet.ParquetWriter(self._path, self._schema))
        return self

    def write(self, record: Mapping[str, Any], name: str) -> None:
        self._rows.append(record)
        self._bytes += len(msgspec.json.encode(record))
        if self._bytes >= _GROUP_BYTES or len(self._rows) >= _GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        pa = pyarrow()
        if self._rows:
            columns = [array_of([row.get(field.name) for row in self._rows], field.type) for field in self._schema]
            self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema))
        self._rows, self._bytes = [], 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            if kind is None:
                self._flush()


def _file_name(name: str) -> str:
    """The id where it is a harmless file name; else one made from it."""
    return name if _PLAIN_NAME.fullmatch(name) else hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
