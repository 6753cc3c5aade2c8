"""The policy's own rare successes, kept and cloned beside the logged ones (self-imitation, Oh et al. 2018).

A group in which one attempt of eight succeeds moves the policy a little, once. Where successes are that rare the next
one may be far away, so they are kept for a while and cloned until the policy finds them by itself.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from offline_arl.datasets.segments import SegmentDataset, SegmentRow, SegmentWriter, rows_of
from offline_arl.online.replay import chances_by_failure
from offline_arl.online.rows import usable
from offline_arl.rollouts.episode import Episode

_STREAM = 4  # of random numbers: no other draws of a run share it
_RARE = 0.5  # of a group: what succeeds more often is learned without


class OwnSuccesses:
    """The latest rows of successful attempts from groups of which at most half succeeded.

    Args:
        capacity: Rows that are kept; the oldest go first.
        seed: Of the draws.
    """

    def __init__(self, capacity: int, *, seed: int) -> None:
        self._rows: deque[SegmentRow] = deque(maxlen=capacity)
        self._seed = seed

    def __len__(self) -> int:
        """Rows that are kept."""
        return len(self._rows)

    def __iter__(self) -> Iterator[SegmentRow]:
        return iter(self._rows)

    def add(self, episodes: Sequence[Episode], *, group_size: int) -> None:
        """Keep what is new and rare of a step's episodes, groups next to one another; of equal attempts one."""
        for start in range(0, len(episodes), group_size):
            group = [episode for episode in episodes[start : start + group_size] if usable(episode)]
            successes = [episode for episode in group if episode.success]
            if not successes or len(successes) > _RARE * len(group):
                continue
            different = {episode.sampled_tokens.tobytes(): episode for episode in successes}
            for episode in different.values():
                # Without logprobs: cloned with weight 1 also where the policy has moved away from them since.
                self._rows.extend(
                    dataclasses.replace(row, logprobs=None) for row in rows_of(episode.trajectory, episode.segments)
                )

    def draw(self, step: int, update: int, count: int, failures: Mapping[str, float] | None = None) -> list[SegmentRow]:
        """`count` rows, or all where there are fewer, none twice; task types that fail more often come more often.

        The same arguments give the same rows of the same content.

        Args:
            step: Of the training.
            update: Within the step.
            count: Rows wanted.
            failures: Task type to the share of attempts that fail; None: all alike.
        """
        generator = np.random.default_rng([self._seed, step, update, _STREAM])
        chances = chances_by_failure([row.task_type or "" for row in self._rows], failures)
        drawn = generator.choice(len(self._rows), min(count, len(self._rows)), replace=False, p=chances)
        return [self._rows[index] for index in drawn.tolist()]

    def save(self, folder: Path, *, fingerprint: str) -> None:
        """Write the rows as a dataset of kind "bc"."""
        with SegmentWriter(folder, kind="bc", fingerprint=fingerprint, config={}, may_be_empty=True) as writer:
            for row in self._rows:
                writer.add([row])

    def restore(self, folder: Path) -> None:
        """Take the rows that `save` wrote, in their order.

        Raises:
            DataError: The folder is missing or damaged.
        """
        self._rows.clear()
        self._rows.extend(SegmentDataset.load(folder, memory_map=False))
