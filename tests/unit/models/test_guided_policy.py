"""The folder of a value-guided policy, and its transformers sampler."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from toys.llama import VOCABULARY, random_llama
from toys.token_values import random_token_heads

from offline_arl.errors import DataError, UsageError
from offline_arl.models.guided_policy import (
    GUIDANCE_NAME,
    architecture,
    is_value_guided,
    load_value_guidance,
    save_value_guided_policy,
)
from offline_arl.models.policy import load_model, logits_and_states
from offline_arl.models.value_guidance import GuidanceConfig
from offline_arl.rollouts.backends import make_sampler
from offline_arl.rollouts.sampler import SamplingConfig
from offline_arl.rollouts.sync import score_tokens
from offline_arl.rollouts.transformers_sampler import TransformersSampler
from offline_arl.rollouts.weights import load_checkpoint, model_weights

CONFIG = GuidanceConfig(3.0, 0.05, support_tokens=list(range(4, VOCABULARY)))
HEADS = random_token_heads(states=32, vocabulary=VOCABULARY, hidden_layers=1)
PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15], [5, 6], [20, 21, 22, 23]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With `behavior` and `guided` in it."""
    folder = tmp_path_factory.mktemp("policies")
    random_llama().save_pretrained(folder / "behavior")
    (folder / "behavior" / "note.txt").write_text("of the behavior policy")
    save_value_guided_policy(folder / "behavior", HEADS, CONFIG, folder / "guided")
    return folder


def test_the_folder_holds_behavior_heads_and_settings(folder: Path) -> None:
    guided = folder / "guided"
    assert is_value_guided(guided)
    assert not is_value_guided(folder / "behavior")
    guidance = load_value_guidance(guided)
    assert guidance.config == CONFIG
    states = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(guidance.heads.q(states), HEADS.q(states))
    one, other = load_model(guided), load_model(folder / "behavior")
    assert type(one) is type(other)
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))
    assert (guided / "note.txt").read_text() == "of the behavior policy"
    assert architecture(guided) == "ValueGuidedLlamaForCausalLM"
    # What lies beside config.json is what servers load as the model.
    assert [path.name for path in guided.glob("*.safetensors")] == ["model.safetensors"]


def test_sampled_logprobs_are_those_of_the_guided_distribution(folder: Path) -> None:
    model, guidance = load_model(folder / "guided"), load_value_guidance(folder / "guided")
    sampler = make_sampler(folder / "guided", stop_token_ids=[3], backend="transformers", max_model_len=64)
    for temperature in (0.0, 0.5, 1.0):
        completions = sampler.generate(PROMPTS, SamplingConfig(temperature, max_tokens=16), seeds=range(5))
        sequences = [[*p, *c.token_ids] for p, c in zip(PROMPTS, completions, strict=True)]
        scores = score_tokens(model, sequences, temperature=temperature, guidance=guidance)
        for prompt, completion, score in zip(PROMPTS, completions, scores, strict=True):
            assert completion.logprobs == pytest.approx(score[len(prompt) :].tolist(), abs=1e-4)
            assert set(completion.token_ids) <= set(CONFIG.support_tokens or ())


def test_greedy_takes_the_best_guided_token(folder: Path) -> None:
    model, guidance = load_model(folder / "guided"), load_value_guidance(folder / "guided")
    sampler = TransformersSampler(folder / "guided", stop_token_ids=[3], max_model_len=64)
    (completion,) = sampler.generate([PROMPTS[0]], SamplingConfig(0.0, max_tokens=8), seeds=[0])
    sequence = list(PROMPTS[0])
    with torch.no_grad():
        while len(sequence) < 11:
            logits, states = logits_and_states(model, input_ids=torch.tensor([sequence]), logits_to_keep=1)
            sequence.append(int(guidance(logits[:, -1], states[:, -1]).argmax()))
    assert completion.token_ids == sequence[3:]
    plain = TransformersSampler(folder / "behavior", stop_token_ids=[3], max_model_len=64)
    assert plain.generate([PROMPTS[0]], SamplingConfig(0.0, max_tokens=8), seeds=[0])[0] != completion


def test_without_tilt_and_support_it_samples_what_the_behavior_policy_does(folder: Path, tmp_path: Path) -> None:
    save_value_guided_policy(folder / "behavior", HEADS, GuidanceConfig(0.0, 0.0), tmp_path / "guided")
    samplers = [
        TransformersSampler(path, stop_token_ids=[3], max_model_len=64)
        for path in (tmp_path / "guided", folder / "behavior")
    ]
    one, other = (sampler.generate(PROMPTS, SamplingConfig(max_tokens=16), seeds=range(5)) for sampler in samplers)
    assert [c.token_ids for c in one] == [c.token_ids for c in other]


def test_another_guided_policy_replaces_weights_heads_and_settings(folder: Path, tmp_path: Path) -> None:
    random_llama(seed=1).save_pretrained(tmp_path / "behavior")
    heads = random_token_heads(states=32, vocabulary=VOCABULARY, hidden_layers=1, seed=9)
    save_value_guided_policy(tmp_path / "behavior", heads, GuidanceConfig(1.0, 0.2, critics="mean"), tmp_path / "other")
    config = SamplingConfig(max_tokens=16)
    sampler = TransformersSampler(folder / "guided", stop_token_ids=[3], max_model_len=64)
    before = sampler.generate(PROMPTS, config, seeds=range(5))
    load_checkpoint(sampler, tmp_path / "other")
    expected = TransformersSampler(tmp_path / "other", stop_token_ids=[3], max_model_len=64)
    assert sampler.generate(PROMPTS, config, seeds=range(5)) == expected.generate(PROMPTS, config, seeds=range(5))
    load_checkpoint(sampler, folder / "guided")
    assert sampler.generate(PROMPTS, config, seeds=range(5)) == before


def test_heads_sent_to_a_plain_policy_are_refused(folder: Path) -> None:
    sampler = TransformersSampler(folder / "behavior", stop_token_ids=[3])
    with pytest.raises(DataError, match="do not fit"):
        load_checkpoint(sampler, folder / "guided")
    sampler.load_weights(model_weights(random_llama()))


def test_what_does_not_fit_is_refused_and_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="guided by values already"):
        save_value_guided_policy(folder / "guided", HEADS, CONFIG, tmp_path / "twice")
    wide = random_token_heads(states=33, vocabulary=VOCABULARY)
    with pytest.raises(DataError, match=r"states of 33.* has 24 and 32"):
        save_value_guided_policy(folder / "behavior", wide, CONFIG, tmp_path / "wide")
    with pytest.raises(DataError, match="is no model folder"):
        save_value_guided_policy(tmp_path, HEADS, CONFIG, tmp_path / "nothing")
    with pytest.raises(DataError, match="support_tokens holds 99"):
        save_value_guided_policy(folder / "behavior", HEADS, GuidanceConfig(1.0, 0.1, [99]), tmp_path / "tokens")
    assert list(tmp_path.iterdir()) == []


def test_damaged_settings_name_the_file(folder: Path, tmp_path: Path) -> None:
    save_value_guided_policy(folder / "behavior", HEADS, CONFIG, tmp_path / "guided")
    path = tmp_path / "guided" / GUIDANCE_NAME
    path.write_text(json.dumps({"inverse_temperature": 1.0, "support": 3}))
    with pytest.raises(DataError, match=GUIDANCE_NAME):
        load_value_guidance(tmp_path / "guided")
