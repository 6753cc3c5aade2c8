"""Batches of preference rows: pairs whose two sides share their prompt, and labeled answers with mismatched ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from offline_arl.datasets.collate import TokenBudgetSampler, shared_prefix_length
from offline_arl.errors import DataError


@runtime_checkable
class PairLike(Protocol):
    """What is read of `pairs.PairRow`."""

    @property
    def prompt_length(self) -> int: ...
    @property
    def weight(self) -> float: ...
    @property
    def chosen_token_ids(self) -> NDArray[np.int32]: ...
    @property
    def chosen_action_mask(self) -> NDArray[np.bool_]: ...
    @property
    def rejected_token_ids(self) -> NDArray[np.int32]: ...
    @property
    def rejected_action_mask(self) -> NDArray[np.bool_]: ...


@runtime_checkable
class AnswerLike(Protocol):
    """What is read of `pairs.UnpairedRow`."""

    @property
    def label(self) -> bool: ...
    @property
    def prompt_length(self) -> int: ...
    @property
    def weight(self) -> float: ...
    @property
    def token_ids(self) -> NDArray[np.int32]: ...
    @property
    def action_mask(self) -> NDArray[np.bool_]: ...


@dataclass(frozen=True, eq=False)
class Side:
    """One sequence: the prompt and what came after it."""

    token_ids: NDArray[np.int32]  # [T]
    action_mask: NDArray[np.bool_]  # [T] what the loss is about

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, eq=False)
class SequenceBatch:
    """Padded sequences. Index t describes `input_ids[:, t]` as the token being predicted."""

    input_ids: Int[Tensor, "B T"]
    attention_mask: Int[Tensor, "B T"]  # 1 on tokens, 0 on padding
    action_mask: Bool[Tensor, "B T"]
    shared_prefix: int  # the first tokens that all rows share and that predict no action token

    def to(self, device: torch.device | str) -> SequenceBatch:
        """The batch, of the same class, on another device."""
        values: dict[str, Any] = {
            name: value.to(device) if isinstance(value, Tensor) else value for name, value in vars(self).items()
        }
        return type(self)(**values)


@dataclass(frozen=True, eq=False)
class PairBatch(SequenceBatch):
    """N pairs as 2 N sequences: the chosen sides, then the rejected ones in the same order."""

    groups: Int[Tensor, " B"]  # the pair of each sequence
    prefix_lengths: Int[Tensor, " N"]  # tokens that the sides of a pair share and that predict no action token
    weights: Float[Tensor, " N"]


@dataclass(frozen=True, eq=False)
class AnswerBatch(SequenceBatch):
    """Labeled answers."""

    desirable: Bool[Tensor, " B"]
    weights: Float[Tensor, " B"]


def pair_sides(row: PairLike) -> tuple[Side, Side]:
    """The chosen and the rejected side of a pair."""
    return (
        Side(row.chosen_token_ids, row.chosen_action_mask),
        Side(row.rejected_token_ids, row.rejected_action_mask),
    )


def answer_side(row: AnswerLike) -> Side:
    """The sequence of a labeled answer."""
    return Side(row.token_ids, row.action_mask)


def mismatched_side(prompt_of: AnswerLike, answer_of: AnswerLike) -> Side:
    """The prompt of one row with the answer of another behind it, masks and all: a tool's words stay masked."""
    prompt, start = prompt_of.token_ids[: prompt_of.prompt_length], answer_of.prompt_length
    return Side(
        np.concatenate([prompt, answer_of.token_ids[start:]]),
        np.concatenate([np.zeros(len(prompt), dtype=np.bool_), answer_of.action_mask[start:]]),
    )


def collate_sides(sides: Sequence[Side], *, pad_token_id: int) -> SequenceBatch:
    """Pad sequences on the right to the longest."""
    shape = (len(sides), max(len(side) for side in sides))
    input_ids = np.full(shape, pad_token_id, dtype=np.int64)
    attention_mask = np.zeros(shape, dtype=np.int64)
    action_mask = np.zeros(shape, dtype=np.bool_)
    for position, side in enumerate(sides):
        input_ids[position, : len(side)] = side.token_ids
        attention_mask[position, : len(side)] = 1
        action_mask[position, : len(side)] = side.action_mask
    return SequenceBatch(
        input_ids=torch.from_numpy(input_ids),
        attention_mask=torch.from_numpy(attention_mask),
        action_mask=torch.from_numpy(action_mask),
        shared_prefix=shared_prefix_length(input_ids, attention_mask, action_mask),
    )


