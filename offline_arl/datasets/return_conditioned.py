"""Datasets for return-conditioned cloning (Decision Transformer): segments whose context asks for a return."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, PositiveInt

from offline_arl.datasets.manifest import DatasetManifest
from offline_arl.datasets.return_conditioning import ReturnConditioning
from offline_arl.datasets.segments import SegmentRenderer, SegmentWriter, steps_of
from offline_arl.datasets.transitions import scored_rows
from offline_arl.errors import DataError, UsageError
from offline_arl.rewards.returns import reward_to_go
from offline_arl.trajectories.schema import Trajectory

_CONDITIONING = "return_conditioning"  # the entry of the manifest's configuration


class ReturnConditionedConfig(BaseModel):
    """How returns are written, fitted to the same trajectories by `fit_conditioning`; `max_tokens` of a segment."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    return_conditioning: ReturnConditioning
    max_tokens: PositiveInt | None = None


def build_return_conditioned(
    trajectories: Iterable[Trajectory],
    renderer: SegmentRenderer,
    output: str | Path,
    *,
    config: ReturnConditionedConfig,
) -> DatasetManifest:
    """Write a return-conditioned dataset, one row a segment, in the order of `trajectories`, with bounded memory.

    Each step is rendered with its own return in front of it. The reward-to-go of a step counts from that step on, its
    own reward included. Attempts without a reward are left out and counted: infrastructure errors and unscored ones.
    `assumed` of the manifest counts the steps that no message precedes which could hold their condition: they stand
    under the one before.

    Args:
        trajectories: Scored attempts, good and bad; read once.
        renderer: Makes token ids and action masks.
        output: Folder to create or replace.
        config: How returns are written; it is kept in the manifest.

    Raises:
        DataError: No scored attempt is left; the message gives the reasons.
    """
    conditioning = config.return_conditioning
    writer = SegmentWriter(
        Path(output),
        kind="return_conditioned",
        fingerprint=renderer.fingerprint,
        config=config.model_dump(mode="json"),
    )
    with writer:
        scored = scored_rows(
            trajectories,
            renderer,
            writer,
            rewards=conditioning.rewards,
            max_tokens=config.max_tokens,
            shown=lambda trajectory, rewards: conditioning.writer.write_all(trajectory, reward_to_go(rewards)),
        )
        for trajectory, rewards, rows in scored:
            for _ in range(conditioning.writer.steps_without_own(trajectory)):
                writer.assume("condition_of_step_before")
            returns = np.array(reward_to_go(rewards), dtype=np.float32)
            writer.add(
                [
                    replace(row, n_steps=len(rewards), steps=steps_of(row), reward_to_go=returns[steps_of(row)])
                    for row in rows
                ]
            )
    assert writer.manifest is not None
    return writer.manifest


def conditioning_of(manifest: DatasetManifest) -> ReturnConditioning:
    """How the returns of a dataset were written.

    Raises:
        UsageError: The dataset is of another kind.
        DataError: It was built by a version that wrote no returns.
    """
    if manifest.kind != "return_conditioned":
        raise UsageError(f"the dataset is of kind {manifest.kind}; dt needs one of the form return_conditioned")
    stored = manifest.config.get(_CONDITIONING)
    if stored is None:
        raise DataError("the dataset holds no conditions (an older version built it); build it again")
    return ReturnConditioning.model_validate(stored)
