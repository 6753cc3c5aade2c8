"""Advantages of groups and weights against a sampler that is not the trainer, with their derivations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from offline_arl.objectives import group_advantages, mismatch_weights

RETURNS = torch.tensor([1.0, 0.0, 0.0, 1.0, 2.0, 2.0, 2.0, 2.0])


def test_both_deviations_by_hand() -> None:
    """Mean 1/2, squares 4 * 1/4 = 1: the sample deviation is sqrt(1/3), the population's 1/2."""
    sample = group_advantages(RETURNS, group_size=4, deviation="sample")
    population = group_advantages(RETURNS, group_size=4, deviation="population")
    assert sample[:4].tolist() == pytest.approx([0.5 / (math.sqrt(1 / 3) + 1e-4) * sign for sign in (1, -1, -1, 1)])
    assert population[:4].tolist() == pytest.approx([0.5 / 0.5001 * sign for sign in (1, -1, -1, 1)])
    assert sample[4:].tolist() == [0.0] * 4


def test_leave_one_out_is_the_difference_to_the_mean_of_the_others() -> None:
    """Group of 4 with returns 9, 5, 5, 1: others' means 11/3, 5, 5, 19/3."""
    found = group_advantages(
        torch.tensor([9.0, 5.0, 5.0, 1.0]), group_size=4, baseline="leave_one_out", deviation="none"
    )
    assert found.tolist() == pytest.approx([9 - 11 / 3, 0.0, 0.0, 1 - 19 / 3])


@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
@pytest.mark.parametrize("deviation", ["sample", "population", "none"])
def test_an_attempt_that_says_nothing_is_not_in_the_baseline(baseline: str, deviation: str) -> None:
    """The other three get what they would get in a group of three, and it gets 0."""
    options = {"baseline": baseline, "deviation": deviation}
    found = group_advantages(torch.tensor([3.0, math.nan, 0.0, 1.0]), group_size=4, **options)  # type: ignore[arg-type]
    three = group_advantages(torch.tensor([3.0, 0.0, 1.0]), group_size=3, **options)  # type: ignore[arg-type]
    assert found[[0, 2, 3]].tolist() == pytest.approx(three.tolist())
    assert found[1] == 0.0


def test_a_lone_attempt_teaches_nothing() -> None:
    """Not its raw return, as a baseline of one attempt alone would give."""
    returns = torch.tensor([5.0, math.nan, math.nan, math.nan])
    for baseline in ("mean", "leave_one_out"):
        found = group_advantages(returns, group_size=2, baseline=baseline)  # type: ignore[arg-type]
        assert found.tolist() == [0.0] * 4


@given(arrays.arrays(np.float64, (12,), elements=st.floats(-5, 5)))
def test_advantages_of_a_group_add_up_to_nothing(returns: np.ndarray) -> None:  # type: ignore[type-arg]
    found = group_advantages(torch.from_numpy(returns), group_size=4).reshape(3, 4)
    assert torch.allclose(found.sum(dim=1), torch.zeros(3, dtype=torch.float64), atol=1e-6)


LOG_RATIOS = torch.tensor([[0.5, -0.5, 1.0]])


def weights(**fields: object) -> list[float]:
    sampler = torch.full_like(LOG_RATIOS, -2.0)
    mask = torch.ones_like(LOG_RATIOS, dtype=torch.bool)
    found: list[float] = mismatch_weights(sampler + LOG_RATIOS, sampler, mask, **fields)[0].tolist()  # type: ignore[arg-type]
    return found


def test_truncated_and_masked_weights() -> None:
    """exp(0.5) = 1.6487, exp(-0.5) = 0.6065, exp(1) = 2.7183; all three together have exp(1)."""
    assert weights(cap=2.0) == pytest.approx([1.6487, 0.6065, 2.0], abs=1e-4)
    assert weights(bound="mask", cap=2.0, floor=0.5) == pytest.approx([1.6487, 0.6065, 0.0], abs=1e-4)
    assert weights(bound="mask", cap=2.0, floor=0.7) == pytest.approx([1.6487, 0.0, 0.0], abs=1e-4)
    assert weights(level="sequence", cap=5.0) == pytest.approx([2.7183] * 3, abs=1e-4)
    assert weights(level="sequence", cap=2.0) == [2.0] * 3
    assert weights(level="sequence", bound="mask", cap=2.0) == [0.0] * 3


def test_unknown_and_foreign_tokens_count_for_nothing() -> None:
    """A logprob that the sampler did not report is no disagreement; what the environment said has no weight."""
    trainer = torch.tensor([[-1.0, -1.0, math.nan]])
    sampler = torch.tensor([[-2.0, math.nan, math.nan]])
    mask = torch.tensor([[True, True, False]])
    assert mismatch_weights(trainer, sampler, mask, cap=5.0)[0].tolist() == pytest.approx([math.e, 1.0, 0.0])
    assert mismatch_weights(trainer, sampler, mask, level="sequence", cap=5.0)[0].tolist() == pytest.approx(
        [math.e, math.e, 0.0]
    )


def test_weights_carry_no_gradient() -> None:
    trainer = torch.tensor([[-1.0]], requires_grad=True)
    assert not mismatch_weights(trainer, torch.tensor([[-2.0]]), torch.tensor([[True]])).requires_grad
