"""From value heads to step weights, and how evenly these fall."""

from __future__ import annotations

import logging

import pytest
import torch
from toys.transitions import features_of, transition_row

from offline_arl.models.value_heads import HeadShape, ValueHeads
from offline_arl.trainers.extraction import advantages, awr_step_weights, weight_spread


def _heads() -> ValueHeads:
    shape = HeadShape(state_size=4, action_size=4, hidden_size=8)
    return ValueHeads(shape, generator=torch.Generator().manual_seed(0))


def test_every_step_with_an_action_gets_an_advantage() -> None:
    rows = [transition_row("a", 2, ending="truncated", final_state=True), transition_row("b", 1, ending="terminated")]
    features, heads = features_of(rows), _heads()
    got = advantages(heads, features, rows_per_batch=2)
    assert list(got) == [("a", 0), ("a", 1), ("b", 0)]
    expected = (heads.q(features.states, features.actions).amin(0) - heads.v(features.states)).tolist()
    assert list(got.values()) == pytest.approx([expected[0], expected[1], expected[3]])


def test_step_weights_are_capped_exponentials() -> None:
    """exp(2 * 0.5) = e; exp(2 * 3) = 403 is capped at 20."""
    weights = awr_step_weights({("a", 0): 0.5, ("a", 1): 3.0}, inverse_temperature=2.0, max_weight=20.0)
    assert weights == {("a", 0): pytest.approx(2.7182818), ("a", 1): 20.0}


def test_the_spread_of_weights() -> None:
    """(1 + 1 + 2) ** 2 / (1 + 1 + 4) = 2.667; one of three at the cap of 2."""
    spread = weight_spread({("a", 0): 1.0, ("a", 1): 1.0, ("b", 0): 2.0}, max_weight=2.0)
    assert spread.n == 3
    assert spread.effective_sample_size == pytest.approx(16 / 6)
    assert spread.effective_share == pytest.approx(16 / 18)
    assert spread.clipped_share == pytest.approx(1 / 3)
    assert (spread.mean, spread.median) == (pytest.approx(4 / 3), 1.0)


def test_a_policy_from_next_to_nothing_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """One step of weight 100 among 10,000 of weight 0.001 is worth 110 ** 2 / 10,000.01 = 1.21 steps."""
    weights = {("a", step): 0.001 for step in range(10_000)} | {("b", 0): 100.0}
    with caplog.at_level(logging.WARNING):
        spread = weight_spread(weights, max_weight=100.0)
    assert spread.effective_sample_size == pytest.approx(1.21, abs=1e-3)
    assert "worth 1.2 equally weighted ones" in caplog.text
    assert "lower inverse_temperature" in caplog.text


def test_even_weights_are_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    few = weight_spread({("a", step): 1.0 for step in range(5)}, max_weight=20.0)
    many = weight_spread({("a", step): float(step % 7) for step in range(5_000)}, max_weight=20.0)
    assert few.warning() is None
    assert many.warning() is None
    assert not caplog.records


def test_no_steps_have_no_spread() -> None:
    spread = weight_spread({}, max_weight=20.0)
    assert spread == (0, 0.0, 0.0, 0.0, 0.0)
    assert spread.effective_share == 0.0
