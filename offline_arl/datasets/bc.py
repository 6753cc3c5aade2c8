"""Datasets for behavior cloning: every step of every usable trajectory, or of the successful ones."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, PositiveInt

from offline_arl.datasets.segments import DatasetManifest, SegmentRenderer, SegmentWriter, rows_of, success_of
from offline_arl.trajectories.schema import Trajectory


class BCConfig(BaseModel):
    """What goes into a cloning dataset. `only_successes` gives filtered cloning; `max_tokens` bounds a segment."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    only_successes: bool = False
    max_tokens: PositiveInt | None = None


def build_bc(
    trajectories: Iterable[Trajectory], renderer: SegmentRenderer, output: str | Path, *, config: BCConfig
) -> DatasetManifest:
    """Write a cloning dataset, one row a segment, in the order of `trajectories`, with bounded memory.

    A crash of the harness is not behavior to clone, so infrastructure errors are left out, as are, with
    `only_successes`, failures and attempts without a verdict. The manifest counts each reason.

    Args:
        trajectories: What to clone; read once.
        renderer: Makes token ids and action masks.
        output: Folder to create or replace.
        config: What to include.

    Raises:
        DataError: Nothing is left to clone; the message gives the reasons.
    """
    writer = SegmentWriter(
        Path(output), kind="bc", fingerprint=renderer.fingerprint, config=config.model_dump(mode="json")
    )
    with writer:
        for trajectory in trajectories:
            success = success_of(trajectory.outcome)
            if trajectory.outcome.status == "infrastructure_error":
                writer.exclude("infrastructure_error")
            elif config.only_successes and success is None:
                writer.exclude("unscored")
            elif config.only_successes and not success:
                writer.exclude("failure")
            elif rows := rows_of(trajectory, renderer.render(trajectory, config.max_tokens)):
                writer.add(rows)
            else:
                writer.exclude("no_action_tokens")
    assert writer.manifest is not None
    return writer.manifest
