"""What trajectories have to do with one another: copies, splits and what leaks between them, feedback."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import polars as pl

from offline_arl.analysis.store_report import (
    Duplicates,
    FeedbackSummary,
    NamedCount,
    Shared,
    Split,
    Splits,
    Unplaced,
)
from offline_arl.trajectories.duplicates import DUPLICATES
from offline_arl.trajectories.families import KEYS
from offline_arl.trajectories.near_duplicates import NEAR_DUPLICATES
from offline_arl.trajectories.select import failed, successful
from offline_arl.trajectories.splits import SPLITS, SplitBy, read_recipe
from offline_arl.trajectories.store import Store
from offline_arl.workflows.store_report.frames import EXAMPLES, TOP, collected, rate

_NO_TYPE = "(none)"
_SPLITS = 8  # that are shown; who has more made them by hand
# What trajectories can have in common, in the order of the report, with the column that says so.
_IDENTITIES = {
    "task": "task_id",
    "group": "group_id",
    "user": "user_id",
    "session": "session_id",
    "episode": "episode_id",
}
_LINKS = {
    "sub-agent and its parent": "parent_trajectory_id",
    "branch and what it branches from": "branch_trajectory_id",
    "copy and its original": "duplicate_of",
    "near duplicate and its original": "near_duplicate_of",
}


def duplicates(store: Store) -> Duplicates:
    """Exact copies, and near duplicates where they were looked for."""
    copies, originals, largest = _clusters(store, DUPLICATES, "duplicate_of")
    if NEAR_DUPLICATES not in store.side_tables:
        return Duplicates(copies, originals, largest, None, None, ())
    near, clusters, largest_near = _clusters(store, NEAR_DUPLICATES, "near_duplicate_of")
    return Duplicates(copies, originals, largest, near, clusters, largest_near)


def _clusters(store: Store, table: str, column: str) -> tuple[int, int, tuple[NamedCount, ...]]:
    if table not in store.side_tables:
        return 0, 0, ()
    counts = collected(
        store.side_table(table)
        .group_by(column)
        .agg(pl.len().cast(pl.Int64).alias("count"))
        .sort("count", column, descending=[True, False])
    )
    largest = tuple(NamedCount(name, count) for name, count in counts.head(EXAMPLES).iter_rows())
    return int(counts["count"].sum()), counts.height, largest


def splits(store: Store) -> Splits | None:
    """The splits, and what occurs in several of them; None where the store is not split."""
    if SPLITS not in store.side_tables:
        return None
    rows = store.trajectories.select(
        "trajectory_id", "task_type", "status", "success", "split", "task_id", "group_id", "user_id", "session_id",
        "episode_id", "parent_trajectory_id", "branch_trajectory_id", "duplicate_of",
    )  # fmt: skip
    if NEAR_DUPLICATES in store.side_tables:
        marks = store.side_table(NEAR_DUPLICATES).select("trajectory_id", "near_duplicate_of")
        rows = rows.join(marks, on="trajectory_id", how="left")
    else:
        rows = rows.with_columns(pl.lit(None, pl.String()).alias("near_duplicate_of"))
    recipe = read_recipe(store)
    order = {} if recipe is None else {name: place for place, name in enumerate(recipe.fractions)}
    counts = collected(
        rows.group_by("split").agg(
            pl.len().cast(pl.Int64).alias("trajectories"),
            pl.col("task_id").drop_nulls().n_unique().cast(pl.Int64).alias("tasks"),
            successful().sum().cast(pl.Int64).alias("successes"),
            failed().sum().cast(pl.Int64).alias("failures"),
            pl.col("task_type").fill_null(_NO_TYPE).value_counts().alias("types"),
        )
    ).to_dicts()
    unassigned = sum(row["trajectories"] for row in counts if row["split"] is None)
    named = sorted(
        (row for row in counts if row["split"] is not None),
        key=lambda row: (order.get(row["split"], len(order)), row["split"]),
    )
    types = {row["split"]: {item["task_type"]: item["count"] for item in row["types"]} for row in named}
    lacking = _lacking(types)
    return Splits(
        by=None if recipe is None else recipe.by,
        rows=tuple(
            Split(
                row["split"],
                row["trajectories"],
                row["tasks"],
                rate(row["successes"], row["successes"] + row["failures"]),
            )
            for row in named[:_SPLITS]
        ),
        more=max(0, len(named) - _SPLITS),
        task_types=_by_task_type(list(types.values())[:_SPLITS]),
        unassigned=unassigned,
        shared=_shared(rows, None if recipe is None else recipe.by),
        lacking=tuple(lacking[:TOP]),
        more_lacking=max(0, len(lacking) - TOP),
    )


def _by_task_type(splits: list[dict[str, int]]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    totals: Counter[str] = Counter()
    for counts in splits:
        totals.update(counts)
    ordered = sorted(totals, key=lambda name: (-totals[name], name))
    return tuple((name, tuple(counts.get(name, 0) for counts in splits)) for name in ordered[:TOP])


def _lacking(types: Mapping[str, Collection[str]]) -> list[tuple[str, tuple[str, ...]]]:
    """The task types that some split lacks, with these splits."""
    every = sorted(set().union(*types.values()))
    lacks = {name: tuple(split for split, present in types.items() if name not in present) for name in every}
    return [(name, splits) for name, splits in lacks.items() if splits]


def _shared(rows: pl.LazyFrame, by: SplitBy | None) -> tuple[Shared, ...]:
    assigned = rows.filter(pl.col("split").is_not_null())
    # Splits that were made by hand are held to what the default promises.
    kept_together = {*KEYS[by or "task"], "episode_id"}
    found = [
        _shared_identity(assigned, what, column, is_leak=column in kept_together)
        for what, column in _IDENTITIES.items()
    ]
    found += [_shared_link(assigned, what, column) for what, column in _LINKS.items()]
    return tuple(found)


def _shared_identity(rows: pl.LazyFrame, what: str, column: str, *, is_leak: bool) -> Shared:
    known = rows.filter(pl.col(column).is_not_null())
    in_several = collected(
        known.group_by(column)
        .agg(pl.len().cast(pl.Int64).alias("count"), pl.col("split").n_unique().alias("splits"))
        .filter(pl.col("splits") > 1)
        .sort(column)
    )
    return Shared(
        what,
        "leak" if is_leak else "allowed",
        in_several.height,
        int(in_several["count"].sum()),
        tuple(in_several[column].head(EXAMPLES)),
    )


def _shared_link(rows: pl.LazyFrame, what: str, column: str) -> Shared:
    """Links lead from one split into another; what is linked shares text, so each is a leak."""
    targets = rows.select(pl.col("trajectory_id").alias(column), pl.col("split").alias("other"))
    crossing = collected(
        rows.select("trajectory_id", column, "split")
        .filter(pl.col(column).is_not_null())
        .join(targets, on=column)
        .filter(pl.col("split") != pl.col("other"))
        .sort("trajectory_id")
        .select("trajectory_id", column)
    )
    examples = tuple(f"{name} and {other}" for name, other in crossing.head(EXAMPLES).iter_rows())
    return Shared(what, "leak", crossing[column].n_unique(), crossing.height, examples)


def feedback(store: Store) -> FeedbackSummary:
    """Feedback that came apart from what it judges, and what of it found no target."""
    apart = store.feedback.filter(pl.col("target").is_not_null())
    joined = int(collected(apart.select(pl.col("trajectory_id").count())).item())
    keys = ("target", "name")
    lost = collected(
        apart.filter(pl.col("trajectory_id").is_null())
        .group_by(*keys)
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            pl.col("target_id").unique(maintain_order=True).head(EXAMPLES).alias("examples"),
        )
        .sort("count", *keys, descending=[True, False, False])
    )
    rows = tuple(
        Unplaced(row["target"], row["name"], row["count"], tuple(row["examples"]))
        for row in lost.head(TOP).iter_rows(named=True)
    )
    return FeedbackSummary(joined, int(lost["count"].sum()), rows, lost.height - len(rows))
