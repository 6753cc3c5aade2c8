"""Looking into a store: the numbers that `show` prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from offline_arl.errors import DataError
from offline_arl.evaluation.intervals import wilson_interval
from offline_arl.trajectories.store import Store
from offline_arl.workflows.stores import reading

_NO_TYPE = "(none)"


def overview(store: str | Path) -> dict[str, Any]:
    """What a store holds: counts, results by task type with 95 % intervals, tools, reasons of refusals.

    Duplicates count as trajectories; success is a share of the scored attempts.

    Raises:
        DataError: There is no store at this path.
    """
    with reading(store) as opened:
        return _overview(opened, str(store))


def _overview(opened: Store, name: str) -> dict[str, Any]:
    trajectories = opened.trajectories.collect()
    steps = opened.steps
    tools = steps.select(pl.col("tool_names").explode().drop_nulls().alias("tool")).collect()["tool"]
    counts = opened.manifest.counts
    return {
        "store": name,
        "trajectories": counts.trajectories,
        "steps": counts.steps,
        "tasks": trajectories["task_id"].n_unique() - (1 if trajectories["task_id"].null_count() else 0),
        "successes": int((trajectories["success"] & (trajectories["status"] == "scored")).sum()),
        "duplicates": trajectories.height - trajectories["duplicate_of"].null_count(),
        "quarantined": counts.quarantined,
        "by_format": _counted(trajectories["source_format"]),
        "by_status": _counted(trajectories["status"]),
        "by_task_type": _by_task_type(trajectories),
        "tools": _counted(tools),
        "invalid_actions": int(trajectories["n_invalid_actions"].sum()),
        "quarantine_reasons": _counted(opened.quarantined.select("reason").collect()["reason"]),
        "side_tables": opened.side_tables,
    }


def trajectory_rows(store: str | Path, *, limit: int) -> list[dict[str, Any]]:
    """The first `limit` trajectories, scalars only."""
    columns = ("trajectory_id", "task_id", "task_type", "n_steps", "n_tool_calls", "status", "success", "score")
    with reading(store) as opened:
        return opened.trajectories.select(columns).head(limit).collect().to_dicts()


def step_table(store: str | Path, *, trajectory: str | None, limit: int) -> list[dict[str, Any]]:
    """The first `limit` rows of the step table, of one trajectory where its id or the beginning of it is given.

    Raises:
        DataError: No trajectory, or more than one, begins like this.
    """
    with reading(store) as opened:
        steps = opened.steps
        if trajectory is not None:
            steps = steps.filter(pl.col("trajectory_id") == _full_id(opened, trajectory))
        return steps.head(limit).collect().to_dicts()


def one_trajectory(store: str | Path, trajectory_id: str) -> dict[str, Any]:
    """A trajectory as plain data, in the form of `data_schemas/`, with the rewards of its steps where they are known.

    `trajectory_id` may be the beginning of an id.

    Raises:
        DataError: No trajectory, or more than one, begins like this.
    """
    from offline_arl.rewards.components import RewardConfig, step_rewards

    with reading(store) as opened:
        found = opened.get(_full_id(opened, trajectory_id))
    plain: dict[str, Any] = msgspec.to_builtins(found)
    return {**plain, "step_rewards": step_rewards(found, RewardConfig()), "step_messages": found.step_indices()}


def _full_id(store: Store, beginning: str) -> str:
    """The id that begins like this, an equal one before longer ones."""
    ids = store.trajectories.select("trajectory_id")
    matches = ids.filter(pl.col("trajectory_id").str.starts_with(beginning)).collect()["trajectory_id"]
    if len(matches) == 1:
        return str(matches[0])
    if beginning in matches:
        return beginning
    what = "more than one trajectory begins" if len(matches) else "no trajectory begins"
    raise DataError(f"{store.path}: {what} with {beginning!r}; list the ids with: offline-arl show {store.path}")


def _by_task_type(trajectories: pl.DataFrame) -> list[dict[str, Any]]:
    scored = (pl.col("status") == "scored") & pl.col("success").is_not_null()
    groups = (
        trajectories.group_by(pl.col("task_type").fill_null(_NO_TYPE))
        .agg(
            pl.len().alias("trajectories"),
            scored.sum().alias("scored"),
            (scored & pl.col("success")).sum().alias("successes"),
            pl.col("n_steps").mean().alias("mean_steps"),
        )
        .sort("task_type")
    )
    rows = []
    for row in groups.iter_rows(named=True):
        success = wilson_interval(row["successes"], row["scored"])
        rows.append({**row, "success": success.as_dict()})
    return rows


def _counted(values: pl.Series) -> dict[str, int]:
    """Each value with the number of times it occurs, the most frequent first."""
    counted = values.drop_nulls().value_counts(sort=True)
    return dict(counted.iter_rows())
