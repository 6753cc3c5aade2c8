"""Encoded trajectories of many records as tables: quick to send between processes, and to write.

A table that is built while its rows are still in the processor's caches costs a fraction of one built later, and a
process that gets tables has next to nothing to do for a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from pickle import PickleBuffer
from typing import Any, NamedTuple, SupportsIndex

import polars as pl

from offline_arl.trajectories import encoding
from offline_arl.trajectories.encoding import EncodedTrajectory, Identity
from offline_arl.trajectories.scores import JUDGEMENT_COLUMNS
from offline_arl.trajectories.tables import table
from offline_arl.trajectories.validate import Problem

Rows = list[tuple[Any, ...]]


class EncodedBatch(NamedTuple):
    """Trajectories in the order of their records, each id once; the rows of the last three lists begin with it."""

    contents: dict[str, bytes]  # trajectory id to content key
    record_keys: list[bytes | None]
    rows: pl.DataFrame  # TRAJECTORY_COLUMNS
    steps: pl.DataFrame  # STEP_COLUMNS
    blobs: dict[str, tuple[str, str]]
    size: int  # bytes of JSON
    findings: Rows
    identities: Rows
    scores: Rows

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """For the way between processes: tables stay apart, where they can, so that they are copied once."""
        tables: dict[str, Any] = {"rows": _packed(self.rows), "steps": _packed(self.steps)}
        if int(protocol) >= 5:
            tables = {name: PickleBuffer(table) for name, table in tables.items()}
        return _unpacked, ({**self._asdict(), **tables},)

    def items(self) -> Iterator[tuple[EncodedTrajectory, bytes | None]]:
        """The trajectories one by one, each with the key of its record."""
        details = Details(by_id(self.steps.iter_rows()), *map(by_id, (self.findings, self.identities, self.scores)))
        yield from encoded_rows(self.rows, details, self.blobs)


def _packed(frame: pl.DataFrame) -> Any:
    stream = BytesIO()
    frame.write_ipc_stream(stream, compression="uncompressed")
    return stream.getvalue()  # which copies nothing


def _unpacked(fields: dict[str, Any]) -> EncodedBatch:
    frames = {name: pl.read_ipc_stream(bytes(fields[name])) for name in ("rows", "steps")}
    return EncodedBatch(**{**fields, **frames})


class BatchBuilder:
    """Puts trajectories together to batches: as few as can be, one where no id occurs twice."""

    def __init__(self) -> None:
        self._finished: list[EncodedBatch] = []
        self._start()

    def add(self, item: EncodedTrajectory, record_key: bytes | None) -> None:
        """Add a trajectory and the key of its record."""
        name, content_key = item.trajectory_id, item.content_key
        if name in self._contents:
            self._end()
        self._contents[name] = content_key
        self._record_keys.append(record_key)
        self._rows.append((*item.values, record_key, content_key))
        self._steps.extend(item.steps)
        self._blobs.update(item.blobs)
        self._size += item.size
        if item.findings:
            self._findings.extend((name, *problem) for problem in item.findings)
        if item.identities:
            self._identities.extend((name, *identity) for identity in item.identities)
        if item.scores:
            self._scores.extend((name, *score) for score in item.scores)

    def batches(self) -> list[EncodedBatch]:
        """What was added, in order; begins anew."""
        if self._contents:
            self._end()
        finished, self._finished = self._finished, []
        return finished

    def _start(self) -> None:
        self._contents: dict[str, bytes] = {}
        self._record_keys: list[bytes | None] = []
        self._rows: Rows = []
        self._steps: Rows = []
        self._blobs: dict[str, tuple[str, str]] = {}
        self._findings: Rows = []
        self._identities: Rows = []
        self._scores: Rows = []
        self._size = 0

    def _end(self) -> None:
        batch = EncodedBatch(
            self._contents,
            self._record_keys,
            table(self._rows, encoding.TRAJECTORY_COLUMNS),
            table(self._steps, encoding.STEP_COLUMNS),
            self._blobs,
            self._size,
            self._findings,
            self._identities,
            self._scores,
        )
        self._finished.append(batch)
        self._start()


class Details(NamedTuple):
    """Rows that belong to trajectories, by trajectory id."""

    steps: Mapping[str, Rows]
    findings: Mapping[str, Rows]
    identities: Mapping[str, Rows]
    scores: Mapping[str, Rows]


def by_id(rows: Iterable[tuple[Any, ...]]) -> dict[str, Rows]:
    """Rows by their first value."""
    found: dict[str, Rows] = {}
    for row in rows:
        found.setdefault(row[0], []).append(row)
    return found


def encoded_rows(
    rows: pl.DataFrame, details: Details, blobs: Mapping[str, tuple[str, str]]
) -> Iterator[tuple[EncodedTrajectory, bytes | None]]:
    """Trajectories as they were encoded, each with the key of its record.

    Args:
        rows: With the columns TRAJECTORY_COLUMNS.
        details: Of these trajectories.
        blobs: All that the rows refer to.
    """
    content_columns = pl.col(list(encoding.CONTENT_COLUMNS))
    for *values, record_key, content_key in rows.with_columns(content_columns.cast(pl.Binary())).iter_rows():
        name, content = values[0], values[len(encoding.SCALAR_COLUMNS) :]
        encoded = EncodedTrajectory(
            name,
            tuple(values),
            details.steps.get(name, []),
            {blob: blobs[blob] for blob in encoding.blob_ids(content[-1])},
            content_key,
            sum(map(len, content)),
            [Problem(*row[1:]) for row in details.findings.get(name, ())],
            [Identity(*row[1:]) for row in details.identities.get(name, ())],
            [_with_metadata(row[1:]) for row in details.scores.get(name, ())],
        )
        yield encoded, record_key


_METADATA = list(JUDGEMENT_COLUMNS).index("metadata") - 1


def _with_metadata(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values of a score with its metadata as bytes, as they are when a score is encoded."""
    metadata = row[_METADATA]
    return (*row[:_METADATA], metadata.encode() if isinstance(metadata, str) else metadata, *row[_METADATA + 1 :])
