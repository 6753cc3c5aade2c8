"""Outcomes that come after the trajectories: the side table `outcomes`, which takes the place of what was logged."""

from __future__ import annotations

from typing import Literal

import polars as pl

from offline_arl.errors import UsageError
from offline_arl.trajectories.schema import Direction
from offline_arl.trajectories.side_tables import OUTCOMES
from offline_arl.trajectories.store import Store

Verdict = Literal["higher_is_better", "lower_is_better"]


def label_outcomes(
    store: Store, name: str, *, threshold: float | None = None, direction: Verdict | None = None
) -> pl.DataFrame:
    """Make the judgements of one name the outcomes of the trajectories that they are about.

    Several judgements of a trajectory count by their mean. A trajectory without any keeps the outcome that it has: a
    missing judgement is not a bad one. Crashes of the harness stay what they are. An earlier table `outcomes` is
    replaced.

    Args:
        store: The store.
        name: Name of the judgement, see the column `name` of `Store.feedback`.
        threshold: Success is a score of at least this (at most, where lower is better). None: scores only.
        direction: Which way is better; None: as the judgements say.

    Returns:
        The table: trajectory_id, status, success, score, scorer (the name).

    Raises:
        UsageError: There are no numbers of this name, their direction is unknown, lower is better and there is no
            threshold (a score would be taken for a reward), or another writer is at work.
    """
    feedback = store.feedback.filter(pl.col("trajectory_id").is_not_null() & pl.col("value").is_not_null())
    chosen = feedback.filter(pl.col("name") == name).select("trajectory_id", "value", "direction").collect()
    if chosen.is_empty():
        known = feedback.select(pl.col("name").unique().sort()).collect()["name"]
        raise UsageError(f"{store.path}: no judgement {name!r} with a number; there are: {', '.join(known) or 'none'}")
    way = direction or _direction_of(chosen["direction"], name)
    if way == "lower_is_better" and threshold is None:
        raise UsageError(f"{name}: lower is better, so its numbers are no rewards; give a threshold")
    scores = chosen.group_by("trajectory_id", maintain_order=True).agg(pl.col("value").mean().alias("score"))
    success = pl.lit(None, pl.Boolean())
    if threshold is not None:
        success = pl.col("score") <= threshold if way == "lower_is_better" else pl.col("score") >= threshold
    crashed = store.logged_trajectories.filter(pl.col("status") == "infrastructure_error").select("trajectory_id")
    table = (
        scores.lazy()
        .join(crashed, on="trajectory_id", how="anti", maintain_order="left")
        .select(
            "trajectory_id",
            pl.lit("scored").alias("status"),
            success.alias("success"),
            "score",
            pl.lit(name).alias("scorer"),
        )
        .collect()
    )
    store.write_side_table(OUTCOMES, table)
    return table


def _direction_of(directions: pl.Series, name: str) -> Verdict:
    found: list[Direction] = sorted(set(directions))
    if found == ["higher_is_better"]:
        return "higher_is_better"
    if found == ["lower_is_better"]:
        return "lower_is_better"
    said = "of unknown direction" if found == ["unknown"] else f"of different directions ({', '.join(found)})"
    raise UsageError(f"{name}: the judgements are {said}; say --direction higher_is_better or lower_is_better")
