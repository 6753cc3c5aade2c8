"""Episodes as the rows that TRL's `rollout_func` returns, and which of them teach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offline_arl.rollouts.episode import Episode

_SMALLEST_SPREAD = 1e-6

Gate = Literal["outcome", "return", "none"]


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


def rollout_rows(
    episodes: Sequence[Episode],
    returns: Sequence[float | None],
    *,
    idle: NDArray[np.bool_],
    group_size: int,
    filler_token: int,
) -> RolloutRows:
    """The rows of one generation batch.

    What the environment said is masked. An episode of an idle group would only be pulled towards the reference and
    count in the average over tokens: it becomes one masked token with its return. One whose harness failed, or in
    which nothing was sampled, becomes one masked token without a return: TRL leaves it out of the group's mean.

    Args:
        episodes: Groups next to one another.
        returns: What each is worth; None where it says nothing.
        idle: [G] Groups that teach nothing; see `idle_groups`.
        group_size: Episodes a group.
        filler_token: Stands for an episode without tokens; TRL cannot take an empty completion.
    """
    rows = RolloutRows([], [], [], [], [])
    for episode, worth, is_idle in zip(episodes, returns, np.repeat(idle, group_size), strict=True):
        start = episode.prompt_length
        rows.prompt_ids.append(episode.token_ids[:start].tolist() or [filler_token])
        if usable(episode) and not is_idle:
            rows.completion_ids.append(episode.token_ids[start:].tolist())
            rows.logprobs.append(np.nan_to_num(episode.logprobs[start:], nan=0.0).tolist())
            rows.env_mask.append(episode.action_mask[start:].astype(int).tolist())
        else:
            rows.completion_ids.append([filler_token])
            rows.logprobs.append([0.0])
            rows.env_mask.append([0])
        rows.episode_return.append(worth)
    return rows


def usable(episode: Episode) -> bool:
    """Whether an episode says something about the policy."""
    return not episode.infrastructure_error and episode.n_steps > 0


def idle_groups(episodes: Sequence[Episode], *, group_size: int, by: Gate) -> NDArray[np.bool_]:
    """[G] Whether a group of attempts teaches nothing: all its usable episodes are worth the same.

    Args:
        episodes: Groups next to one another.
        group_size: Episodes a group.
        by: "outcome" compares verdicts (scores where the judge gives no verdict): a group of failures that differ in
            penalties alone would get advantages out of shaping, with nothing to show which attempt is right.
            "return" compares returns. Episodes that nobody judged are compared by their returns. "none" takes every
            group with two usable episodes for one that teaches, which with a critic it may.
    """
    flat = []
    for start in range(0, len(episodes), group_size):
        group = [episode for episode in episodes[start : start + group_size] if usable(episode)]
        worth = [_worth(episode, by) for episode in group]
        flat.append(len(worth) < 2 or (by != "none" and max(worth) - min(worth) < _SMALLEST_SPREAD))
    return np.array(flat, dtype=np.bool_)


def _worth(episode: Episode, by: Gate) -> float:
    outcome = episode.trajectory.outcome
    if by == "outcome" and outcome.success is not None:
        return float(outcome.success)
    if by == "outcome" and outcome.score is not None:
        return outcome.score
    return episode.total_reward or 0.0
