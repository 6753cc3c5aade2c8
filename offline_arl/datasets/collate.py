"""Batches: rows of similar length under a token budget, padded on the right."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from offline_arl.datasets.segments import SegmentRow, steps_of
from offline_arl.errors import DataError

StepWeights = Mapping[tuple[str, int], float]  # (trajectory_id, step) -> weight
IGNORED_LABEL = -100


@dataclass(frozen=True, eq=False)
class SegmentBatch:
    """A padded batch. Index t describes `input_ids[:, t]` as the token being predicted."""

    input_ids: Int[Tensor, "B T"]
    attention_mask: Int[Tensor, "B T"]  # 1 on tokens, 0 on padding
    action_mask: Bool[Tensor, "B T"]
    step_index: Int[Tensor, "B T"]  # -1 where action_mask is False
    token_weights: Float[Tensor, "B T"]  # weight of the token's step; 0 where action_mask is False
    shared_prefix: int  # the first tokens that all rows share and that hold no action token
    position_ids: Int[Tensor, "B T"] | None = None  # of packed rows: 0 at the start of each segment

    @property
    def loss_mask(self) -> Bool[Tensor, "B T"]:
        """Action tokens that carry weight; a step of weight 0 is neither computed nor counted."""
        return self.action_mask & (self.token_weights > 0)

    def to(self, device: torch.device | str) -> SegmentBatch:
        """The batch on another device."""
        moved: dict[str, Any] = {
            field.name: value.to(device) if isinstance(value := getattr(self, field.name), Tensor) else value
            for field in fields(self)
        }
        return SegmentBatch(**moved)


def collate_segments(
    rows: Sequence[SegmentRow], *, pad_token_id: int, step_weights: StepWeights | None = None
) -> SegmentBatch:
    """Pad rows on the right to the longest.

    Args:
        rows: At least one row.
        pad_token_id: Fills `input_ids` behind a row's end.
        step_weights: Weight of each step, not negative; None weighs every step 1.

    Raises:
        DataError: A step of a row has no weight in `step_weights`.
    """
    shape = (len(rows), max(len(row) for row in rows))
    input_ids = np.full(shape, pad_token_id, dtype=np.int64)
    attention_mask = np.zeros(shape, dtype=np.int64)
    action_mask = np.zeros(shape, dtype=np.bool_)
    step_index = np.full(shape, -1, dtype=np.int64)
    token_weights = np.zeros(shape, dtype=np.float32)
    for position, row in enumerate(rows):
        end = len(row)
        input_ids[position, :end] = row.token_ids
        attention_mask[position, :end] = 1
        action_mask[position, :end] = row.action_mask
        step_index[position, :end] = row.step_index
        token_weights[position, :end] = row_token_weights(row, step_weights)
    return SegmentBatch(
        input_ids=torch.from_numpy(input_ids),
        attention_mask=torch.from_numpy(attention_mask),
        action_mask=torch.from_numpy(action_mask),
        step_index=torch.from_numpy(step_index),
        token_weights=torch.from_numpy(token_weights),
        shared_prefix=shared_prefix_length(input_ids, attention_mask, action_mask),
    )


def row_token_weights(row: SegmentRow, step_weights: StepWeights | None) -> NDArray[np.float32]:
    """[T] weight of each token: that of its step, 0 off the action mask.

    Raises:
        DataError: A step has no weight, or one that is negative or no number.
    """
    if step_weights is None:
        return row.action_mask.astype(np.float32)
    weights = np.zeros(len(row), dtype=np.float32)
    for step in steps_of(row):
        weight = weight_of_step((row.trajectory_id, int(step)), step_weights)
        weights[row.step_index == step] = weight
    return weights


def weight_of_step(key: tuple[str, int], step_weights: StepWeights) -> float:
    """The weight of a (trajectory_id, step).

    Raises:
        DataError: It has none, or one that is negative or no number.
    """
    weight = step_weights.get(key)
    trajectory, step = key
    if weight is None:
        raise DataError(
            f"trajectory {trajectory}: step {step} has no weight; "
            "train on a dataset built from the same trajectories as the weights"
        )
    if not 0.0 <= weight < math.inf:
        raise DataError(
            f"trajectory {trajectory}: step {step} has the weight {weight}; weights are finite and at least 0: train "
            "the values that they are made of again"
        )
    return weight


def shared_prefix_length(
    input_ids: NDArray[np.int64], attention_mask: NDArray[np.int64], action_mask: NDArray[np.bool_]
) -> int:
    """Number of first tokens that all rows share, ended before the token that predicts the first action token.

    The last token of a row is never part of it: features are read there.

    >>> ids = np.array([[5, 6, 7, 1, 2], [5, 6, 7, 8, 2]])
    >>> shared_prefix_length(ids, np.ones_like(ids), np.array([[0, 0, 0, 0, 1], [0, 0, 0, 0, 1]], dtype=bool))
    3
    """
    same = (input_ids == input_ids[:1]).all(axis=0) & (attention_mask == 1).all(axis=0)
    # The output at position t predicts token t + 1, so the position before the first action token is needed per row.
    usable = same & ~action_mask.any(axis=0)
    usable[:-1] &= ~action_mask[:, 1:].any(axis=0)
    usable[int(attention_mask.sum(axis=1).min()) - 1 :] = False
    return int(np.argmin(usable))


class TokenBudgetSampler(Sequence[list[int]]):
    """Batches of row indices: similar lengths, at most `max_tokens` padded tokens, for a whole run of epochs.

    Rows are shuffled, cut into pools of `pool_batches` batches' worth of tokens, sorted by length within a pool and
    cut into batches; the batches of an epoch are shuffled. All epochs are laid out at once, so that a resumed run
    finds its place by counting batches, and the same seed gives the same batches on any machine.

    Args:
        lengths: Tokens of each row.
        max_tokens: Budget for rows times longest row. A longer row makes a batch of its own.
        epochs: How often each row is seen; a fraction ends the last epoch early.
        seed: Of the shuffles.
        pool_batches: Larger pools pad less and mix lengths less.
        packed: The batches will be packed, so the budget is for the tokens alone and lengths are mixed freely.
    """

    def __init__(
        self,
        lengths: NDArray[np.int64],
        *,
        max_tokens: int,
        epochs: float,
        seed: int,
        pool_batches: int = 32,
        packed: bool = False,
    ) -> None:
        generator = np.random.default_rng(seed)
        self.batches: list[list[int]] = []
        remaining = epochs
        while remaining > 0:
            if packed:
                batches = _packed_epoch(lengths, max_tokens, generator)
            else:
                batches = _epoch(lengths, max_tokens, pool_batches, generator)
            self.batches.extend(batches[: max(1, round(len(batches) * remaining))] if remaining < 1 else batches)
            remaining -= 1

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> list[int]:  # type: ignore[override]
        return self.batches[index]

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)


def length_sorted_batches(lengths: NDArray[np.int64], *, max_tokens: int) -> list[list[int]]:
    """Batches of a single pass for inference: all rows sorted by length, least padding, no shuffle.

    >>> length_sorted_batches(np.array([3, 1, 2, 4]), max_tokens=6)
    [[1, 2], [0], [3]]
    """
    return _cut(np.argsort(lengths, kind="stable"), lengths, max_tokens)


def _epoch(
    lengths: NDArray[np.int64], max_tokens: int, pool_batches: int, generator: np.random.Generator
) -> list[list[int]]:
    order = generator.permutation(len(lengths))
    pool = np.cumsum(lengths[order]) // (max_tokens * pool_batches)
    order = order[np.lexsort((lengths[order], pool))]
    batches: list[list[int]] = []
    for members in np.split(order, np.flatnonzero(np.diff(np.sort(pool))) + 1):
        batches.extend(_cut(members, lengths, max_tokens))
    return [batches[position] for position in generator.permutation(len(batches))]


def _packed_epoch(lengths: NDArray[np.int64], max_tokens: int, generator: np.random.Generator) -> list[list[int]]:
    """Shuffled rows up to the budget of tokens; within a batch in ascending length."""
    batches: list[list[int]] = []
    total = max_tokens + 1
    for row in generator.permutation(len(lengths)):
        total += int(lengths[row])
        if total > max_tokens:
            batches.append([])
            total = int(lengths[row])
        batches[-1].append(int(row))
    return [sorted(batch, key=lambda row: int(lengths[row])) for batch in batches]


def _cut(order: NDArray[np.int64], lengths: NDArray[np.int64], max_tokens: int) -> list[list[int]]:
    """Cut rows in ascending length into batches under the budget."""
    batches: list[list[int]] = []
    current: list[int] = []
    for row in order:
        if current and (len(current) + 1) * int(lengths[row]) > max_tokens:
            batches.append(current)
            current = []
        current.append(int(row))
    if current:
        batches.append(current)
    return batches
