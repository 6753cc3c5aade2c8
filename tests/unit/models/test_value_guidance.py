"""Guided logits and their support, by hand and as properties; heads and settings on their way to a sampler."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from toys.token_values import random_token_heads

from offline_arl.errors import DataError, UsageError
from offline_arl.models.value_guidance import (
    GuidanceConfig,
    ValueGuidance,
    behavior_support,
    guided_logits,
)

VOCABULARY, STATES = 24, 8


def rows(seed: int, n: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3.0 * torch.randn(n, VOCABULARY, generator=generator)
    return logits, torch.randn(n, STATES, generator=generator)


def guidance(seed: int = 0, **fields: object) -> ValueGuidance:
    config = GuidanceConfig(**{"inverse_temperature": 2.0, "support_threshold": 0.1, **fields})  # type: ignore[arg-type]
    return ValueGuidance(random_token_heads(states=STATES, vocabulary=VOCABULARY, seed=seed), config)


def test_guided_logits_by_hand() -> None:
    """Behavior 0.5, 0.3, 0.2; advantages 0, 1, 5; the third token is not supported: 0.5 to 0.3 * e."""
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log() + 7.0  # a constant changes nothing
    q_values, values = torch.tensor([[2.0, 3.0, 7.0]]), torch.tensor([2.0])
    support = torch.tensor([[True, True, False]])
    guided = guided_logits(logits, q_values, values, support, inverse_temperature=1.0)
    assert guided[0, :2].tolist() == pytest.approx([math.log(0.5), math.log(0.3) + 1.0])
    assert guided[0, 2] == -math.inf
    odds = 0.3 * math.e / 0.5
    assert guided.softmax(-1)[0].tolist() == pytest.approx([1 / (1 + odds), odds / (1 + odds), 0.0])


@given(seed=st.integers(0, 10**6), shift=st.floats(-50, 50), inverse_temperature=st.floats(0, 20))
def test_the_value_moves_no_probability(seed: int, shift: float, inverse_temperature: float) -> None:
    """V is constant over the vocabulary: that is what makes folding exact."""
    logits, _ = rows(seed)
    q_values = torch.randn(logits.shape, generator=torch.Generator().manual_seed(seed + 1))
    support = behavior_support(logits, threshold=0.05)
    one, other = (
        guided_logits(logits, q_values, torch.full((5,), v), support, inverse_temperature=inverse_temperature)
        for v in (0.0, shift)
    )
    torch.testing.assert_close(one.softmax(-1), other.softmax(-1), atol=2e-4, rtol=1e-3)


@given(
    seed=st.integers(0, 10**6),
    threshold=st.floats(0, 1),
    allowed=st.none() | st.sets(st.integers(0, VOCABULARY - 1), min_size=1),
    inverse_temperature=st.floats(0, 1e4),
)
def test_tokens_outside_the_support_have_no_probability(
    seed: int, threshold: float, allowed: set[int] | None, inverse_temperature: float
) -> None:
    """Whatever Q says: each row keeps its best allowed token, all others below the threshold or not allowed are out."""
    guide = guidance(
        seed,
        inverse_temperature=inverse_temperature,
        support_threshold=threshold,
        support_tokens=None if allowed is None else sorted(allowed),
    )
    logits, states = rows(seed)
    probabilities = guide(logits, states).softmax(-1)
    assert bool(torch.isfinite(probabilities).all())
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(5))
    behavior = logits.softmax(-1)
    for row in range(5):
        candidates = range(VOCABULARY) if allowed is None else allowed
        best = max(float(behavior[row, token]) for token in candidates)
        for token in range(VOCABULARY):
            outside = token not in candidates or float(behavior[row, token]) < threshold * best * (1 - 1e-5)
            if outside:
                assert probabilities[row, token] == 0.0
        assert max(candidates, key=lambda token: float(behavior[row, token])) in guide.support(logits)[row].nonzero()


@given(seed=st.integers(0, 10**6))
def test_at_inverse_temperature_0_it_is_the_behavior_policy(seed: int) -> None:
    logits, states = rows(seed)
    guide = guidance(seed, inverse_temperature=0.0, support_threshold=0.0)
    assert torch.equal(guide(logits, states), logits.log_softmax(-1))


def test_at_a_high_inverse_temperature_it_is_the_best_supported_token() -> None:
    logits, states = rows(3)
    guide = guidance(inverse_temperature=1e6)
    best = guide.q(states).masked_fill(~guide.support(logits), -math.inf).argmax(-1)
    assert torch.equal(guide(logits, states).argmax(-1), best)
    assert bool((guide(logits, states).softmax(-1).amax(-1) > 0.999).all())
    # Without a support other tokens win: the reason for the mask.
    unmasked = guidance(inverse_temperature=1e6, support_threshold=0.0)
    assert not torch.equal(unmasked(logits, states).argmax(-1), best)


def test_critics_are_combined_as_configured() -> None:
    _, states = rows(1)
    guide = guidance()
    assert torch.equal(guide.q(states), torch.minimum(*guide.heads.q(states)))
    assert torch.equal(guidance(critics="mean").q(states), guide.heads.q(states).mean(0))


def test_many_rows_are_worked_through_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, states = rows(1, n=7)
    whole = guidance()(logits, states)
    monkeypatch.setattr("offline_arl.models.value_guidance._NUMBERS_PER_CHUNK", 3 * 2 * VOCABULARY)
    torch.testing.assert_close(guidance()(logits, states), whole)


def test_weights_carry_heads_and_settings() -> None:
    logits, states = rows(4)
    old, new = guidance(0, support_tokens=[1, 2, 3]), guidance(5, inverse_temperature=7.0, critics="mean")
    rest = [("lm_head.weight", torch.ones(1))]
    assert list(old.take_weights([*new.weights(), *rest])) == rest
    assert old.config == new.config
    assert torch.equal(old(logits, states), new(logits, states))
    before = old(logits, states)
    assert list(old.take_weights(rest)) == rest
    assert torch.equal(old(logits, states), before)


def test_weights_that_do_not_fit_are_refused_and_change_nothing() -> None:
    logits, states = rows(4)
    guide, other = guidance(), guidance(5)
    before = guide(logits, states)
    larger = ValueGuidance(random_token_heads(states=STATES + 1, vocabulary=VOCABULARY), other.config)
    for weights in (
        list(other.weights())[1:],
        list(other.weights())[:-1],
        [*other.weights(), ("value_guidance.extra", torch.ones(1))],
        list(larger.weights()),
    ):
        with pytest.raises(DataError, match="do not fit"):
            list(guide.take_weights(weights))
    assert torch.equal(guide(logits, states), before)


def test_settings_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(UsageError, match="inverse_temperature is -1"):
        GuidanceConfig(-1.0, 0.1)
    with pytest.raises(UsageError, match="inverse_temperature is nan"):
        GuidanceConfig(math.nan, 0.1)
    with pytest.raises(UsageError, match="support_threshold is 2"):
        GuidanceConfig(1.0, 2.0)
    with pytest.raises(UsageError, match="support_tokens is empty"):
        GuidanceConfig(1.0, 0.1, [])
    with pytest.raises(DataError, match="tokens 0 to 23"):
        guidance(support_tokens=[3, 24])
    with pytest.raises(DataError, match="the value heads have 24 tokens and the policy has 25"):
        guidance()(torch.zeros(1, 25), torch.zeros(1, STATES))
