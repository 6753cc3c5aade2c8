"""What else could have been done: the different actions that the logs hold for one and the same state.

A state is what the policy has read, so two steps are in the same state where the tokens before their actions are the
same, whichever attempt or task they belong to. Then the feature of the other's action is exactly the feature that
this step would have had with that action. Actions logged in other states are no candidates: their features tell of
another conversation. What the logs lack can be added: alternatives that a policy proposed in a state, with features
of their own (`workflows.alternatives`).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from offline_arl.datasets.segments import SegmentDataset, SegmentRow
from offline_arl.models.features import StepFeatures

_DIGEST_BYTES = 16


@dataclass(frozen=True, eq=False)
class StateActions:
    """Names of the state and the action of each row of a feature table: equal numbers, equal tokens."""

    states: Int[Tensor, " N"]
    actions: Int[Tensor, " N"]  # -1 where there is no action

    @classmethod
    def of(cls, *tables: tuple[StepFeatures, SegmentDataset]) -> StateActions:
        """Compare tokens; every token is hashed once. Rows of several tables are numbered through."""
        numbers: dict[bytes, int] = {}
        total = sum(len(features) for features, _ in tables)
        states, actions = torch.full((total,), -1), torch.full((total,), -1)
        offset = 0
        for features, dataset in tables:
            row_of = features.row_of()
            for row in dataset:
                for step, state, action in _digests(row):
                    at = row_of.get((row.trajectory_id, step))
                    if at is not None:
                        states[offset + at] = numbers.setdefault(state, len(numbers))
                        if action is not None:
                            actions[offset + at] = numbers.setdefault(action, len(numbers))
            offset += len(features)
        return cls(states, actions)


def _digests(row: SegmentRow) -> Iterator[tuple[int, bytes, bytes | None]]:
    """(step, digest of the tokens before its action, digest of these and the action) of the steps of a row, and of the
    state after the last one where the row ends in it.
    """
    tokens = np.ascontiguousarray(row.token_ids)
    positions = np.flatnonzero(row.step_index >= 0)
    steps, starts, counts = np.unique(row.step_index[positions], return_index=True, return_counts=True)
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    done = 0
    for step, start, count in zip(steps, starts, counts, strict=True):
        first, last = int(positions[start]), int(positions[start + count - 1])
        digest.update(tokens[done:first].tobytes())
        before = digest.copy()
        # An empty action and no action, or a part of an observation and an action, must not look alike.
        before.update(b"state")
        digest.update(tokens[first : last + 1].tobytes())
        after = digest.copy()
        after.update(b"action")
        yield int(step), before.digest(), after.digest()
        done = last + 1
    if row.final_state and row.n_steps is not None:
        digest.update(tokens[done:].tobytes())
        digest.update(b"state")
        yield row.n_steps, digest.digest(), None


@dataclass(frozen=True, eq=False)
class Candidates:
    """For each state the rows that hold its different actions: logged ones first, the most frequent before others."""

    group_of: Int[Tensor, " N"]  # row of the feature table -> group
    rows: Int[Tensor, "G A"]
    exists: Bool[Tensor, "G A"]
    place_of: Int[Tensor, " N"]  # row -> place of its own action in its group; A: not there, -1: it has no action

    @classmethod
    def of(
        cls,
        names: StateActions,
        rows: Int[Tensor, " R"],
        *,
        max_candidates: int,
        proposed: Int[Tensor, " P"] | None = None,
    ) -> Candidates:
        """Group the actions of some rows by state; other rows propose nothing, but are in a state that has candidates.

        Args:
            names: Of all rows.
            rows: Whose actions are candidates: those of the training data.
            max_candidates: Of a state, at least 1; the first are kept.
            proposed: Rows of actions that were never logged; they come after all that were.
        """
        _, group_of = torch.unique(names.states, return_inverse=True)
        n_groups = int(group_of.max()) + 1 if len(group_of) else 0
        counts: Counter[tuple[int, int]] = Counter()
        example: dict[tuple[int, int], int] = {}
        for weight, some in ((1, rows), (0, proposed)):
            for row in () if some is None else some.tolist():
                key = int(group_of[row]), int(names.actions[row])
                if key[1] >= 0:
                    counts[key] += weight
                    example.setdefault(key, row)
        listed: list[list[int]] = [[] for _ in range(n_groups)]
        places: dict[tuple[int, int], int] = {}
        for key, _ in counts.most_common():
            group = listed[key[0]]
            if len(group) < max_candidates:
                places[key] = len(group)
                group.append(example[key])
        width = max([1, *map(len, listed)])
        padded = torch.tensor([group + [0] * (width - len(group)) for group in listed]).view(n_groups, width)
        exists = torch.arange(width) < torch.tensor([len(group) for group in listed]).view(n_groups, 1)
        keys = zip(group_of.tolist(), names.actions.tolist(), strict=True)
        place_of = [places.get(key, width) if key[1] >= 0 else -1 for key in keys]
        return cls(group_of, padded, exists, torch.tensor(place_of))

    def at(self, rows: Int[Tensor, " B"]) -> tuple[Int[Tensor, "B A"], Bool[Tensor, "B A"], Bool[Tensor, "B A"]]:
        """The candidate actions in the states of some rows, as rows: which exist, and which is the row's own action.

        A row's own action is always among them. Where it is no candidate (others were more frequent, or the row was
        held out), it takes the first free place, or the last of a full list. A row without an action has no own one.
        """
        groups = self.group_of[rows]
        candidates, exists, places = self.rows[groups], self.exists[groups], self.place_of[rows]
        width = candidates.shape[1]
        free = exists.sum(dim=1).clamp_max(width - 1)
        acts = places >= 0
        places = torch.where(places < width, places, free).clamp_min(0).unsqueeze(1)
        own = torch.zeros_like(exists).scatter(1, places, acts.unsqueeze(1))
        return torch.where(own, rows.unsqueeze(1), candidates), exists | own, own

    def alternatives(self) -> float:
        """Share of the states with candidates that have more than one."""
        counts = self.exists.sum(dim=1)
        return float((counts > 1).sum() / (counts > 0).sum().clamp_min(1))
