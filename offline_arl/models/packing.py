"""Whether packed rows are exact for a model: found out by running it, not from a list of architectures."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from offline_arl.models.policy import base_model, unwrapped_model

# Attention that takes the ends of segments from the positions and works on one row only.
SINGLE_ROW_ATTENTION = ("flash_attention_2", "flash_attention_3", "flash_attention_4")
_MASKED_ATTENTION = ("eager", "sdpa")
_LAYERS = {"full_attention", "sliding_attention"}  # chunked and recurrent layers count from the start of the row
_SEGMENTS = (7, 12, 5)  # tokens of the trial's segments
_LEAK = 1e-6  # a hidden token has a weight of exactly 0 in every precision
_ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-4}  # half precision: 0.05


def packs_exactly(model: Any) -> bool:
    """Whether segments packed in a row see nothing of one another, for this model and its attention implementation.

    The layers must be ones whose attention depends on distances within a segment alone. On a trial of three random
    segments the last hidden states have to stay when an earlier segment changes, and to be those of the segments
    on their own up to rounding; both relative to the largest state.
    """
    model = unwrapped_model(model)
    config = model.config.get_text_config()
    if getattr(config, "_attn_implementation", None) not in (*_MASKED_ATTENTION, *SINGLE_ROW_ATTENTION):
        return False
    if not set(getattr(config, "layer_types", None) or ["full_attention"]) <= _LAYERS:
        return False
    return not getattr(model, "_is_stateful", False) and _trial(model)


def single_row(model: Any) -> bool:
    """Whether everything has to be packed into one row, for attention kernels of variable length."""
    config = unwrapped_model(model).config.get_text_config()
    return getattr(config, "_attn_implementation", None) in SINGLE_ROW_ATTENTION


def _trial(model: Any) -> bool:
    was_training = model.training
    parameter = next(model.parameters())
    vocabulary = model.get_input_embeddings().weight.shape[0]
    generator = torch.Generator().manual_seed(0)
    segments = [torch.randint(vocabulary, (1, length), generator=generator) for length in _SEGMENTS]
    other = torch.randint(vocabulary, (1, _SEGMENTS[0]), generator=generator)
    positions = torch.cat([torch.arange(length) for length in _SEGMENTS]).unsqueeze(0).to(parameter.device)

    def states(*parts: Tensor, **arguments: Any) -> Tensor:
        tokens = torch.cat(parts, dim=1).to(parameter.device)
        found: Tensor = base_model(model)(input_ids=tokens, use_cache=False, **arguments).last_hidden_state
        return found

    model.eval()
    try:
        with torch.no_grad():
            packed = states(*segments, position_ids=positions)
            changed = states(other, *segments[1:], position_ids=positions)
            alone = torch.cat([states(segment) for segment in segments], dim=1)
    except (TypeError, ValueError, RuntimeError):  # a model that takes no positions, or not these
        return False
    finally:
        model.train(was_training)
    size = alone.abs().max()
    leak = (packed - changed)[:, _SEGMENTS[0] :].abs().max()
    difference = (packed - alone).abs().max()
    return bool(leak <= _LEAK * size and difference <= _ROUNDING.get(parameter.dtype, 0.05) * size)
