"""What is in a store: counts, outcomes, endings, lengths."""

from __future__ import annotations

import polars as pl

from offline_arl.analysis.store_report import (
    Bin,
    Endings,
    Holdings,
    Lengths,
    Outcomes,
    ScoreSummary,
    TypeOutcomes,
)
from offline_arl.trajectories.moments import began, moment
from offline_arl.trajectories.select import failed, successful
from offline_arl.trajectories.side_tables import OUTCOMES
from offline_arl.trajectories.store import Store
from offline_arl.workflows.store_report.frames import collected, rate, top

_TASK_TYPES = 30
_SCORES = 50
_BINS = 20


def holdings(store: Store) -> Holdings:
    """Counts, the time range, and the most frequent formats, agents, models and task types."""
    rows = store.logged_trajectories
    ended = pl.coalesce(moment(pl.col("ended_at")), moment(pl.col("started_at"))).alias("ended")
    distinct = ("task_id", "group_id", "session_id", "user_id")
    counts = collected(
        rows.select(
            pl.len(),
            *(pl.col(name).sum() for name in ("n_messages", "n_steps", "n_tool_calls")),
            *(pl.col(name).drop_nulls().n_unique() for name in distinct),
        )
    )
    trajectories, messages, steps, calls, tasks, groups, sessions, users = counts.row(0)
    times = collected(
        rows.select(began(), ended).select(
            pl.col("began").min(), pl.col("ended").max(), pl.col("began").null_count().alias("untimed")
        )
    )
    first, last, untimed = times.row(0)
    return Holdings(
        trajectories=trajectories,
        messages=int(messages),
        steps=int(steps),
        tool_calls=int(calls),
        tasks=tasks,
        groups=groups,
        sessions=sessions,
        users=users,
        first=None if first is None else first.isoformat(),
        last=None if last is None else last.isoformat(),
        untimed=untimed,
        formats=top(rows, "source_format"),
        agents=top(rows, "agent"),
        models=top(rows, "model"),
        task_types=top(rows, "task_type"),
    )


def outcomes(store: Store) -> Outcomes:
    """How attempts came out, by task type, and which scores there are."""
    is_scored, crashed = pl.col("status") == "scored", pl.col("status") == "infrastructure_error"
    types = collected(
        store.trajectories.group_by("task_type")
        .agg(
            pl.len().cast(pl.Int64).alias("trajectories"),
            is_scored.sum().cast(pl.Int64).alias("scored"),
            crashed.sum().cast(pl.Int64).alias("crashed"),
            successful().sum().cast(pl.Int64).alias("successes"),
            failed().sum().cast(pl.Int64).alias("failures"),
            pl.col("score").filter(is_scored).mean().alias("mean_score"),
            pl.col("n_steps").mean().alias("mean_steps"),
        )
        .sort("trajectories", "task_type", descending=[True, False], nulls_last=True)
    )
    sums = {name: int(types[name].sum()) for name in ("trajectories", "scored", "crashed", "successes", "failures")}
    judged = sums["successes"] + sums["failures"]
    scores, more_scores = _scores(store)
    return Outcomes(
        scored=sums["scored"],
        unscored=sums["trajectories"] - sums["scored"] - sums["crashed"],
        infrastructure_errors=sums["crashed"],
        successes=sums["successes"],
        failures=sums["failures"],
        scores_without_verdict=sums["scored"] - judged,
        success=rate(sums["successes"], judged),
        relabeled=OUTCOMES in store.side_tables,
        by_task_type=tuple(
            TypeOutcomes(
                task_type=row["task_type"],
                trajectories=row["trajectories"],
                scored=row["scored"],
                infrastructure_errors=row["crashed"],
                success=rate(row["successes"], row["successes"] + row["failures"]),
                mean_score=row["mean_score"],
                mean_steps=row["mean_steps"],
            )
            for row in types.head(_TASK_TYPES).iter_rows(named=True)
        ),
        more_task_types=max(0, types.height - _TASK_TYPES),
        scores=scores,
        more_scores=more_scores,
    )


