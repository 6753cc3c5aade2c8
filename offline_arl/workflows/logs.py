"""The stages that bring logs into a store: generate them, ingest them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

import polars as pl

from offline_arl import environments
from offline_arl.errors import DataError, UsageError
from offline_arl.evaluation.intervals import wilson_interval
from offline_arl.trajectories.outcomes import label_outcomes
from offline_arl.trajectories.select import successful
from offline_arl.trajectories.store import open_store
from offline_arl.workflows.context import StageContext, StageOutputs, count
from offline_arl.workflows.ingest import ingest
from offline_arl.workflows.stages import GenerateLogs, Ingest


@runtime_checkable
class LogGenerator(Protocol):
    """An environment family whose scripted agents can write logs."""

    def write_logs(
        self, path: Path, count: int, *, seed: int, progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Write `count` episodes on training tasks as OpenAI chat JSONL."""
        ...


def generate_logs(config: GenerateLogs, context: StageContext) -> StageOutputs:
    """Write `logs.jsonl`.

    Raises:
        UsageError: The environment has no scripted agents.
    """
    family = environments.load(config.environment)
    if not isinstance(family, LogGenerator):
        raise UsageError(f"the environment {config.environment!r} generates no logs; ingest your own with source=FILE")
    path = context.folder / "logs.jsonl"
    family.write_logs(
        path,
        config.trajectories,
        seed=context.integer_seed(),
        progress=lambda done, total: context.progress("episodes", done, total),
    )
    return StageOutputs(artifacts={"logs": path.name}, notes=(f"{config.trajectories} scripted episodes",))


def ingest_logs(config: Ingest, context: StageContext) -> StageOutputs:
    """Read logs into a store and count what is there.

    Raises:
        DataError: There is nothing to read, or every record was refused.
        UsageError: The format is unknown, or there is no judgement of the name in `outcome`.
    """
    if config.logs is not None:
        sources = [str(context.path(config.logs, "logs"))]
    else:
        sources = [config.source] if isinstance(config.source, str) else list(config.source or ())
    folder = context.folder / "store"
    report = ingest(
        [Path(source).expanduser() for source in sources],
        folder,
        format=config.format,
        engine=config.engine,
        workers=config.workers,
        redact=config.redact,
        progress=lambda done, total: context.progress("megabytes", done, total),
    )
    if report.all_refused:
        raise DataError(f"every record was refused; the first: {report.reasons[0]}")
    if report.trajectories == 0:
        raise DataError(f"{', '.join(sources)}: no trajectories there; give files of agent logs")
    if config.outcome is not None:
        label_outcomes(open_store(folder), config.outcome, threshold=config.outcome_threshold)
    frame = (
        open_store(folder)
        .trajectories.select(
            pl.col("task_id").drop_nulls().n_unique().alias("tasks"),
            successful().sum().alias("successes"),
            ((pl.col("status") == "scored") & pl.col("success").is_not_null()).sum().alias("judged"),
        )
        .collect()
    )
    tasks, successes, judged = frame.row(0)
    metrics = {
        "trajectories": count(report.trajectories),
        "tasks": count(tasks),
        "successes": count(successes),
        "quarantined": count(report.quarantined),
        "set_apart": count(report.set_apart),
    }
    if judged:
        metrics["success/behavior"] = wilson_interval(successes, judged)
    return StageOutputs(
        artifacts={"store": folder.name},
        metrics=metrics,
        notes=(
            f"{report.records} records, {report.records_used} used",
            *(f"refused: {line}" for line in report.reasons),
        ),
    )
