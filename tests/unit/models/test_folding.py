"""A linear Q folded into the output layer is the guided policy, token for token."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from toys.llama import VOCABULARY, random_llama
from toys.token_values import random_token_heads
from transformers import CohereConfig, CohereForCausalLM, Gemma2Config, Gemma2ForCausalLM, PhiConfig, PhiForCausalLM

from offline_arl.errors import UsageError
from offline_arl.models.folding import (
    ConstantDirection,
    apply_fold,
    make_fold,
    needs_constant_direction,
    report_fold,
)
from offline_arl.models.policy import load_model, logits_and_states
from offline_arl.models.token_heads import TokenValueHeads
from offline_arl.models.value_guidance import GuidanceConfig, ValueGuidance, behavior_support

TOKENS = torch.randint(0, VOCABULARY, (6, 9), generator=torch.Generator().manual_seed(0))
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.3,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip


def linear_heads(*, critics: int = 2, bias: float = 0.0) -> TokenValueHeads:
    return random_token_heads(states=32, vocabulary=VOCABULARY, critics=critics, bias=bias)


def exact(heads: TokenValueHeads, inverse_temperature: float) -> ValueGuidance:
    return ValueGuidance(heads, GuidanceConfig(inverse_temperature, 0.0, critics="mean"))


def both(model: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        logits, states = logits_and_states(model.eval(), input_ids=TOKENS)
    return logits.flatten(0, 1), states.flatten(0, 1)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("critics", [1, 2])
def test_the_folded_policy_is_the_guided_one(tied: bool, critics: int, tmp_path: Path) -> None:
    """From the saved folder, in which embeddings are untied."""
    model, heads = random_llama(tied=tied), linear_heads(critics=critics)
    logits, states = both(model)
    expected = exact(heads, 2.0)(logits, states).log_softmax(-1)
    apply_fold(model, make_fold(model, heads, inverse_temperature=2.0))
    model.save_pretrained(tmp_path)
    folded = load_model(tmp_path)
    assert not folded.config.tie_word_embeddings
    found, same_states = both(folded)
    assert torch.equal(same_states, states)
    torch.testing.assert_close(found.log_softmax(-1), expected, atol=1e-4, rtol=0)
    assert float((logits.log_softmax(-1) - expected).abs().max()) > 1.0


def test_with_one_critic_the_minimum_is_folded_too() -> None:
    model, heads = random_llama(), linear_heads(critics=1)
    logits, states = both(model)
    fold = make_fold(model, heads, inverse_temperature=2.0)
    minimum = ValueGuidance(heads, GuidanceConfig(2.0, 0.0))
    folded = (logits + fold.logits(states)).log_softmax(-1)
    torch.testing.assert_close(folded, minimum(logits, states).log_softmax(-1), atol=1e-4, rtol=0)


def test_inverse_temperature_0_changes_nothing() -> None:
    model = random_llama()
    logits, _ = both(model)
    apply_fold(model, make_fold(model, linear_heads(), inverse_temperature=0.0))
    assert torch.equal(both(model)[0], logits)


def test_an_output_layer_with_a_bias_takes_that_of_the_heads() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = PhiForCausalLM(PhiConfig(**SIZES, tie_word_embeddings=False))
    heads = linear_heads(bias=2.0)
    assert not needs_constant_direction(model, heads)
    logits, states = both(model)
    expected = exact(heads, 2.0)(logits, states).log_softmax(-1)
    apply_fold(model, make_fold(model, heads, inverse_temperature=2.0))
    torch.testing.assert_close(both(model)[0].log_softmax(-1), expected, atol=1e-4, rtol=0)


def test_scaled_logits_are_folded_in_their_own_units() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = CohereForCausalLM(CohereConfig(**SIZES, logit_scale=0.125))
    logits, states = both(model)
    expected = exact(linear_heads(), 2.0)(logits, states).log_softmax(-1)
    fold = make_fold(model, linear_heads(), inverse_temperature=2.0)
    assert fold.scale == pytest.approx(0.125, rel=1e-4)
    apply_fold(model, fold)
    torch.testing.assert_close(both(model)[0].log_softmax(-1), expected, atol=1e-4, rtol=0)


def test_capped_logits_are_refused() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Gemma2ForCausalLM(Gemma2Config(**SIZES, head_dim=16, final_logit_softcapping=1.0))
    with pytest.raises(UsageError, match="more to its logits than to scale"):
        make_fold(model, linear_heads(), inverse_temperature=1.0)


def test_hidden_layers_are_refused() -> None:
    heads = random_token_heads(states=32, vocabulary=VOCABULARY, hidden_layers=1)
    with pytest.raises(UsageError, match="1 hidden layers"):
        make_fold(random_llama(), heads, inverse_temperature=1.0)


def test_a_constant_direction_takes_the_place_of_the_bias() -> None:
    """Exact where the states have one; a bias that is the same for all tokens needs none."""
    model, heads = random_llama(), linear_heads(bias=2.0)
    assert needs_constant_direction(model, heads)
    assert not needs_constant_direction(model, linear_heads())
    with pytest.raises(UsageError, match="give a constant direction"):
        make_fold(model, heads, inverse_temperature=1.0)
    states = torch.randn(200, 32, generator=torch.Generator().manual_seed(3))
    states[:, 5] = 4.0  # one in which all states are alike
    direction = ConstantDirection(32)
    for piece in states.split(64):
        direction.add(piece)
    fold = make_fold(model, heads, inverse_temperature=2.0, constant=direction.solve())
    logits = torch.randn(200, VOCABULARY, generator=torch.Generator().manual_seed(4))
    expected = exact(heads, 2.0)(logits, states).log_softmax(-1)
    torch.testing.assert_close((logits + fold.logits(states)).log_softmax(-1), expected, atol=1e-3, rtol=0)


def test_the_report_by_hand() -> None:
    """Two tokens of equal behavior probability and one of 0.2 of theirs; Q is 0, 1 and 3 at any state of 1."""
    model, heads = random_llama(), linear_heads(critics=1)
    with torch.no_grad():
        heads.critics[0].output.weight.zero_()  # type: ignore[union-attr, operator]
        heads.critics[0].output.weight[1, 0], heads.critics[0].output.weight[2, 0] = 1.0, 3.0  # type: ignore[union-attr, index]
    fold = make_fold(model, heads, inverse_temperature=1.0)
    logits = torch.full((1, VOCABULARY), -1e9)
    logits[0, :3] = torch.tensor([1.0, 1.0, 0.2]).log()
    states = torch.zeros(1, 32)
    states[0, 0] = 1.0
    guided = exact(heads, 1.0)(logits, states)
    report = report_fold(fold, logits, states, guided, behavior_support(logits, threshold=0.5))
    weights = torch.tensor([1.0, 1.0, 0.2]) * torch.tensor([0.0, 1.0, 3.0]).exp()
    assert report.behavior_outside_support.item() == pytest.approx(0.2 / 2.2)
    assert report.outside_support.item() == pytest.approx(float(weights[2] / weights.sum()))
    assert report.error.item() == pytest.approx(0.0, abs=1e-6)
    halved = fold._replace(weight=0.5 * fold.weight)
    other = torch.tensor([1.0, 1.0, 0.2]) * torch.tensor([0.0, 0.5, 1.5]).exp()
    distance = 0.5 * (weights / weights.sum() - other / other.sum()).abs().sum()
    assert report_fold(halved, logits, states, guided, logits > -1).error.item() == pytest.approx(float(distance))
