"""Episodes as the rows that TRL's `rollout_func` returns, and which of them teach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from offline_arl.rollouts.episode import Episode

_ZERO_SPREAD = 1e-6


class RolloutRows(NamedTuple):
    """One row an episode. `env_mask` is 1 on tokens that are trained."""

    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    logprobs: list[list[float]]
    env_mask: list[list[int]]
    episode_return: list[float | None]

    def as_output(self) -> dict[str, list[object]]:
        """The dictionary that TRL expects; `episode_return` is forwarded to the reward function."""
        return {name: list(values) for name, values in self._asdict().items()}


def rollout_rows(episodes: Sequence[Episode], *, group_size: int, filler_token: int) -> RolloutRows:
    """The rows of one generation batch.

    What the environment said is masked. A group whose returns are all equal is masked whole: it has no advantage,
    and would only be pulled towards the reference and count in the average. An episode whose harness failed, or in
    which nothing was sampled, becomes one masked token without a return: TRL leaves it out of the group's mean.

    Args:
        episodes: Groups next to one another.
        group_size: Episodes a group.
        filler_token: Stands for an episode without tokens; TRL cannot take an empty completion.
    """
    teaches = np.repeat(~zero_variance(episodes, group_size=group_size), group_size)
    rows = RolloutRows([], [], [], [], [])
    for episode, trained in zip(episodes, teaches, strict=True):
        token_ids = episode.token_ids.tolist()
        start = episode.prompt_length
        if usable(episode):
            mask = episode.action_mask[start:] & bool(trained)
            rows.completion_ids.append(token_ids[start:])
            rows.logprobs.append(np.nan_to_num(episode.logprobs[start:], nan=0.0).tolist())
            rows.env_mask.append(mask.astype(int).tolist())
            rows.episode_return.append(episode.total_reward)
        else:
            rows.completion_ids.append([filler_token])
            rows.logprobs.append([0.0])
            rows.env_mask.append([0])
            rows.episode_return.append(None)
        rows.prompt_ids.append(token_ids[:start] or [filler_token])
    return rows


def usable(episode: Episode) -> bool:
    """Whether an episode says something about the policy."""
    return not episode.infrastructure_error and episode.n_steps > 0


def zero_variance(episodes: Sequence[Episode], *, group_size: int) -> NDArray[np.bool_]:
    """[G] Whether all usable returns of a group are the same; such a group has no advantage and teaches nothing."""
    flat = []
    for start in range(0, len(episodes), group_size):
        group = [episode for episode in episodes[start : start + group_size] if usable(episode)]
        returns = [episode.total_reward for episode in group if episode.total_reward is not None]
        flat.append(len(returns) < 2 or max(returns) - min(returns) < _ZERO_SPREAD)
    return np.array(flat, dtype=np.bool_)
