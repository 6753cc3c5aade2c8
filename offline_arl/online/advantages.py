"""Advantages of the tokens of a step's episodes: of the episode in its group, and of the turn under a critic."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from offline_arl.objectives import group_advantages
from offline_arl.online.config import GrpoConfig, LengthConfig
from offline_arl.online.rows import usable
from offline_arl.rollouts.episode import Episode

_SMALLEST_SCALE = 1e-6


def training_returns(episodes: Sequence[Episode], length: LengthConfig | None) -> list[float | None]:
    """What each episode is worth to the policy: its return, less what it pays for its length.

    None where the harness failed or nothing was sampled.
    """
    return [_worth(episode, length) if usable(episode) else None for episode in episodes]


def token_advantages(
    episodes: Sequence[Episode],
    returns: Sequence[float | None],
    config: GrpoConfig,
    *,
    turn_advantages: Sequence[NDArray[np.float64]] | None = None,
) -> list[NDArray[np.float64]]:
    """The advantage of each token behind the first prompt of each episode; 0 on what the environment said.

    Args:
        episodes: Groups next to one another.
        returns: Of the episodes (`training_returns`).
        config: Group size, baseline, deviation, and the weight of the critic.
        turn_advantages: Of each step that the environment took, one array an episode; None: no critic.

    Returns:
        One array an episode, as long as its completion.
    """
    values = torch.tensor([np.nan if value is None else value for value in returns], dtype=torch.float64)
    groups = group_advantages(
        values, group_size=config.group_size, baseline=config.baseline, deviation=config.deviation
    ).tolist()
    if turn_advantages is None:
        return [_spread(episode, advantage, None) for episode, advantage in zip(episodes, groups, strict=True)]
    weight = config.turn_advantages.weight
    scale = _root_mean_square(
        [turns for episode, turns in zip(episodes, turn_advantages, strict=True) if usable(episode)]
    )
    return [
        _spread(episode, (1.0 - weight) * advantage, weight * turns / scale)
        for episode, advantage, turns in zip(episodes, groups, turn_advantages, strict=True)
    ]


def _spread(episode: Episode, advantage: float, turns: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """One number for each token behind the first prompt."""
    if not usable(episode):
        return np.zeros(0)
    mask = episode.action_mask[episode.prompt_length :]
    found = np.where(mask, advantage, 0.0)
    if turns is not None and len(turns):
        steps = episode.segments[0].step_index[episode.prompt_length :]
        judged = mask & (steps < len(turns))  # a step that the environment did not take has no advantage of its own
        found[judged] += turns[steps[judged]]
    return found


def _root_mean_square(turns: Sequence[NDArray[np.float64]]) -> float:
    everything = np.concatenate([*turns, np.zeros(0)])
    if len(everything) == 0:
        return 1.0
    return max(float(np.sqrt(np.mean(np.square(everything)))), _SMALLEST_SCALE)


def _worth(episode: Episode, length: LengthConfig | None) -> float:
    worth = episode.total_reward or 0.0
    if length is None:
        return worth
    tokens = len(episode.sampled_tokens)
    excess = (tokens - length.free) / (length.limit - length.free)
    return worth - length.penalty * min(max(excess, 0.0), 1.0)
