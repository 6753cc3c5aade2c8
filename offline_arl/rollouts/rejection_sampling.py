"""Which of a policy's own successes are worth learning from (rejection-sampling fine-tuning).

Papers: Yuan et al. 2023, "Scaling Relationship on Learning Mathematical Reasoning with Large Language Models" (RFT:
distinct successes); Touvron et al. 2023, "Llama 2", section 3.2.3.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Literal

from offline_arl.rollouts.episode import Episode


def kept_successes(
    episodes: Sequence[Episode], *, per_task: int | None, prefer: Literal["shortest", "diverse"]
) -> list[Episode]:
    """The successes to learn from: distinct ones, at most `per_task` of a task, in the order of `episodes`.

    Args:
        episodes: Several attempts at each task.
        per_task: Upper bound for a task; None keeps all distinct successes.
        prefer: "shortest" keeps those with the fewest sampled tokens. "diverse" keeps the shortest one, then, one
            after the other, the one that is least like any that is kept.

    Returns:
        Episodes that the environment judged a success. Two episodes are equal where the policy sampled the same.
    """
    by_task: dict[str, dict[tuple[int, ...], int]] = defaultdict(dict)
    for index, episode in enumerate(episodes):
        if episode.success:
            by_task[episode.task.task_id].setdefault(tuple(episode.sampled_tokens.tolist()), index)
    kept: list[int] = []
    for distinct in by_task.values():
        ordered = sorted(distinct, key=len)
        limit = len(ordered) if per_task is None else per_task
        chosen = ordered[:limit] if prefer == "shortest" else _spread(ordered, limit)
        kept.extend(distinct[sampled] for sampled in chosen)
    return [episodes[index] for index in sorted(kept)]


def likeness(one: Sequence[int], other: Sequence[int]) -> float:
    """How much of two token sequences matches in order, between 0 and 1.

    >>> likeness([1, 2, 3, 4], [1, 2, 9, 4])
    0.75
    """
    return SequenceMatcher(None, one, other, autojunk=False).ratio()


def _spread(ordered: list[tuple[int, ...]], limit: int) -> list[tuple[int, ...]]:
    """Farthest-first: the shortest, then always the one whose closest kept neighbor is farthest."""
    kept, rest = ordered[:1], ordered[1:]
    closest = [likeness(candidate, kept[0]) for candidate in rest]
    while rest and len(kept) < limit:
        best = min(range(len(rest)), key=lambda place: (closest[place], len(rest[place])))
        kept.append(rest.pop(best))
        closest.pop(best)
        closest = [max(old, likeness(candidate, kept[-1])) for old, candidate in zip(closest, rest, strict=True)]
    return kept
