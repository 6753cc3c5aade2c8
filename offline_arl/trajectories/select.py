"""Selecting trajectories: conditions for `Store.iter_trajectories`, and splits that do not leak.

The conditions are polars expressions on the columns of `Store.trajectories`, so they combine with `&`, `|`
and `~`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence

import polars as pl

from offline_arl.errors import UsageError
from offline_arl.trajectories.side_tables import SPLITS
from offline_arl.trajectories.store import Store


def successful() -> pl.Expr:
    """Scored as a success."""
    return (pl.col("status") == "scored") & pl.col("success").fill_null(value=False)


def failed() -> pl.Expr:
    """Scored as a failure. A crash of the harness is neither a success nor a failure."""
    return (pl.col("status") == "scored") & ~pl.col("success").fill_null(value=True)


def scored() -> pl.Expr:
    """Has an outcome that a reward can be made of."""
    return (pl.col("status") == "scored") & (pl.col("success").is_not_null() | pl.col("score").is_not_null())


def in_split(*names: str) -> pl.Expr:
    """Assigned to one of the named splits (see `assign_splits`)."""
    return pl.col("split").is_in(list(names)).fill_null(value=False)


def of_task_type(*task_types: str) -> pl.Expr:
    """Of one of the named task types."""
    return pl.col("task_type").is_in(list(task_types)).fill_null(value=False)


def original() -> pl.Expr:
    """Not marked as a copy of an earlier record."""
    return pl.col("duplicate_of").is_null()


def assign_splits(store: Store, fractions: Mapping[str, float], seed: int) -> pl.DataFrame:
    """Assign every trajectory to a split and write the side table `splits`.

    What belongs together stays together: trajectories that share a task, a group or an episode, that branch from
    or are started by one another, or that copy one another, are in one split, so nothing that was trained on is
    seen in evaluation. The sizes count such families, not trajectories, and are as close to `fractions` as whole
    families allow, overall and within each task type.

    Args:
        store: The store; an earlier table `splits` is replaced.
        fractions: Share of each split, for example `{"train": 0.8, "validation": 0.2}`; positive, sum 1.
        seed: The same seed and the same trajectories give the same splits.

    Returns:
        Columns trajectory_id and split, in the order of the store.

    Raises:
        UsageError: The fractions are not positive or do not sum to 1, or another writer is at work.
    """
    if not fractions or min(fractions.values()) <= 0 or not math.isclose(sum(fractions.values()), 1, abs_tol=1e-6):
        raise UsageError(f"splits: fractions must be positive and sum to 1, not {dict(fractions)}")
    frame = store.trajectories.select(
        "trajectory_id",
        "task_id",
        "group_id",
        "episode_id",
        "parent_trajectory_id",
        "branch_trajectory_id",
        "duplicate_of",
        "task_type",
    ).collect()
    families = _families(frame)
    task_types: dict[int, str] = {}
    names: dict[int, str] = {}
    for family, row in zip(families, frame.iter_rows(named=True), strict=True):
        task_types[family] = min(task_types.get(family, row["task_type"] or ""), row["task_type"] or "")
        name = row["task_id"] or row["trajectory_id"]
        names[family] = min(names.get(family, name), name)
    order = sorted(names, key=lambda family: (task_types[family], _random_key(seed, names[family]), names[family]))
    split_of = dict(zip(order, _allocate(len(order), fractions), strict=True))
    result = pl.DataFrame(
        {"trajectory_id": frame["trajectory_id"], "split": [split_of[family] for family in families]},
        schema={"trajectory_id": pl.String(), "split": pl.String()},
    )
    store.write_side_table(SPLITS, result)
    return result


def _random_key(seed: int, name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=16, key=str(seed).encode()).digest()


def _allocate(count: int, fractions: Mapping[str, float]) -> list[str]:
    """Give each of `count` families, in order, to the split that is most behind its share.

    Any run of consecutive families, such as those of one task type, then has nearly the asked-for shares.
    """
    assigned = dict.fromkeys(fractions, 0)
    chosen = []
    for position in range(1, count + 1):
        split = max(fractions, key=lambda name: fractions[name] * position - assigned[name])
        assigned[split] += 1
        chosen.append(split)
    return chosen


def _families(frame: pl.DataFrame) -> list[int]:
    """Connected components of the trajectories under shared identities, one number a row (union-find)."""
    parents: list[int] = list(range(frame.height))

    def root(node: int) -> int:
        while parents[node] != node:
            parents[node] = parents[parents[node]]
            node = parents[node]
        return node

    def join(keys: Sequence[str | None], others: Mapping[str, int] | None = None) -> None:
        seen: dict[str, int] = dict(others or {})
        for row, key in enumerate(keys):
            if key is None:
                continue
            first, second = root(seen.setdefault(key, row)), root(row)
            parents[max(first, second)] = min(first, second)

    for column in ("task_id", "group_id", "episode_id"):
        join(frame[column].to_list())
    by_id = {name: row for row, name in enumerate(frame["trajectory_id"])}
    for column in ("parent_trajectory_id", "branch_trajectory_id", "duplicate_of"):
        join(frame[column].to_list(), by_id)
    return [root(row) for row in range(frame.height)]
