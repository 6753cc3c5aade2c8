"""Small transition datasets with random features, for the tests of value learning."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from offline_arl.datasets.segments import SegmentRow
from offline_arl.models.features import StepFeatures
from toys import toy_row


def transition_row(
    name: str,
    steps: int,
    *,
    ending: str,
    task: str = "task",
    final_state: bool = False,
    rewards: list[float] | None = None,
    seed: int = 0,
) -> SegmentRow:
    """Rewards 1, 2, 3, ... so that every step can be told apart; rows of the same seed have the same tokens."""
    row = toy_row(name, np.random.default_rng(seed), steps=steps)
    last = np.arange(steps) == steps - 1
    return dataclasses.replace(
        row,
        task_id=task,
        n_steps=steps,
        steps=np.arange(steps, dtype=np.int32),
        rewards=np.array(rewards or range(1, steps + 1), dtype=np.float32),
        terminated=last & (ending == "terminated"),
        truncated=last & (ending == "truncated"),
        final_state=final_state,
    )


def features_of(rows: list[SegmentRow], *, seed: int = 0, size: int = 4) -> StepFeatures:
    """Random features for every step, and for the state after the last one where a row has it."""
    keys = [(row.trajectory_id, step) for row in rows for step in range(row.n_steps + row.final_state)]
    acts = [step < row.n_steps for row in rows for step in range(row.n_steps + row.final_state)]
    generator = torch.Generator().manual_seed(seed)
    return StepFeatures(
        trajectory_ids=[name for name, _ in keys],
        steps=torch.tensor([step for _, step in keys], dtype=torch.long),
        has_action=torch.tensor(acts, dtype=torch.bool),
        states=torch.randn(len(keys), size, generator=generator),
        actions=torch.randn(len(keys), size, generator=generator),
    )
