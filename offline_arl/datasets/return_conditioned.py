"""Datasets for return-conditioned cloning (Decision Transformer): segments with the reward-to-go of each step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, PositiveInt

from offline_arl.datasets.segments import DatasetManifest, SegmentRenderer, SegmentWriter
from offline_arl.datasets.transitions import scored_rows, steps_of
from offline_arl.rewards.components import RewardConfig
from offline_arl.rewards.returns import reward_to_go
from offline_arl.trajectories.schema import Trajectory


class ReturnConditionedConfig(BaseModel):
    """What the steps earn. The reward-to-go is undiscounted, as in Chen et al. 2021, section 3."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rewards: RewardConfig = RewardConfig()
    max_tokens: PositiveInt | None = None


def build_return_conditioned(
    trajectories: Iterable[Trajectory],
    renderer: SegmentRenderer,
    output: str | Path,
    *,
    config: ReturnConditionedConfig,
) -> DatasetManifest:
    """Write a return-conditioned dataset, one row a segment, in the order of `trajectories`, with bounded memory.

    The reward-to-go of a step counts from that step on, its own reward included. Attempts without a reward are left
    out and counted: infrastructure errors and unscored ones.

    Args:
        trajectories: Scored attempts, good and bad; read once.
        renderer: Makes token ids and action masks.
        output: Folder to create or replace.
        config: Rewards.

    Raises:
        DataError: No scored attempt is left; the message gives the reasons.
    """
    writer = SegmentWriter(
        Path(output),
        kind="return_conditioned",
        fingerprint=renderer.fingerprint,
        config=config.model_dump(mode="json"),
    )
    with writer:
        scored = scored_rows(trajectories, renderer, writer, rewards=config.rewards, max_tokens=config.max_tokens)
        for _, rewards, rows in scored:
            returns = np.array(reward_to_go(rewards), dtype=np.float32)
            writer.add(
                [
                    replace(row, n_steps=len(rewards), steps=steps_of(row), reward_to_go=returns[steps_of(row)])
                    for row in rows
                ]
            )
    assert writer.manifest is not None
    return writer.manifest
