"""Parquet and Arrow tables: one row a record, or one episode a record where Minari wrote the table.

Rows are read in small batches, so that memory does not grow with the file. Columns that hold JSON as strings stay
strings; adapters know which of them to parse. Arrow's own JSON type is decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from offline_arl import optional
from offline_arl.errors import DataError
from offline_arl.logs.adapter import RawRecord
from offline_arl.logs.containers.minari import EPISODE_COLUMNS, episodes_of_rows
from offline_arl.logs.containers.plain_json import encode, plain
from offline_arl.logs.primitives.json_values import decode_json
from offline_arl.logs.records import MAX_RECORD_BYTES, LogFile

_PARQUET = b"PAR1"
_ARROW_FILE = b"ARROW1"
_ARROW_STREAM = b"\xff\xff\xff\xff"
_BATCH_ROWS = 64


class Row(NamedTuple):
    """A row by its number in the table, or the reason why there is none that can be read from there on."""

    number: int
    values: dict[str, Any] | None
    problem: str | None = None


def matches(head: bytes, name: str) -> bool:
    """Whether the first bytes are those of a Parquet file, an Arrow file or an Arrow stream."""
    return head.startswith((_PARQUET, _ARROW_FILE, _ARROW_STREAM))


def read(file: LogFile) -> Iterator[RawRecord]:
    """Yield the rows in order; a damaged part of the table becomes one record with a `problem`."""
    try:
        with file.path.open("rb") as stream:
            magic = stream.read(len(_ARROW_FILE))
    except OSError as error:
        raise DataError(f"{file.shown}: cannot be read: {error.strerror or error}") from error
    optional.require("pyarrow", extra="logs")
    rows = _parquet_rows(file.path) if magic.startswith(_PARQUET) else _arrow_rows(file.path, magic == _ARROW_FILE)
    first = next(rows, Row(0, None, "the table has no rows"))
    if first.values is not None and first.values.keys() >= EPISODE_COLUMNS:
        yield from episodes_of_rows(file, _chained(first, rows))
        return
    for row in _chained(first, rows):
        yield _record(file, row)


def _chained(first: Row, rest: Iterable[Row]) -> Iterator[Row]:
    yield first
    yield from rest


def _record(file: LogFile, row: Row) -> RawRecord:
    if row.values is None:
        return RawRecord(file.shown, file.label, row.number, b"", problem=row.problem)
    try:
        raw = encode(row.values)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return RawRecord(file.shown, file.label, row.number, b"", problem=f"the row has no JSON form: {error}")
    if len(raw) > MAX_RECORD_BYTES:
        problem = f"the row is longer than {MAX_RECORD_BYTES} bytes"
        return RawRecord(file.shown, file.label, row.number, raw[:4096], problem=problem)
    return RawRecord(file.shown, file.label, row.number, raw)


def _parquet_rows(path: Path) -> Iterator[Row]:
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as table:
            for group in range(table.num_row_groups):
                start, count = number, table.metadata.row_group(group).num_rows
                try:
                    for batch in table.iter_batches(_BATCH_ROWS, row_groups=[group], use_threads=False):
                        for values, problem in _values(batch):
                            yield Row(number, values, problem)
                            number += 1
                except _damage() as error:
                    lost = f"row group {group} cannot be read after {number - start} of its {count} rows"
                    yield Row(number, None, f"{lost}: {_brief(error)}")
                number = start + count
    except _damage() as error:
        yield Row(number, None, f"the Parquet file cannot be read: {_brief(error)}")


def _arrow_rows(path: Path, is_file: bool) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.ipc

    number = 0
    try:
        with pa.OSFile(str(path)) as stream:
            reader = pa.ipc.open_file(stream) if is_file else pa.ipc.open_stream(stream)
            batches = (reader.get_batch(index) for index in range(reader.num_record_batches)) if is_file else reader
            for batch in batches:
                # The offsets in the file are taken on trust by everything that comes after.
                batch.validate(full=True)
                for start in range(0, batch.num_rows, _BATCH_ROWS):
                    for values, problem in _values(batch.slice(start, _BATCH_ROWS)):
                        yield Row(number, values, problem)
                        number += 1
    except _damage() as error:
        yield Row(number, None, f"the Arrow file cannot be read further: {_brief(error)}")


def _values(batch: Any) -> Iterator[tuple[dict[str, Any] | None, str | None]]:
    """The rows of a batch as dictionaries; where one does not convert, None and why."""
    batch = _coarse_times(batch)
    columns = _json_columns(batch.schema)
    try:
        rows = batch.to_pylist()
    except (ValueError, OverflowError):
        # One string that is not UTF-8 fails the batch: go on row by row, so that only its row is lost.
        for index in range(batch.num_rows):
            try:
                yield _row(batch.slice(index, 1).to_pylist()[0], columns), None
            except (ValueError, OverflowError, RecursionError) as error:
                yield None, f"the row cannot be read: {_brief(error)}"
        return
    for row in rows:
        yield _row(row, columns), None


def _row(row: dict[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = plain(row)
    for name in columns:
        values[name] = _decoded(values.get(name))
    return values


def _json_columns(schema: Any) -> list[str]:
    """Columns of Arrow's JSON type or of lists of it: their texts are not strings but values."""
    import pyarrow as pa

    kinds = {field.name: field.type for field in schema}
    kinds = {name: kind.value_type if pa.types.is_list(kind) else kind for name, kind in kinds.items()}
    return [name for name, kind in kinds.items() if getattr(kind, "extension_name", "") == "arrow.json"]


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    try:
        return decode_json(value.encode()) if isinstance(value, str) else value
    except (msgspec.DecodeError, RecursionError):
        return value


def _coarse_times(batch: Any) -> Any:
    """Times in nanoseconds as microseconds, which is what Python's types hold."""
    import pyarrow as pa

    for index, field in enumerate(batch.schema):
        kind = field.type
        if pa.types.is_timestamp(kind) and kind.unit == "ns":
            column = batch.column(index).cast(pa.timestamp("us", kind.tz), safe=False)
            batch = batch.set_column(index, field.name, column)
        elif pa.types.is_duration(kind) and kind.unit == "ns":
            batch = batch.set_column(index, field.name, batch.column(index).cast(pa.duration("us"), safe=False))
    return batch


def _damage() -> tuple[type[BaseException], ...]:
    import pyarrow as pa

    return (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError)


def _brief(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
