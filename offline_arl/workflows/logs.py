"""The stages that bring logs into a store: generate them, ingest them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

from offline_arl import environments
from offline_arl.errors import UsageError
from offline_arl.workflows.context import StageContext, StageOutputs
from offline_arl.workflows.stages import GenerateLogs


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
