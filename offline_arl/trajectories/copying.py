"""Copying trajectories from one store to another, as they are stored, with all that belongs to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from offline_arl.trajectories import encoding
from offline_arl.trajectories.encoded_batch import Details, Rows, by_id, encoded_rows
from offline_arl.trajectories.encoding import EncodedTrajectory
from offline_arl.trajectories.files import Part
from offline_arl.trajectories.part_frames import Void, scan
from offline_arl.trajectories.rewriting import COLUMNS
from offline_arl.trajectories.store import Store
from offline_arl.trajectories.upgrade import upgraded


def stored_rows(
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
    rows = frame.select(*columns).collect()
    if rows.is_empty():
        return
    ids = rows["trajectory_id"].to_list()
    kinds = (_by_trajectory(store, part, void, kind, ids) for kind in Details._fields)
    yield from encoded_rows(rows, Details(*kinds), _blobs(store, part))


def _by_trajectory(store: Store, part: Part, void: Void, kind: str, ids: list[str]) -> Mapping[str, Rows]:
    if getattr(part, kind) is None:
        return {}
    frame = scan(store.path, [part], kind, COLUMNS[kind], void).filter(pl.col("trajectory_id").is_in(ids))
    return by_id(frame.select(*COLUMNS[kind]).collect().iter_rows())


def _blobs(store: Store, part: Part) -> Mapping[str, tuple[str, str]]:
    frame = scan(store.path, [part], "blobs", encoding.BLOB_COLUMNS, Void({}, {}))
    rows = frame.select("blob_id", "kind", "text").collect().iter_rows()
    return {name: (kind, text) for name, kind, text in rows}
