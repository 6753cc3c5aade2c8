"""Per-step rewards of a trajectory: its outcome at the end, penalties where they were earned."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from offline_arl.trajectories.schema import Trajectory
from offline_arl.trajectories.step_table import is_invalid_action


class RewardConfig(BaseModel):
    """Weights of the reward components, in units of reward."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    outcome_weight: float = Field(1.0, description="times the outcome, at the last step")
    invalid_action_penalty: float = Field(0.05, ge=0, description="subtracted at each step with an invalid action")
    step_cost: float = Field(0.0, ge=0, description="subtracted at every step")


def outcome_reward(trajectory: Trajectory) -> float | None:
    """The outcome as a number: success as 1.0 or 0.0, else the score; None where there is neither.

    A crash of the harness has no reward: it is not a 0.
    """
    outcome = trajectory.outcome
    if outcome.status != "scored":
        return None
    return outcome.score if outcome.success is None else float(outcome.success)


def step_rewards(trajectory: Trajectory, config: RewardConfig) -> list[float] | None:
    """The reward of each step: what arrives after it and before the next one.

    Args:
        trajectory: A scored trajectory.
        config: Weights of the components.

    Returns:
        One number a step, in the order of `Trajectory.step_indices`, or None where the outcome is unknown. An
        action is invalid where a call is not one that the tools in force accept (see
        `step_table.is_invalid_action`); several invalid calls in one step are penalized once.

    >>> from offline_arl.trajectories.schema import Message, Outcome, Source, tool_call
    >>> broken = Message("assistant", tool_calls=[tool_call("lookup", '{"id": ')])
    >>> done = Message("assistant", [])
    >>> outcome = Outcome("scored", success=True)
    >>> attempt = Trajectory("t", [Message("user"), broken, done], Source("example"), outcome=outcome)
    >>> step_rewards(attempt, RewardConfig(invalid_action_penalty=0.25, step_cost=0.125))
    [-0.375, 0.875]
    """
    outcome = outcome_reward(trajectory)
    if outcome is None:
        return None
    rewards = [
        -config.step_cost - (config.invalid_action_penalty if is_invalid_action(trajectory, index) else 0.0)
        for index in trajectory.step_indices()
    ]
    if rewards:
        rewards[-1] += config.outcome_weight * outcome
    return rewards