def collate_pairs(rows: Sequence[PairLike], *, pad_token_id: int) -> PairBatch:
    """A batch of pairs.

    Raises:
        DataError: The sides of a pair differ before its `prompt_length`, or one has an action token there.
    """
    sides = [pair_sides(row) for row in rows]
    prefixes = [prefix_length(row.prompt_length, *pair) for row, pair in zip(rows, sides, strict=True)]
    ordered = [chosen for chosen, _ in sides] + [rejected for _, rejected in sides]
    return PairBatch(
        **vars(collate_sides(ordered, pad_token_id=pad_token_id)),
        groups=torch.arange(len(rows)).repeat(2),
        prefix_lengths=torch.tensor(prefixes),
        weights=torch.tensor([row.weight for row in rows], dtype=torch.float32),
    )


def collate_answers(rows: Sequence[AnswerLike], *, pad_token_id: int) -> AnswerBatch:
    """A batch of labeled answers."""
    return AnswerBatch(
        **vars(collate_sides([answer_side(row) for row in rows], pad_token_id=pad_token_id)),
        desirable=torch.tensor([bool(row.label) for row in rows]),
        weights=torch.tensor([row.weight for row in rows], dtype=torch.float32),
    )


def prefix_length(prompt_length: int, chosen: Side, rejected: Side) -> int:
    """How many tokens one pass can serve for both sides of a pair: the prompt up to what predicts the first action.

    The output at the last token of a prompt predicts the first token behind it, so that token belongs to either side.

    Raises:
        DataError: The sides differ within the prompt, or one has an action token there.

    >>> tokens, mask = np.array([5, 6, 7, 8, 9], dtype=np.int32), np.array([False, False, False, True, True])
    >>> side = Side(tokens, mask)
    >>> prefix_length(3, side, side)
    2
    """
    same = np.array_equal(chosen.token_ids[:prompt_length], rejected.token_ids[:prompt_length])
    if not same or chosen.action_mask[:prompt_length].any() or rejected.action_mask[:prompt_length].any():
        raise DataError(
            f"a pair says that its sides share {prompt_length} tokens without an action token, and they do not; "
            "build the pairs again"
        )
    starts = [int(np.argmax(side.action_mask)) for side in (chosen, rejected)]
    return max(0, min(prompt_length, *(start - 1 for start in starts)))


def pair_costs(rows: Sequence[PairLike], *, share_prefix: bool) -> NDArray[np.int64]:
    """[rows] Tokens that a pair costs in a batch: its prompt once, twice its longer continuation."""
    costs = []
    for row in rows:
        longest = max(len(row.chosen_token_ids), len(row.rejected_token_ids))
        prefix = prefix_length(row.prompt_length, *pair_sides(row)) if share_prefix else 0
        costs.append(prefix + 2 * (longest - prefix))
    return np.array(costs, dtype=np.int64)


def mismatched_partners(rows: Sequence[AnswerLike], batches: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """For each row, the row of its batch whose answer is put behind its prompt to estimate KTO's reference point.

    Answers move around within a batch, all by the same number of places, so a batch's mismatched answers are its own
    answers. The shift is the smallest of those that put the fewest answers behind a prompt that they do answer.

    Args:
        rows: The rows of the dataset.
        batches: Every row in exactly one.

    Returns:
        [rows] row numbers; in a batch of one row, that row itself.
    """
    partners = np.full(len(rows), -1, dtype=np.int64)
    for batch in batches:
        prompts = [rows[index].token_ids[: rows[index].prompt_length].tobytes() for index in batch]
        order = np.array(batch)

        def collisions(shift: int, prompts: list[bytes] = prompts) -> int:
            return sum(prompts[place] == prompts[place - shift] for place in range(len(prompts)))

        best = min(range(1, max(len(batch), 2)), key=collisions)
        partners[order] = order[np.arange(len(order)) - best % len(order)]
    return partners


class SteadyBatches(NamedTuple):
    """Batches that keep together in all epochs, and the order in which a run sees them."""

    batches: list[list[int]]  # every row in exactly one
    schedule: list[list[int]]


def steady_batches(lengths: NDArray[np.int64], *, max_tokens: int, epochs: float, seed: int) -> SteadyBatches:
    """Batches of which only the order changes from epoch to epoch, as KTO's mismatched answers need it.

    Args:
        lengths: Tokens of each row.
        max_tokens: Budget for rows times longest row.
        epochs: How often each batch is seen; a fraction ends the last epoch early.
        seed: Of the composition and the order.
    """
    batches = TokenBudgetSampler(lengths, max_tokens=max_tokens, epochs=1, seed=seed).batches
    generator = np.random.default_rng([seed, 1])
    schedule: list[list[int]] = []
    remaining = epochs
    while remaining > 0:
        order = generator.permutation(len(batches))
        kept = order if remaining >= 1 else order[: max(1, round(len(batches) * remaining))]
        schedule.extend(batches[position] for position in kept)
        remaining -= 1
    return SteadyBatches(batches, schedule)
