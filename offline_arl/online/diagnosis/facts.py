"""What the episodes of a step show beyond their means: groups that repeat themselves, judges that contradict."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from offline_arl.rollouts.episode import Episode

MAX_TYPES = 32  # task types that are listed, the most frequent ones
MAX_TASKS = 64  # a step with more tasks than this is not short of tasks, and lists none

Facts = dict[str, Any]


def episode_facts(episodes: Sequence[Episode]) -> Facts:
    """What a record has no field for, as JSON of a bounded size.

    Returns:
        `entropy`: mean -log p of the sampled tokens, nats: the policy's entropy as sampled, also in groups that teach
        nothing, which the record leaves out;
        `uniform_groups`: share of groups whose attempts all sampled the very same tokens;
        `empty_episodes`: share in which the agent said nothing and called nothing;
        `unjudged`: share that ended without a verdict and without a score;
        `contradictions`: share of judged episodes whose return contradicts the verdict: a success with a return below
        0, or a failure with a higher return than every success of its group;
        `idle_successes`: share of the successes in which the agent had said and called nothing;
        `types`: by task type [groups, judged attempts, successes, infrastructure errors];
        `tasks`: a number for each task of the step, None for more than `MAX_TASKS`.
        Shares are of episodes whose harness did not fail, None where there are none.
    """
    sound = [episode for episode in episodes if not episode.infrastructure_error]
    judged = [episode for episode in sound if episode.success is not None]
    successes = [episode for episode in judged if episode.success]
    groups = _groups(episodes)
    tasks = {zlib.crc32(episode.task.task_id.encode()) for episode in episodes}
    return {
        "entropy": _entropy(sound),
        "uniform_groups": _share([_is_uniform(group) for group in groups if len(group) > 1]),
        "empty_episodes": _share([_is_empty(episode) for episode in sound]),
        "unjudged": _share([_is_unjudged(episode) for episode in sound]),
        "contradictions": _share([odd for group in groups for odd in _contradictions(group)]),
        "idle_successes": _share([_is_empty(episode) for episode in successes]),
        "types": _types(groups),
        "tasks": sorted(tasks) if len(tasks) <= MAX_TASKS else None,
    }


def _groups(episodes: Sequence[Episode]) -> list[list[Episode]]:
    found: dict[tuple[str, str | None], list[Episode]] = defaultdict(list)
    for episode in episodes:
        found[episode.task.task_id, episode.trajectory.group_id].append(episode)
    return list(found.values())


def _entropy(episodes: Sequence[Episode]) -> float | None:
    total, count = 0.0, 0
    for episode in episodes:
        for segment in episode.segments:
            if segment.logprobs is not None:
                sampled = segment.logprobs[segment.action_mask]
                known = sampled[np.isfinite(sampled)]
                total -= float(known.sum(dtype=np.float64))
                count += len(known)
    return total / count if count else None


def _is_uniform(group: Sequence[Episode]) -> bool:
    sampled = {episode.sampled_tokens.tobytes() for episode in group if not episode.infrastructure_error}
    return len(sampled) == 1


def _is_empty(episode: Episode) -> bool:
    said = (message for message in episode.trajectory.messages if message.role == "assistant")
    return not any(message.tool_calls or message.text.strip() for message in said)


def _is_unjudged(episode: Episode) -> bool:
    outcome = episode.trajectory.outcome
    return outcome.success is None and outcome.score is None


def _contradictions(group: Sequence[Episode]) -> list[bool]:
    """Of each judged episode of a group, whether its return contradicts its verdict."""
    judged = [(episode.success, episode.total_reward or 0.0) for episode in group if episode.success is not None]
    best = max((total for success, total in judged if success), default=float("inf"))
    return [total < 0 if success else total > best for success, total in judged]


def _types(groups: Sequence[Sequence[Episode]]) -> dict[str, list[int]]:
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for group in groups:
        found = counts[group[0].task.task_type]
        found[0] += 1
        for episode in group:
            found[1] += episode.success is not None
            found[2] += bool(episode.success)
            found[3] += episode.infrastructure_error
    frequent = sorted(counts.items(), key=lambda item: (-item[1][0], item[0]))
    return dict(frequent[:MAX_TYPES])


def _share(values: Sequence[bool]) -> float | None:
    return sum(values) / len(values) if values else None
