"""Rows that share a prompt with some other rows of their batch: each prompt is encoded once, with gradients.

A preference pair is two continuations of one prompt. Encoding prompt and continuation twice costs two prompts; here a
batch costs one pass over its prompts, whose key-value cache every row of a group then continues, and what all prompts
have in common (system prompt and tools) is encoded once for the whole batch. The values and gradients are those of the
plain way, up to rounding. Where a model cannot work with such a cache, or nothing would be saved, whole rows are run.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from offline_arl.models.policy import MIN_SHARED_PREFIX, base_model, logits_at, selected_logits, supports_shared_prefix

WORTH_IT = 0.9  # share prefixes where that leaves at most this part of the tokens to compute


def grouped_logits(
    model: Any,
    input_ids: Int[Tensor, "B T"],
    attention_mask: Int[Tensor, "B T"],
    selected: Bool[Tensor, "B T"],
    *,
    groups: Int[Tensor, " B"],
    prefix_lengths: Int[Tensor, " G"],
    shared_prefix: int,
) -> Float[Tensor, "N V"]:
    """Logits at the positions of `selected` alone, in row-major order; every group's prefix is encoded once.

    Args:
        model: A Hugging Face causal language model, possibly wrapped.
        input_ids: Right-padded tokens.
        attention_mask: 1 on tokens, 0 on padding.
        selected: Where logits are wanted; never inside a row's prefix.
        groups: The group of each row. All rows of a group start with the same `prefix_lengths[group]` tokens, and go
            on behind them.
        prefix_lengths: Of each group that occurs in `groups`; 0 shares nothing, in any group.
        shared_prefix: First tokens that all rows share, at most the shortest prefix; encoded once for the batch.

    Returns:
        [N, V], N the number of True in `selected`. Gradients flow, through the prefixes too.
    """
    if not _worth_it(model, attention_mask, groups, prefix_lengths, shared_prefix):
        return selected_logits(model, input_ids, attention_mask, selected, shared_prefix=shared_prefix)
    cache, prefix_mask = _encode_prefixes(model, input_ids, groups, prefix_lengths, shared_prefix)
    cache.reorder_cache(groups)
    starts = prefix_lengths[groups].unsqueeze(1)
    longest = int((attention_mask.sum(dim=1, keepdim=True) - starts).max())
    # Row b goes on at its own position; what lies beyond the row is padding.
    positions = starts + torch.arange(longest, device=input_ids.device)
    inside = positions < input_ids.shape[1]
    within = positions.clamp(max=input_ids.shape[1] - 1)
    own_mask = attention_mask.gather(1, within) * inside
    return logits_at(
        model,
        selected.gather(1, within) & inside,
        input_ids=input_ids.gather(1, within),
        attention_mask=torch.cat([prefix_mask[groups].to(own_mask.dtype), own_mask], dim=1),
        position_ids=positions,
        past_key_values=cache,
        use_cache=True,
    )


def _worth_it(model: Any, attention_mask: Tensor, groups: Tensor, prefix_lengths: Tensor, shared_prefix: int) -> bool:
    """Whether a cache works with this model and saves enough padded tokens."""
    if int(prefix_lengths.min()) < MIN_SHARED_PREFIX or not supports_shared_prefix(model):
        return False
    rows, shared = len(groups), shared_prefix if shared_prefix >= MIN_SHARED_PREFIX else 0
    lengths = attention_mask.sum(dim=1)
    behind_prefix = int((lengths - prefix_lengths[groups]).max())
    grouped = shared + len(prefix_lengths) * (int(prefix_lengths.max()) - shared) + rows * behind_prefix
    plain = shared + rows * (int(lengths.max()) - shared)
    return grouped <= WORTH_IT * plain


def _encode_prefixes(
    model: Any, input_ids: Tensor, groups: Tensor, prefix_lengths: Tensor, shared_prefix: int
) -> tuple[Any, Tensor]:
    """The key-value cache of all prefixes, one row a group and padded on the right, and the mask of its tokens.

    No mask is needed here: with causal attention no token sees the padding behind it.
    """
    base, count = base_model(model), len(prefix_lengths)
    longest = int(prefix_lengths.max())
    places = torch.arange(longest, device=input_ids.device)
    first_rows = torch.zeros(count, dtype=groups.dtype, device=groups.device)
    rows = torch.arange(len(groups), dtype=groups.dtype, device=groups.device)
    first_rows = first_rows.scatter_reduce(0, groups, rows, reduce="amin", include_self=False)
    prefixes = input_ids[first_rows, :longest]
    mask = places < prefix_lengths.unsqueeze(1)
    cache, start = None, 0
    if shared_prefix >= MIN_SHARED_PREFIX and count > 1:
        start = min(shared_prefix, longest - 1)  # a pass over no token at all is not possible
        cache = base(input_ids=input_ids[:1, :start], use_cache=True).past_key_values
        cache.batch_repeat_interleave(count)
    encoded = base(
        input_ids=prefixes[:, start:],
        position_ids=places[start:].expand(count, -1),
        past_key_values=cache,
        use_cache=True,
    )
    return encoded.past_key_values, mask
