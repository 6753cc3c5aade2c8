"""Features of steps from a frozen language model, one forward pass a trajectory.

For each step of an agent:

* the state feature is the hidden state at the token just before the step's first action token (the end of the
  generation prompt: all that the policy knows when it starts to act), with a window beside the mean over the last
  tokens up to there;
* the action feature is the hidden state at the step's last action token (the state after the action, before anything
  answers it), beside the mean over its action tokens.

The state that a step leads to is the state feature of the next step. Where an attempt was cut off, the state after
its last step has a row of its own, without an action. `feature_cache` keeps all of it on disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from offline_arl.errors import DataError
from offline_arl.models.policy import hidden_states


@runtime_checkable
class FeatureRow(Protocol):
    """What is read of a segment."""

    @property
    def trajectory_id(self) -> str: ...
    @property
    def token_ids(self) -> NDArray[np.int32]: ...
    @property
    def step_index(self) -> NDArray[np.int32]: ...
    @property
    def final_state(self) -> bool: ...
    @property
    def n_steps(self) -> int | None: ...


@runtime_checkable
class PaddedBatch(Protocol):
    """What is read of a padded batch of segments."""

    @property
    def input_ids(self) -> Tensor: ...
    @property
    def attention_mask(self) -> Tensor: ...
    @property
    def shared_prefix(self) -> int: ...


@dataclass(frozen=True, eq=False)
class StepFeatures:
    """Features of steps. A row without an action is the state after the last step of a trajectory.

    `states` and `actions` may be mapped from files larger than memory (`feature_cache.load_features`): read the rows
    that are needed (`features.states[rows]`) and nothing else. Their type is that of the cache.
    """

    trajectory_ids: list[str]  # [N]
    steps: Int[Tensor, " N"]
    has_action: Bool[Tensor, " N"]
    states: Float[Tensor, "N S"]
    actions: Float[Tensor, "N A"]  # 0 where has_action is False

    def __len__(self) -> int:
        return len(self.trajectory_ids)

    def row_of(self) -> dict[tuple[str, int], int]:
        """(trajectory_id, step) -> row."""
        keys = zip(self.trajectory_ids, self.steps.tolist(), strict=True)
        return {key: row for row, key in enumerate(keys)}

    def states_after(self, rows: Int[Tensor, " R"]) -> Float[Tensor, "R H"]:
        """The state right after the action of each row, before anything answered it: 0 for rows without an action."""
        return self.actions[rows][:, : self.actions.shape[-1] // 2]

    def pieces(self, rows: Int[Tensor, " R"], size: int = 16_384) -> Iterator[tuple[Tensor, Tensor]]:
        """(states, actions) of some rows, `size` of them at a time."""
        for piece in torch.split(rows, size):
            yield self.states[piece], self.actions[piece]


class StepPlaces(NamedTuple):
    """Where each of N steps is: the number of its row, its first and its last action token there."""

    trajectory_ids: list[str]  # [N]
    steps: Int[Tensor, " N"]
    rows: Int[Tensor, " N"]
    first: Int[Tensor, " N"]  # T where the row ends with a state
    last: Int[Tensor, " N"]  # first - 1 where there is no action

    @property
    def has_action(self) -> Bool[Tensor, " N"]:
        """False for the state after the last step."""
        return self.last >= self.first


class EncodedSteps(NamedTuple):
    """Features, and the number of positions that the model computed for them, padding included."""

    features: StepFeatures
    tokens: int


def step_features(
    model: Any, rows: Sequence[FeatureRow], batch: PaddedBatch, *, layers: tuple[int, ...], state_window: int = 0
) -> EncodedSteps:
    """The features of all steps of a padded batch of segments, from one forward pass.

    Args:
        model: The language model.
        rows: Segments.
        batch: The same, padded.
        layers: Whose states, concatenated.
        state_window: So many tokens before each action whose mean is appended to its state, fewer at the beginning of
            a segment; 0: none.

    Raises:
        DataError: A segment starts with an action token, so there is no state to act in.
    """
    places = step_places(rows)
    _, steps, batch_row, first, last = places
    begin = (first - state_window).clamp_min(0)
    states, offset = hidden_states(
        model,
        batch.input_ids,
        batch.attention_mask,
        layers=layers,
        # No window may reach into what all rows share, whose states are left out.
        shared_prefix=min([batch.shared_prefix, *begin.tolist()]),
    )
    has_action = places.has_action
    state = states[batch_row, first - 1 - offset]
    if state_window:
        state = torch.cat([state, _span_means(states, batch_row, begin - offset, first - 1 - offset)], dim=-1)
    at_last = states[batch_row, torch.where(has_action, last - offset, 0)]
    mean = _span_means(states, batch_row, first - offset, last - offset)
    action = torch.cat([at_last, mean], dim=-1) * has_action.unsqueeze(-1).to(states)
    features = StepFeatures(
        trajectory_ids=places.trajectory_ids,
        steps=steps,
        has_action=has_action,
        states=state,
        actions=action,
    )
    return EncodedSteps(features, tokens=offset + states.shape[0] * states.shape[1])


def step_places(rows: Sequence[FeatureRow]) -> StepPlaces:
    """Where the steps of some rows are, in the order in which `step_features` has them.

    Raises:
        DataError: A segment starts with an action token, so there is no state to act in.
    """
    spans = [_spans(row) for row in rows]
    counts = [len(steps) for steps, _, _ in spans]
    steps, first, last = (torch.from_numpy(np.concatenate(column)) for column in zip(*spans, strict=True))
    return StepPlaces(
        trajectory_ids=[row.trajectory_id for row, count in zip(rows, counts, strict=True) for _ in range(count)],
        steps=steps,
        rows=torch.from_numpy(np.repeat(np.arange(len(rows)), counts)),
        first=first,
        last=last,
    )


def _spans(row: FeatureRow) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(step, first action token, last action token) of each step; a final state has last = first - 1 = T - 1."""
    positions = np.flatnonzero(row.step_index >= 0)
    step_of = row.step_index[positions].astype(np.int64)
    steps, starts = np.unique(step_of, return_index=True)
    _, ends = np.unique(step_of[::-1], return_index=True)
    first, last = positions[starts], positions[len(positions) - 1 - ends]
    if len(first) and first[0] == 0:
        raise DataError(f"trajectory {row.trajectory_id}: a segment starts with an action, there is no state before it")
    if row.final_state and row.n_steps is not None:
        end = len(row.token_ids)
        return np.append(steps, row.n_steps), np.append(first, end), np.append(last, end - 1)
    return steps, first, last


def _span_means(states: Tensor, batch_row: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """[N, H] mean of the states over each span [first, last]; 0 for empty spans."""
    lengths = last - first + 1
    span = torch.repeat_interleave(torch.arange(len(first)), lengths)
    within = torch.arange(len(span)) - torch.repeat_interleave(lengths.cumsum(0) - lengths, lengths)
    gathered = states[batch_row[span], first[span] + within].float()
    sums = torch.zeros(len(first), states.shape[-1], device=states.device).index_add_(
        0, span.to(states.device), gathered
    )
    return (sums / lengths.clamp_min(1).unsqueeze(-1).to(states.device)).to(states.dtype)
