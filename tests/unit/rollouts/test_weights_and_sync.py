"""Weights on their way to a sampler, and the check that they arrived."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from toys.llama import random_llama
from transformers import LlamaForCausalLM

from offline_arl.errors import DataError, GateError
from offline_arl.rollouts.sync import SyncReport, check_report, compare_logprobs, score_tokens, verify_sync
from offline_arl.rollouts.transformers_sampler import TransformersSampler
from offline_arl.rollouts.weights import checkpoint_weights, load_checkpoint, model_weights, with_tied_head


def test_a_tied_head_is_spelled_out_once() -> None:
    embeddings, norm = torch.ones(2, 2), torch.zeros(2)
    without = [("model.embed_tokens.weight", embeddings), ("model.norm.weight", norm)]
    names = [name for name, _ in with_tied_head(without)]
    assert names == ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
    assert list(with_tied_head(without))[-1][1] is embeddings
    assert len(list(with_tied_head([*without, ("lm_head.weight", embeddings)]))) == 3


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shard_size", ["50GB", "20KB"])
def test_checkpoint_and_live_model_give_the_same_weights(tmp_path: Path, tied: bool, shard_size: str) -> None:
    model = random_llama(tied=tied)
    model.save_pretrained(tmp_path, max_shard_size=shard_size)
    assert ((tmp_path / "model.safetensors.index.json").exists()) == (shard_size == "20KB")
    saved, live = dict(checkpoint_weights(tmp_path)), dict(model_weights(model))
    assert saved.keys() == live.keys()
    assert all(torch.equal(saved[name], live[name]) for name in live)
    assert "lm_head.weight" in saved


def test_a_checkpoint_is_put_into_a_running_sampler(tmp_path: Path) -> None:
    new = random_llama(tied=True, seed=1)
    new.save_pretrained(tmp_path)
    sampler = TransformersSampler(random_llama(tied=True), stop_token_ids=[3])
    load_checkpoint(sampler, tmp_path)
    assert verify_sync(sampler, new, [[5, 6]], seed=0).max_abs_difference < 1e-5


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no model\.safetensors"):
        list(checkpoint_weights(tmp_path))


def test_scores_by_hand() -> None:
    """Log-softmax of the logits divided by the temperature, at the position before the token."""
    model, sequence = random_llama(tied=True).eval(), [5, 9, 2]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([sequence])).logits[0] / 0.5
    expected = [logits.log_softmax(-1)[0, 9].item(), logits.log_softmax(-1)[1, 2].item()]
    short, found = score_tokens(model, [[7], sequence], temperature=0.5)
    assert np.isnan(found[0])
    assert np.isnan(short).all()
    assert found[1:].tolist() == pytest.approx(expected, abs=1e-5)


@pytest.fixture
def trained() -> Iterator[LlamaForCausalLM]:
    model = random_llama(tied=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.ones_like(parameter))
    return model


def test_stale_weights_are_refused(trained: LlamaForCausalLM) -> None:
    sampler = TransformersSampler(random_llama(tied=True), stop_token_ids=[3])
    with pytest.raises(GateError, match="its weights are stale"):
        verify_sync(sampler, trained, [[5, 6], [7]], seed=0)
    sampler.load_weights(model_weights(trained))
    report = verify_sync(sampler, trained, [[5, 6], [7]], seed=0)
    assert report.max_abs_difference < 1e-5
    assert report.n_tokens > 2


def test_differences_are_taken_where_the_sampler_spoke() -> None:
    model = random_llama(tied=True)
    sequences = [[5, 9, 2, 4], [7, 8]]
    truth = score_tokens(model, sequences, temperature=1.0)
    claimed = [truth[0] + np.float32([0, 0.25, np.nan, 0.5]), truth[1]]
    report = compare_logprobs(model, sequences, claimed, temperature=1.0)
    assert report.n_tokens == 3
    assert report.max_abs_difference == pytest.approx(0.5, abs=1e-5)
    assert report.mean_abs_difference == pytest.approx(0.25, abs=1e-5)
    with pytest.raises(DataError, match="no sampled token"):
        compare_logprobs(model, [[5, 9]], [np.float32([np.nan, np.nan])], temperature=1.0)


def test_not_a_number_is_never_good_enough() -> None:
    check_report(SyncReport(1e-5, 1e-6, 10), 1e-4, backend="vllm")
    with pytest.raises(GateError):
        check_report(SyncReport(float("nan"), 0.0, 10), 1e-4, backend="vllm")
