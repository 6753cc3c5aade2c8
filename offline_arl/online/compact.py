"""Batches without the padding that TRL puts in front of, between and behind prompts and completions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from offline_arl.models.policy import MIN_SHARED_PREFIX


class CompactLayout(NamedTuple):
    """Rows moved to the left: prompt and completion without the padding in front and in between."""

    token_ids: Tensor  # [B, T]
    attention_mask: Tensor  # [B, T] 1 on tokens
    is_completion: Tensor  # [B, T] bool
    lengths: Tensor  # [B]
    prompt_lengths: Tensor  # [B]
    shared_prefix: int  # first tokens that all rows share and that no completion token is predicted from


def compact_layout(input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int) -> CompactLayout:
    """Undo TRL's padding.

    Args:
        input_ids: [B, P + C] prompts padded on the left, completions padded on the right.
        attention_mask: [B, P + C] 1 on tokens.
        logits_to_keep: C.
    """
    mask = attention_mask.bool()
    # A stable sort of "is padding" moves the tokens of a row to its left and keeps their order.
    order = (~mask).to(torch.uint8).argsort(dim=1, stable=True)
    lengths = mask.sum(dim=1)
    width = int(lengths.max())
    order = order[:, :width]
    token_ids = input_ids.gather(1, order)
    moved_mask = mask.gather(1, order)
    prompt_lengths = mask[:, : input_ids.shape[1] - logits_to_keep].sum(dim=1)
    positions = torch.arange(width, device=input_ids.device)
    is_completion = moved_mask & (positions >= prompt_lengths[:, None])
    limit = int(prompt_lengths.min()) - 1  # the last prompt token predicts the first completion token
    same = (token_ids[:, : max(limit, 0)] == token_ids[:1, : max(limit, 0)]).all(dim=0)
    shared = int(same.cumprod(0).sum()) if len(same) else 0
    if shared < MIN_SHARED_PREFIX or len(token_ids) == 1:
        shared = 0
    return CompactLayout(token_ids, moved_mask.long(), is_completion, lengths, prompt_lengths, shared)


def completion_places(
    layout: CompactLayout, rows: Tensor, width: int, shared: int
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Where the scores of completion tokens lie in a chunk's output and where they belong in [B, C].

    Returns:
        ((row of the chunk, position of the output), index into the completion), one entry a token.
    """
    chunk_rows, columns = layout.is_completion[rows, :width].nonzero(as_tuple=True)
    slots = columns - layout.prompt_lengths[rows][chunk_rows]
    return (chunk_rows, columns - shared - 1), slots
