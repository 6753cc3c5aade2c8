"""`Segment`: what stands between trajectories and every dataset and trainer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Segment:
    """Token ids of (a part of) one trajectory with the exact mask of what the policy sampled.

    Each sampled step belongs to exactly one segment. An ordinary trajectory is one segment; a template that
    rewrites earlier turns makes one a step.
    """

    trajectory_id: str
    token_ids: NDArray[np.int32]  # [T]
    action_mask: NDArray[np.bool_]  # [T], True on tokens the policy sampled, the stop token included
    step_index: NDArray[np.int32]  # [T], step that sampled the token; -1 where action_mask is False
    fingerprint: str  # tokenizer and template, `Renderer.fingerprint`
    logprobs: NDArray[np.float32] | None = None  # [T], behavior logprobs; NaN where unknown
    rendered: bool = True  # False: the token ids are the logged ones

    def __len__(self) -> int:
        return len(self.token_ids)

    def step_spans(self) -> list[tuple[int, int, int]]:
        """(step, start, end) for each step: its action tokens are [start, end), end - 1 is the last one."""
        positions = np.flatnonzero(self.action_mask)
        if len(positions) == 0:
            return []
        steps = self.step_index[positions]
        breaks = np.flatnonzero((np.diff(positions) != 1) | (np.diff(steps) != 0)) + 1
        groups = np.split(positions, breaks)
        return [(int(self.step_index[group[0]]), int(group[0]), int(group[-1]) + 1) for group in groups]