def _scores(store: Store) -> tuple[tuple[ScoreSummary, ...], int]:
    keys = ("name", "scorer_kind", "direction")
    found = collected(
        store.feedback.filter(pl.col("trajectory_id").is_not_null())
        .group_by(*keys)
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            pl.col("trajectory_id").n_unique().cast(pl.Int64).alias("trajectories"),
            pl.col("message_index").count().cast(pl.Int64).alias("on_messages"),
            pl.col("value").count().cast(pl.Int64).alias("numbers"),
            pl.col("label").count().cast(pl.Int64).alias("labels"),
            pl.col("value").mean().alias("mean"),
            pl.col("value").min().alias("minimum"),
            pl.col("value").max().alias("maximum"),
        )
        .sort("count", *keys, descending=[True, False, False, False])
    )
    rows = tuple(ScoreSummary(**row) for row in found.head(_SCORES).iter_rows(named=True))
    return rows, found.height - len(rows)


def endings(store: Store) -> Endings:
    """How attempts ended."""
    rows = store.logged_trajectories
    is_open = ~pl.col("terminated") & ~pl.col("truncated")
    ends = (pl.col("terminated").sum(), pl.col("truncated").sum(), is_open.sum().alias("open"))
    terminated, truncated, others = collected(rows.select(*ends)).row(0)
    return Endings(int(terminated), int(truncated), int(others), top(rows, "stop_reason"))


def lengths(store: Store, message_bytes: pl.Series) -> tuple[Lengths, ...]:
    """Quantiles of how long trajectories and steps are; `message_bytes` is the JSON of each trajectory's messages."""
    trajectories, steps = store.logged_trajectories, store.steps
    measured = (
        _quantiles(trajectories, "n_messages", "messages of a trajectory"),
        _quantiles(trajectories, "n_steps", "steps of a trajectory"),
        _quantiles(trajectories, "n_tool_calls", "tool calls of a trajectory"),
        _quantiles(message_bytes.to_frame("bytes").lazy(), "bytes", "bytes of a trajectory's messages"),
        _quantiles(steps, "characters", "characters of a step"),
        _quantiles(steps, "reasoning_characters", "characters of reasoning of a step"),
    )
    return tuple(found for found in measured if found is not None)


def _quantiles(frame: pl.LazyFrame, column: str, measure: str) -> Lengths | None:
    values = pl.col(column)
    quantiles = [values.quantile(level, "linear").alias(str(level)) for level in (0.5, 0.9, 0.99)]
    statistics = (
        values.count().alias("n"),
        values.mean().alias("mean"),
        values.min().alias("minimum"),
        *quantiles,
        values.max().alias("maximum"),
    )
    n, *numbers = collected(frame.select(*statistics)).row(0)
    return None if n == 0 else Lengths(measure, n, *map(float, numbers))


def steps_histogram(store: Store) -> tuple[Bin, ...]:
    """How many trajectories have how many steps: bins of one width up to the 99th percentile, and one of the rest."""
    rows = store.logged_trajectories.select("n_steps")
    counts = collected(rows.group_by("n_steps").agg(pl.len().cast(pl.Int64).alias("count")).sort("n_steps"))
    if counts.is_empty():
        return ()
    running = counts["count"].cum_sum()
    usual = int(counts.filter(running >= 0.99 * running[-1])["n_steps"][0])
    width = max(1, -(-(usual + 1) // _BINS))
    edges = list(range(0, usual + 1, width))
    bins = [
        Bin(low, low + width - 1, int(counts.filter(pl.col("n_steps").is_between(low, low + width - 1))["count"].sum()))
        for low in edges
    ]
    rest = int(counts.filter(pl.col("n_steps") >= edges[-1] + width)["count"].sum())
    if rest:
        bins.append(Bin(edges[-1] + width, None, rest))
    return tuple(bins)
