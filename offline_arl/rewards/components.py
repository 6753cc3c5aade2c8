"""Per-step rewards of a trajectory: its outcome at the end, or what an environment logged; penalties where earned."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from offline_arl.trajectories.schema import Trajectory
from offline_arl.trajectories.step_table import is_invalid_action, logged_reward

OUTCOME_PENALTY = 0.05  # of an invalid action, where nothing else is set and the outcome alone is the reward


class RewardConfig(BaseModel):
    """Where rewards come from, and the weights of their components in units of reward.

    `source`: "outcome" pays the outcome at the last step; "logged" takes what the environment wrote into each step,
    `metadata["reward"]` of its message, and looks at the outcome only to tell a crash.

    `invalid_action_penalty`: None is 0.05 for rewards from the outcome, which says nothing about single actions, and 0
    for logged ones, which already contain what the environment charged. A number is subtracted in either case.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    source: Literal["outcome", "logged"] = "outcome"
    outcome_weight: float = Field(1.0, description="times the outcome, at the last step; unused with logged rewards")
    invalid_action_penalty: float | None = Field(
        None, ge=0, description="subtracted at each step with an invalid action; None: by the source"
    )
    step_cost: float = Field(0.0, ge=0, description="subtracted at every step")

    @property
    def penalty(self) -> float:
        """The penalty of an invalid action that is in force."""
        if self.invalid_action_penalty is not None:
            return self.invalid_action_penalty
        return OUTCOME_PENALTY if self.source == "outcome" else 0.0


def outcome_reward(trajectory: Trajectory) -> float | None:
    """The outcome as a number: success as 1.0 or 0.0, else the score; None where there is neither.

    A crash of the harness has no reward: it is not a 0.
    """
    outcome = trajectory.outcome
    if outcome.status != "scored":
        return None
    return outcome.score if outcome.success is None else float(outcome.success)


def logged_rewards(trajectory: Trajectory) -> list[float] | None:
    """The reward that each step's message carries, a step without one 0.0; None where no step has any.

    A log that writes rewards leaves out those of 0; one that has none at all knows nothing, which is not 0. What is no
    number is no reward, as in the step table.
    """
    found = [logged_reward(trajectory.messages[index].metadata) for index in trajectory.step_indices()]
    if all(reward is None for reward in found):
        return None
    return [0.0 if reward is None else reward for reward in found]


def step_rewards(trajectory: Trajectory, config: RewardConfig) -> list[float] | None:
    """The reward of each step: what arrives after it and before the next one.

    Args:
        trajectory: A scored trajectory, or one with logged rewards.
        config: Source and weights of the components.

    Returns:
        One number a step, in the order of `Trajectory.step_indices`, or None where the rewards are unknown: the harness
        crashed, the outcome is not known, or, with `source="logged"`, no step has a reward. An action is invalid where
        a call is not one that the tools in force accept (see `step_table.is_invalid_action`); several invalid calls in
        one step are penalized once.

    >>> from offline_arl.trajectories.schema import Message, Outcome, Source, tool_call
    >>> broken = Message("assistant", tool_calls=[tool_call("lookup", '{"id": ')], metadata={"reward": -0.5})
    >>> done = Message("assistant", [])
    >>> outcome = Outcome("scored", success=True)
    >>> attempt = Trajectory("t", [Message("user"), broken, done], Source("example"), outcome=outcome)
    >>> step_rewards(attempt, RewardConfig(invalid_action_penalty=0.25, step_cost=0.125))
    [-0.375, 0.875]
    >>> step_rewards(attempt, RewardConfig(source="logged"))
    [-0.5, 0.0]
    """
    rewards = _unpenalized(trajectory, config)
    if rewards is None:
        return None
    return [
        reward - config.step_cost - (config.penalty if config.penalty and is_invalid_action(trajectory, index) else 0.0)
        for reward, index in zip(rewards, trajectory.step_indices(), strict=True)
    ]


def _unpenalized(trajectory: Trajectory, config: RewardConfig) -> list[float] | None:
    if config.source == "logged":
        return None if trajectory.outcome.status == "infrastructure_error" else logged_rewards(trajectory)
    outcome = outcome_reward(trajectory)
    if outcome is None:
        return None
    rewards = [0.0] * len(trajectory.step_indices())
    if rewards:
        rewards[-1] = config.outcome_weight * outcome
    return rewards
