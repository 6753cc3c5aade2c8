"""The transformers sampler against one full forward pass a token, and against the distribution it claims."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from toys.llama import VOCABULARY, random_llama
from transformers import LlamaForCausalLM

from offline_arl.errors import DataError, UsageError
from offline_arl.rollouts.sampler import SamplingConfig
from offline_arl.rollouts.sync import score_tokens
from offline_arl.rollouts.transformers_sampler import TransformersSampler
from offline_arl.rollouts.weights import model_weights

STOP = 3

MODEL = random_llama()
RAGGED = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15], [5, 6], [20, 21, 22, 23]]


def sampler(model: LlamaForCausalLM = MODEL, **fields: int) -> TransformersSampler:
    return TransformersSampler(model, stop_token_ids=[STOP], max_model_len=64, **fields)


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 3.0])
def test_logprobs_equal_a_full_forward_pass(temperature: float) -> None:
    config = SamplingConfig(temperature=temperature, max_tokens=20)
    completions = sampler().generate(RAGGED, config, seeds=range(5))
    sequences = [[*prompt, *completion.token_ids] for prompt, completion in zip(RAGGED, completions, strict=True)]
    scores = score_tokens(MODEL, sequences, temperature=temperature)
    for prompt, completion, score in zip(RAGGED, completions, scores, strict=True):
        assert completion.logprobs == pytest.approx(score[len(prompt) :].tolist(), abs=1e-5)


def test_greedy_is_the_argmax_of_each_prefix() -> None:
    completions = sampler().generate(RAGGED, SamplingConfig(temperature=0.0, max_tokens=12), seeds=range(5))
    for prompt, completion in zip(RAGGED, completions, strict=True):
        sequence = list(prompt)
        while len(sequence) < len(prompt) + 12 and sequence[-1] != STOP:
            with torch.no_grad():
                sequence.append(int(MODEL.eval()(input_ids=torch.tensor([sequence])).logits[0, -1].argmax()))
        assert completion.token_ids == sequence[len(prompt) :]
        assert completion.finish_reason == ("stop" if sequence[-1] == STOP else "length")


def test_rows_do_not_depend_on_their_batch() -> None:
    config = SamplingConfig(max_tokens=20)
    together = sampler().generate(RAGGED, config, seeds=range(5))
    pairs = sampler(max_batch_size=2).generate(RAGGED, config, seeds=range(5))
    alone = [sampler().generate([prompt], config, seeds=[seed])[0] for seed, prompt in enumerate(RAGGED)]
    assert [c.token_ids for c in together] == [c.token_ids for c in pairs] == [c.token_ids for c in alone]
    others = sampler().generate(RAGGED, config, seeds=range(5, 10))
    assert [c.token_ids for c in together] != [c.token_ids for c in others]


def test_draws_follow_the_tempered_softmax() -> None:
    """4,000 first tokens: a chi-square test against the model's own distribution at temperature 0.7."""
    prompt, n = [9, 10, 11], 4000
    drawn = sampler(max_batch_size=1000).generate([prompt] * n, SamplingConfig(0.7, max_tokens=1), seeds=range(n))
    counts = np.bincount([completion.token_ids[0] for completion in drawn], minlength=VOCABULARY)
    with torch.no_grad():
        expected = (MODEL.eval()(input_ids=torch.tensor([prompt])).logits[0, -1] / 0.7).softmax(-1).numpy() * n
    common = expected >= 5
    statistic = ((counts - expected)[common] ** 2 / expected[common]).sum()
    # 99.9 % of a chi-square with 23 degrees of freedom lie below 49.7.
    assert common.sum() <= 24
    assert statistic < 49.7


def test_sampling_leaves_the_global_random_state_and_the_mode_alone() -> None:
    model = copy.deepcopy(MODEL).train()
    state = torch.get_rng_state()
    sampler(model).generate(RAGGED, SamplingConfig(max_tokens=4), seeds=range(5))
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training


@pytest.mark.parametrize("tied", [True, False])
def test_loaded_weights_are_what_is_sampled_from(tied: bool) -> None:
    old, new = random_llama(tied=tied), random_llama(tied=tied, seed=1)
    config = SamplingConfig(temperature=0.0, max_tokens=12)
    changed = sampler(old)
    before = changed.generate(RAGGED, config, seeds=range(5))
    changed.load_weights(model_weights(new))
    after = changed.generate(RAGGED, config, seeds=range(5))
    expected = sampler(new).generate(RAGGED, config, seeds=range(5))
    assert after == expected
    assert after != before


def test_weights_of_another_model_are_refused() -> None:
    with pytest.raises(DataError, match="do not fit"):
        sampler(random_llama()).load_weights([("model.norm.weight", torch.ones(32))])
    with pytest.raises(DataError, match="do not fit"):
        sampler(random_llama()).load_weights([*model_weights(random_llama()), ("extra.weight", torch.ones(1))])


def test_wrong_requests_are_refused() -> None:
    with pytest.raises(DataError, match="prompt 1 is empty"):
        sampler().generate([[5], []], SamplingConfig(max_tokens=5), seeds=[0, 1])
    with pytest.raises(DataError, match="max_model_len of 64"):
        sampler().generate([[5] * 60], SamplingConfig(max_tokens=5), seeds=[0])
    with pytest.raises(UsageError, match="2 prompts and 1 seeds"):
        sampler().generate([[5], [6]], SamplingConfig(), seeds=[0])
    with pytest.raises(UsageError, match="temperature is -1"):
        SamplingConfig(temperature=-1.0)
    with pytest.raises(UsageError, match="at least 1 token"):
        SamplingConfig(max_tokens=0)
    assert sampler().generate([], SamplingConfig(), seeds=[]) == []


def test_a_missing_model_is_a_one_line_usage_error(tmp_path: object) -> None:
    with pytest.raises(UsageError, match="cannot load the model") as caught:
        TransformersSampler(f"{tmp_path}/nothing", stop_token_ids=[STOP])
    assert "\n" not in str(caught.value)
