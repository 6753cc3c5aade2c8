"""Datasets for behavior cloning: every step of every usable trajectory, or of the good ones.

Filtered cloning keeps the successes, or, where success says too little, the attempts with the highest returns
(percentile cloning, Chen et al. 2021, section 5.1).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, PositiveInt

from offline_arl.datasets.manifest import DatasetManifest
from offline_arl.datasets.segments import SegmentRenderer, SegmentWriter, rows_of, success_of
from offline_arl.errors import DataError
from offline_arl.rewards.components import RewardConfig, step_rewards
from offline_arl.trajectories.schema import Trajectory


class BCConfig(BaseModel):
    """What goes into a cloning dataset.

    `only_successes` keeps successes, `min_return` attempts whose undiscounted return under `rewards` is at least that
    (`return_of_top_fraction` finds the one of a fraction); `max_tokens` bounds a segment.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    only_successes: bool = False
    min_return: float | None = None
    rewards: RewardConfig = RewardConfig()
    max_tokens: PositiveInt | None = None


def build_bc(
    trajectories: Iterable[Trajectory], renderer: SegmentRenderer, output: str | Path, *, config: BCConfig
) -> DatasetManifest:
    """Write a cloning dataset, one row a segment, in the order of `trajectories`, with bounded memory.

    A crash of the harness is not behavior to clone, so infrastructure errors are left out, as are, with
    `only_successes`, failures and attempts without a verdict, and, with `min_return`, attempts of a lower return and
    those without one. The manifest counts each reason.

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
            reason = _why_not(trajectory, config)
            if reason is not None:
                writer.exclude(reason)
            elif rows := rows_of(trajectory, renderer.render(trajectory, config.max_tokens)):
                writer.add(rows)
            else:
                writer.exclude("no_action_tokens")
    assert writer.manifest is not None
    return writer.manifest


def return_of_top_fraction(trajectories: Iterable[Trajectory], *, fraction: float, rewards: RewardConfig) -> float:
    """The lowest return among the `fraction` of attempts with the highest ones (`objectives.top_fraction_mask`).

    Args:
        trajectories: Attempts, read once; those without a return do not count.
        fraction: Above 0, at most 1; 0.1 is the usual "10 % BC".
        rewards: What an attempt earns.

    Raises:
        DataError: No attempt has a return.
    """
    import torch

    from offline_arl.objectives import top_fraction_mask

    earned = [step_rewards(trajectory, rewards) for trajectory in trajectories]
    returns = torch.tensor([sum(values) for values in earned if values], dtype=torch.float64)
    if len(returns) == 0:
        raise DataError(
            "no attempt has a return, so none is among the best; "
            "label outcomes, or read logged rewards with rewards.source=logged"
        )
    mask = top_fraction_mask(returns, torch.ones_like(returns, dtype=torch.bool), fraction=fraction)
    return float(returns[mask].min())


def _why_not(trajectory: Trajectory, config: BCConfig) -> str | None:
    """The reason to leave a trajectory out, for the manifest; None: it is cloned."""
    if trajectory.outcome.status == "infrastructure_error":
        return "infrastructure_error"
    if config.only_successes:
        success = success_of(trajectory.outcome)
        if not success:
            return "unscored" if success is None else "failure"
    if config.min_return is not None:
        rewards = step_rewards(trajectory, config.rewards)
        if rewards is None:
            return "unscored"
        if sum(rewards) < config.min_return:
            return "low_return"
    return None
