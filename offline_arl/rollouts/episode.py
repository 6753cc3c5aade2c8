"""`Episode`: one rollout, as a trajectory for every tool and as arrays for the trainer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offline_arl.environments.protocol import Task
from offline_arl.errors import DataError
from offline_arl.trajectories.schema import Trajectory
from offline_arl.trajectories.segment import Segment


@dataclass(frozen=True, eq=False)
class Episode:
    """One attempt of a policy at one task in an environment."""

    task: Task
    attempt: int  # 0 to group_size - 1
    trajectory: Trajectory
    segments: list[Segment]  # one; one a step where the template rewrites earlier turns
    prompt_length: int  # tokens of the first segment that precede the first sampled one
    rewards: list[float]  # one a step that the environment took
    n_steps: int  # assistant messages sampled
    n_tool_calls: int
    n_invalid: int  # invalid actions, as the environment counts them

    @property
    def infrastructure_error(self) -> bool:
        """Whether the harness failed; such an episode says nothing about the policy."""
        return self.trajectory.outcome.status == "infrastructure_error"

    @property
    def success(self) -> bool | None:
        """The environment's verdict; None where it has none or the harness failed."""
        return self.trajectory.outcome.success

    @property
    def total_reward(self) -> float | None:
        """The undiscounted return: outcome and penalties together. None where the harness failed."""
        return None if self.infrastructure_error else float(sum(self.rewards))

    @property
    def sampled_tokens(self) -> NDArray[np.int32]:
        """What the policy sampled, step by step, whatever the number of segments."""
        sampled = [segment.token_ids[segment.action_mask] for segment in self.segments]
        return np.concatenate(sampled) if sampled else np.zeros(0, dtype=np.int32)

    @property
    def token_ids(self) -> NDArray[np.int32]:
        """[T] Tokens of the episode, from the first prompt to the last sampled token."""
        return self._segment().token_ids

    @property
    def action_mask(self) -> NDArray[np.bool_]:
        """[T] True on sampled tokens."""
        return self._segment().action_mask

    @property
    def logprobs(self) -> NDArray[np.float32]:
        """[T] The sampler's logprobs; NaN on tokens it did not sample."""
        logprobs = self._segment().logprobs
        assert logprobs is not None  # a rollout always records them
        return logprobs

    def _segment(self) -> Segment:
        if len(self.segments) != 1:
            raise DataError(
                f"{self.trajectory.trajectory_id}: the episode has {len(self.segments)} segments, not one; "
                "read Episode.segments"
            )
        return self.segments[0]
