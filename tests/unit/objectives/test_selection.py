"""Selections, sample sizes and classes of returns."""

from __future__ import annotations

import pytest
import torch

from offline_arl import objectives
from offline_arl.errors import DataError


def test_effective_sample_size_counts_equal_weights_and_one_that_dominates() -> None:
    everything = torch.ones(4, dtype=torch.bool)
    assert objectives.effective_sample_size(torch.full((4,), 0.3), everything).item() == pytest.approx(4.0)
    assert objectives.effective_sample_size(torch.tensor([1e-9, 5.0, 0.0, 0.0]), everything).item() == pytest.approx(1)
    assert objectives.effective_sample_size(torch.zeros(4), everything).item() == 0.0
    assert not objectives.effective_sample_size(torch.ones(4, requires_grad=True), everything).requires_grad


@pytest.mark.parametrize(
    ("returns", "fraction", "selected"),
    [
        ([5.0, 1.0, 4.0, 2.0, 3.0], 0.4, [5.0, 4.0]),
        ([5.0, 1.0, 4.0, 2.0, 3.0], 0.41, [5.0, 4.0, 3.0]),  # at least the fraction
        ([1.0, 0.0, 1.0, 0.0, 1.0], 0.2, [1.0, 1.0, 1.0]),  # ties at the border
        ([1.0, 0.0, 0.0, 0.0, 0.0], 0.4, [1.0, 0.0, 0.0, 0.0, 0.0]),
        ([5.0, 1.0], 0.001, [5.0]),
        ([5.0, 1.0], 1.0, [5.0, 1.0]),
    ],
)
def test_top_fraction(returns: list[float], fraction: float, selected: list[float]) -> None:
    values = torch.tensor([*returns, float("nan")])
    mask = torch.tensor([True] * len(returns) + [False])
    assert values[objectives.top_fraction_mask(values, mask, fraction=fraction)].tolist() == selected


def test_top_fraction_of_a_hundred_is_not_moved_by_rounding() -> None:
    """0.07 * 100 is 7.000000000000001 in floating point."""
    mask = objectives.top_fraction_mask(torch.arange(100.0), torch.ones(100, dtype=torch.bool), fraction=0.07)
    assert int(mask.sum()) == 7


def test_top_fraction_of_nothing_is_nothing() -> None:
    assert not objectives.top_fraction_mask(torch.zeros(3), torch.zeros(3, dtype=torch.bool), fraction=0.5).any()


def test_quantile_classes_hold_equal_shares() -> None:
    returns = torch.randperm(1000, generator=torch.Generator().manual_seed(0)).double()
    edges = objectives.quantile_edges(returns, bins=8)
    assert edges.tolist() == [125.0 * number for number in range(1, 8)]
    assert objectives.quantize_returns(returns, edges).bincount().tolist() == [125] * 8


def test_rare_good_returns_have_a_class_of_their_own() -> None:
    """Three of a hundred attempts succeed: equal shares alone would put them among the failures."""
    assert objectives.quantile_edges(torch.tensor([0.0] * 97 + [1.0] * 3), bins=10).tolist() == [1.0]


def test_a_frequent_return_takes_one_class_of_several() -> None:
    """900 zeros and 100 different returns above: of 5 classes four divide the 100, 25 each."""
    returns = torch.cat([torch.zeros(900), torch.arange(1.0, 101.0)])
    edges = objectives.quantile_edges(returns, bins=5)
    assert edges.tolist() == [1.0, 26.0, 51.0, 76.0]


@pytest.mark.parametrize("returns", [[], [1.0, float("nan")], [float("inf")]])
def test_classes_need_finite_returns(returns: list[float]) -> None:
    with pytest.raises(DataError, match="finite"):
        objectives.quantile_edges(torch.tensor(returns), bins=4)
