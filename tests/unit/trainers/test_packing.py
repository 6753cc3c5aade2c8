"""Packed rows: nothing of one segment reaches another, and where that cannot be, rows are padded."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from toys import VOCABULARY, ToyTokenizer, toy_dataset, toy_model, toy_rows

from offline_arl.datasets.collate import TokenBudgetSampler, collate_segments
from offline_arl.datasets.packing import collate_packed, pack
from offline_arl.datasets.segments import SegmentRow
from offline_arl.models.packing import packs_exactly
from offline_arl.models.policy import logits_at, selected_logits
from offline_arl.objectives import masked_mean, predicting_mask, selected_token_logprobs, weighted_nll
from offline_arl.objectives.logprobs import scored_mask
from offline_arl.trainers.config import WeightedBCConfig
from offline_arl.trainers.weighted_bc import train_weighted_bc

SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def _model(architecture: str, attention: str) -> Any:
    """A toy model of an architecture that `toy_model` has, or of one more."""
    more = {
        "mistral": lambda: transformers.MistralConfig(
            **SIZES, num_key_value_heads=1, intermediate_size=48, sliding_window=5, initializer_range=0.2
        ),
        "gpt_neox": lambda: transformers.GPTNeoXConfig(**SIZES, intermediate_size=48, initializer_range=0.2),
    }
    config = more[architecture]() if architecture in more else toy_model(architecture).config
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()


def _rows(count: int = 9) -> list[SegmentRow]:
    """Rows of different lengths and prefixes, longer than the windows of the models that have one."""
    return [row for prefix in (1, 5, 12) for row in toy_rows(count // 3, seed=prefix, prefix=prefix)]


def _loss(model: Any, rows: list[SegmentRow], *, layout: str, weights: dict[tuple[str, int], float]) -> torch.Tensor:
    if layout == "padded":
        batch = collate_segments(rows, pad_token_id=0, step_weights=weights)
        mask = scored_mask(batch.loss_mask)
        logits = selected_logits(model, batch.input_ids, batch.attention_mask, predicting_mask(mask))
    else:
        batch = collate_packed(rows, pad_token_id=0, step_weights=weights, single_row=layout == "row")
        mask = scored_mask(batch.loss_mask)
        logits = logits_at(
            model, predicting_mask(mask), input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False
        )
    logprobs = selected_token_logprobs(logits, batch.input_ids, mask)
    return masked_mean(weighted_nll(logprobs, batch.token_weights, mask), mask, denominator=mask.sum())


def _gradients(model: Any) -> dict[str, torch.Tensor]:
    return {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}


@pytest.mark.parametrize("layout", ["rows", "row"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma2", "gpt2", "gpt_neox", "mistral"])
def test_packed_rows_give_the_loss_and_the_gradients_of_separate_ones(
    architecture: str, attention: str, layout: str
) -> None:
    model, rows, generator = _model(architecture, attention), _rows(), np.random.default_rng(0)
    weights = {(row.trajectory_id, step): float(generator.choice([0.0, 0.5, 2.0])) for row in rows for step in range(3)}
    assert packs_exactly(model)
    found = {}
    for way in ("padded", layout):
        model.zero_grad()
        loss = _loss(model, rows, layout=way, weights=weights)
        loss.backward()
        found[way] = (loss.item(), _gradients(model))
    assert found[layout][0] == pytest.approx(found["padded"][0], abs=1e-5)
    for name, value in found["padded"][1].items():
        torch.testing.assert_close(found[layout][1][name], value, atol=1e-5, rtol=1e-4, msg=name)


def test_the_logits_of_a_segment_are_the_same_whatever_it_is_packed_with() -> None:
    model, rows = _model("llama", "sdpa"), _rows()
    alone = model(torch.from_numpy(rows[-1].token_ids[None].astype(np.int64))).logits[0]
    batch = collate_packed(rows, pad_token_id=0, single_row=True)
    packed = model(batch.input_ids, position_ids=batch.position_ids, use_cache=False).logits[0, -len(rows[-1]) :]
    torch.testing.assert_close(packed, alone, atol=1e-5, rtol=0)


def test_without_positions_segments_would_leak() -> None:
    """What the test above would see if packing were done by concatenation alone."""
    model, rows = _model("llama", "sdpa"), _rows()
    alone = model(torch.from_numpy(rows[-1].token_ids[None].astype(np.int64))).logits[0]
    batch = collate_packed(rows, pad_token_id=0, single_row=True)
    packed = model(batch.input_ids, use_cache=False).logits[0, -len(rows[-1]) :]
    assert (packed - alone).abs().max() > 0.1


REFUSED = {
    "opt": lambda: transformers.OPTConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, ffn_dim=48, num_attention_heads=2,
        word_embed_proj_dim=32, max_position_embeddings=128,
    ),
    "mamba": lambda: transformers.MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2),
    "bloom": lambda: transformers.BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=2),
    "llama4": lambda: transformers.Llama4TextConfig(
        **SIZES, num_key_value_heads=2, head_dim=16, intermediate_size=48, intermediate_size_mlp=48,
        num_local_experts=2, attention_chunk_size=8, pad_token_id=0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("architecture", REFUSED)
def test_models_that_would_mix_segments_are_told_apart(architecture: str) -> None:
    """Positions by counting, recurrence, distances without positions, chunks counted from the start of the row."""
    model = transformers.AutoModelForCausalLM.from_config(REFUSED[architecture](), attn_implementation="eager").eval()
    assert not packs_exactly(model)
    assert not model.training


def test_training_pads_where_packing_is_not_exact(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dataset = toy_dataset(tmp_path / "data", toy_rows(12))
    model = transformers.OPTForCausalLM(REFUSED["opt"]())
    config = WeightedBCConfig(epochs=1, packing=True, tokens_per_batch=200)
    with caplog.at_level(logging.WARNING):
        record = train_weighted_bc(model, ToyTokenizer(), dataset, config, tmp_path / "out", seed=0)
    assert record.metrics["packed"] == 0
    assert any("does not keep packed segments apart" in line.message for line in caplog.records)


def test_packed_training_sees_every_row_once_an_epoch(tmp_path: Path) -> None:
    rows = _rows(12)
    dataset = toy_dataset(tmp_path / "data", rows)
    config = WeightedBCConfig(epochs=2, packing=True, tokens_per_batch=60)
    record = train_weighted_bc(toy_model(), ToyTokenizer(), dataset, config, tmp_path / "out", seed=0)
    scored = sum(int(row.action_mask[1:].sum()) for row in rows)
    assert record.metrics["packed"] == 1
    assert record.metrics["trained_tokens"] == 2 * scored


def test_bins_hold_every_segment_once_and_none_is_too_full() -> None:
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 50, size=200).tolist()
    bins = pack(lengths, 50)
    assert sorted(index for members in bins for index in members) == list(range(200))
    assert max(sum(lengths[index] for index in members) for members in bins) <= 50
    assert len(bins) <= 1.1 * sum(lengths) / 50


def test_packed_batches_keep_the_budget_and_the_order_of_lengths() -> None:
    lengths = np.random.default_rng(0).integers(1, 40, size=100)
    batches = TokenBudgetSampler(lengths, max_tokens=120, epochs=1, seed=0, packed=True).batches
    assert sorted(row for batch in batches for row in batch) == list(range(100))
    assert all(lengths[batch].sum() <= 120 for batch in batches)
    assert all((np.diff(lengths[batch]) >= 0).all() for batch in batches)
    assert len(batches) <= 1.25 * lengths.sum() / 120
