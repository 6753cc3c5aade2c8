"""Families: trajectories that must not be parted, because who has seen one has seen the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

Rows = npt.NDArray[np.int64]
SplitBy = Literal["task", "user", "session", "time"]

# Whatever is split by, text is shared along these.
_REFERENCES = ("parent_trajectory_id", "branch_trajectory_id", "duplicate_of", "near_duplicate_of")
_SHARED = ("episode_id",)
# What is shared within a split besides.
KEYS: dict[SplitBy, tuple[str, ...]] = {
    "task": ("task_id", "group_id"),
    "user": ("user_id",),
    "session": ("session_id",),
    "time": ("task_id", "group_id"),
}


def families(frame: pl.DataFrame, by: SplitBy) -> Rows:
    """The family of each row, named by the first row of it.

    Args:
        frame: The columns trajectory_id, episode_id, parent_trajectory_id, branch_trajectory_id, duplicate_of,
            near_duplicate_of and those in `KEYS`. What a trajectory refers to need not be there: two that refer to
            the same are one family anyway.
        by: Which identities are shared within a family.
    """
    indexed = frame.with_row_index("row")
    rows = indexed.select(pl.col("row").cast(pl.Int64), "trajectory_id")
    left, right = [], []
    for column in (*_SHARED, *KEYS[by], *_REFERENCES):
        named = indexed.select(pl.col("row").cast(pl.Int64), pl.col(column).alias("name")).drop_nulls()
        first = named.select("row", pl.col("row").min().over("name").alias("first"))
        left.append(first["row"].to_numpy())
        right.append(first["first"].to_numpy())
        if column in _REFERENCES:
            found = named.join(rows.rename({"row": "target"}), left_on="name", right_on="trajectory_id")
            left.append(found["row"].to_numpy())
            right.append(found["target"].to_numpy())
    return components(frame.height, np.concatenate(left), np.concatenate(right))


def components(count: int, left: Rows, right: Rows) -> Rows:
    """Connected components of `count` nodes under edges left[i] - right[i]: the lowest node of each node's component.

    >>> components(5, np.array([0, 3, 4]), np.array([1, 4, 1])).tolist()
    [0, 0, 2, 0, 0]
    """
    parents = np.arange(count)
    while True:
        first, second = parents[left], parents[right]
        apart = first != second
        if not apart.any():
            return parents
        left, right = left[apart], right[apart]
        # Hang the higher root under the lowest it has an edge to, then let every node point to its root.
        np.minimum.at(parents, np.maximum(first[apart], second[apart]), np.minimum(first[apart], second[apart]))
        while (parents[parents] != parents).any():
            parents = parents[parents]


def family_columns() -> Sequence[str]:
    """The columns of `Store.trajectories` that `families` reads, whatever is split by."""
    keys = {key for names in KEYS.values() for key in names}
    return ("trajectory_id", *_SHARED, *sorted(keys), *(name for name in _REFERENCES if name != "near_duplicate_of"))
