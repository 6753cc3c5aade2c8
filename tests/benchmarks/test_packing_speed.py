"""Packing against padding: tokens a second of training, forward and backward, by how lengths are spread.

Run with `pytest tests/benchmarks/test_packing_speed.py -s`. Padding sorts rows by length within pools of batches, as
training does; "shuffled" pads batches of rows as they come, as training without sorting would. With attention over a
mask, a packed row costs the square of its length, so sorted padding is the faster one here; kernels for sequences of
variable length, which need a GPU, have no such cost.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from offline_arl.datasets.collate import SegmentBatch, TokenBudgetSampler, collate_segments
from offline_arl.datasets.packing import collate_packed
from offline_arl.datasets.segments import SegmentRow
from offline_arl.models.policy import logits_at, selected_logits
from offline_arl.objectives import masked_mean, predicting_mask, selected_token_logprobs, weighted_nll
from offline_arl.objectives.logprobs import scored_mask

VOCABULARY, BUDGET, SECONDS = 512, 4_096, 3.0


def _model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=768, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=8_192,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def _rows(lengths: np.ndarray[Any, np.dtype[np.int64]], generator: np.random.Generator) -> list[SegmentRow]:
    rows = []
    for number, length in enumerate(lengths):
        mask = generator.random(int(length)) < 0.3
        mask[0], mask[-1] = False, True
        tokens = generator.integers(VOCABULARY, size=int(length)).astype(np.int32)
        step_index = np.where(mask, 0, -1).astype(np.int32)
        rows.append(SegmentRow(f"t{number}", None, None, None, 0, tokens, mask, step_index))
    return rows


def _shuffled(lengths: np.ndarray[Any, np.dtype[np.int64]]) -> list[list[int]]:
    """Rows as they come, as many as fit the budget when padded."""
    batches: list[list[int]] = [[]]
    for row in np.random.default_rng(0).permutation(len(lengths)):
        longest = max(lengths[[*batches[-1], row]])
        if batches[-1] and (len(batches[-1]) + 1) * longest > BUDGET:
            batches.append([])
        batches[-1].append(int(row))
    return batches


def _step(model: Any, batch: SegmentBatch) -> None:
    mask = scored_mask(batch.loss_mask)
    if batch.position_ids is None:
        logits = selected_logits(model, batch.input_ids, batch.attention_mask, predicting_mask(mask))
    else:
        arguments = {"input_ids": batch.input_ids, "position_ids": batch.position_ids, "use_cache": False}
        logits = logits_at(model, predicting_mask(mask), **arguments)
    losses = weighted_nll(selected_token_logprobs(logits, batch.input_ids, mask), batch.token_weights, mask)
    masked_mean(losses, mask, denominator=mask.sum()).backward()
    model.zero_grad()


def _measured(
    model: Any, rows: list[SegmentRow], batches: list[list[int]], collate: Callable[[list[SegmentRow]], SegmentBatch]
) -> tuple[float, float]:
    """Tokens a second, and the share of padding."""
    collated = [collate([rows[index] for index in batch]) for batch in batches]
    _step(model, collated[0])
    tokens, computed, began = 0, 0, time.perf_counter()
    for batch in collated:
        _step(model, batch)
        tokens += int(batch.attention_mask.sum())
        computed += batch.attention_mask.numel()
        if time.perf_counter() - began > SECONDS:
            break
    return tokens / (time.perf_counter() - began), 1 - tokens / computed


@pytest.mark.parametrize("spread", ["alike (180 to 220)", "lognormal (median 150)", "few long among short (40, 1 000)"])
def test_tokens_a_second(spread: str) -> None:
    generator = np.random.default_rng(0)
    lengths = {
        "a": generator.integers(180, 221, size=600),
        "l": np.clip(generator.lognormal(5.0, 0.8, size=600).astype(np.int64), 8, 1_500),
        "f": np.where(generator.random(900) < 0.05, 1_000, generator.integers(20, 60, size=900)),
    }[spread[0]]
    rows, model = _rows(lengths, generator), _model()
    torch.manual_seed(0)

    def padded(batch: list[SegmentRow]) -> SegmentBatch:
        return collate_segments(batch, pad_token_id=0)

    def packed(batch: list[SegmentRow]) -> SegmentBatch:
        return collate_packed(batch, pad_token_id=0)

    sampled = {
        name: TokenBudgetSampler(lengths, max_tokens=BUDGET, epochs=1, seed=0, packed=name == "packed").batches
        for name in ("padded", "packed")
    }
    speed = {
        "shuffled": _measured(model, rows, _shuffled(lengths), padded),
        "padded": _measured(model, rows, sampled["padded"], padded),
        "packed": _measured(model, rows, sampled["packed"], packed),
    }
    print(f"\n{spread}: " + ", ".join(f"{name} {s:,.0f} tokens/s ({p:.0%} padding)" for name, (s, p) in speed.items()))
    assert speed["packed"][1] < 0.2
    if spread[0] != "a":
        assert speed["packed"][0] > 1.2 * speed["shuffled"][0]
