"""Copying trajectories from one store to another, as they are stored, with all that belongs to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from offline_arl.trajectories import encoding
from offline_arl.trajectories.encoding import CONTENT_COLUMNS, EncodedTrajectory, Identity
from offline_arl.trajectories.files import Part
from offline_arl.trajectories.part_frames import Void, scan
from offline_arl.trajectories.rewriting import COLUMNS
from offline_arl.trajectories.scores import JUDGEMENT_COLUMNS
from offline_arl.trajectories.store import Store
from offline_arl.trajectories.upgrade import upgraded
from offline_arl.trajectories.validate import Problem


def encoded_rows(
    store: Store, part: Part, void: Void, chosen: pl.Expr | None = None
) -> Iterator[tuple[EncodedTrajectory, bytes | None]]:
    """The trajectories of a part as they are stored, each with the key of its record.

    Args:
        store: The store.
        part: One of its parts.
        void: Rows that do not count.
        chosen: Condition on the columns of the rows.
    """
    columns = encoding.TRAJECTORY_COLUMNS
    frame = upgraded(scan(store.path, [part], "trajectories", columns, void), columns)
    if chosen is not None:
        frame = frame.filter(chosen)
    rows = frame.with_columns(pl.col(list(CONTENT_COLUMNS)).cast(pl.Binary())).select(*columns).collect()
    if rows.is_empty():
        return
    ids = rows["trajectory_id"].to_list()
    steps = _by_trajectory(store, part, void, "steps", ids)
    findings = _by_trajectory(store, part, void, "findings", ids)
    identities = _by_trajectory(store, part, void, "identities", ids)
    scores = _by_trajectory(store, part, void, "scores", ids)
    blobs = _blobs(store, part)
    for *values, record_key, content_key in rows.iter_rows():
        name, content = values[0], values[len(encoding.SCALAR_COLUMNS) :]
        encoded = EncodedTrajectory(
            name,
            tuple(values),
            steps.get(name, []),
            {blob: blobs[blob] for blob in encoding.blob_ids(content[-1])},
            content_key,
            sum(map(len, content)),
            [Problem(*row[1:]) for row in findings.get(name, ())],
            [Identity(*row[1:]) for row in identities.get(name, ())],
            [_with_metadata(row[1:]) for row in scores.get(name, ())],
        )
        yield encoded, record_key


def _by_trajectory(
    store: Store, part: Part, void: Void, kind: str, ids: list[str]
) -> Mapping[str, list[tuple[Any, ...]]]:
    found: dict[str, list[tuple[Any, ...]]] = {}
    if getattr(part, kind) is None:
        return found
    frame = scan(store.path, [part], kind, COLUMNS[kind], void).filter(pl.col("trajectory_id").is_in(ids))
    for row in frame.select(*COLUMNS[kind]).collect().iter_rows():
        found.setdefault(row[0], []).append(row)
    return found


def _blobs(store: Store, part: Part) -> Mapping[str, tuple[str, str]]:
    frame = scan(store.path, [part], "blobs", encoding.BLOB_COLUMNS, Void({}, {}))
    rows = frame.select("blob_id", "kind", "text").collect().iter_rows()
    return {name: (kind, text) for name, kind, text in rows}


_METADATA = list(JUDGEMENT_COLUMNS).index("metadata") - 1


def _with_metadata(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values of a score with its metadata as bytes, as they are when a score is encoded."""
    return (*row[:_METADATA], row[_METADATA].encode(), *row[_METADATA + 1 :])
