"""Step-level values on random walks in a corridor against those of exact dynamic programming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toys import corridor

from offline_arl.models.value_heads import ValueHeads
from offline_arl.trainers.config import BehaviorValuesConfig, CQLConfig, IQLConfig
from offline_arl.trainers.value import fit_values

pytestmark = pytest.mark.learning

SETTINGS: dict[str, Any] = {
    "discount": corridor.DISCOUNT, "target_update_rate": 0.05, "steps": 1_000, "hidden_size": 32,
    "learning_rate": 2e-3, "weight_decay": 0.0, "layer_norm": False, "holdout_fraction": 0.0,
}  # fmt: skip


def _check(heads: ValueHeads, v: np.ndarray, q: np.ndarray, *, v_within: float, q_within: float) -> None:
    states = torch.eye(corridor.ACTING_CELLS)
    np.testing.assert_allclose(heads.v(states).numpy(), v, atol=v_within)
    for right in (0, 1):
        actions = torch.eye(2)[right].expand(corridor.ACTING_CELLS, -1)
        for critic in heads.q(states, actions).numpy():
            np.testing.assert_allclose(critic, q[:, right], atol=q_within)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_iql_comes_close_to_the_optimum(seed: int, tmp_path: Path) -> None:
    """At an expectile of 0.99 V is nearly the maximum over the actions of the data, so IQL finds V* and Q*.

    The walks are random: their own values (what an expectile of 0.5 finds) are far below.
    """
    dataset, features = corridor.walks(tmp_path / "data", 300, seed)
    config = IQLConfig(expectile=0.99, **SETTINGS)
    heads = fit_values(features, dataset, config, generator=torch.Generator().manual_seed(seed)).heads
    _check(heads, *corridor.optimal_values(), v_within=0.05, q_within=0.07)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_cql_without_its_weight_finds_the_optimal_critics(seed: int, tmp_path: Path) -> None:
    """Double Q-learning over the two moves logged in each cell is Q-learning; V is the mean of Q over the walks."""
    dataset, features = corridor.walks(tmp_path / "data", 300, seed)
    config = CQLConfig(conservative_weight=0.0, **SETTINGS)
    heads = fit_values(features, dataset, config, generator=torch.Generator().manual_seed(seed)).heads
    _, optimum = corridor.optimal_values()
    _check(heads, optimum.mean(axis=1), optimum, v_within=0.07, q_within=0.05)


def test_cql_prefers_what_the_logs_do_more_often(tmp_path: Path) -> None:
    """With a penalty that outweighs the returns the critics follow the frequencies: in walks that go left in 80 % of
    the steps, left is pulled up and right pushed down, although right is the better move.
    """
    dataset, features = corridor.walks(tmp_path / "data", 300, 0, right_share=0.2)
    states = torch.eye(corridor.ACTING_CELLS)
    left, right = (torch.eye(2)[move].expand(corridor.ACTING_CELLS, -1) for move in (0, 1))
    for weight, preferred, other in ((0.0, right, left), (10.0, left, right)):
        config = CQLConfig(conservative_weight=weight, **{**SETTINGS, "steps": 500})
        heads = fit_values(features, dataset, config, generator=torch.Generator().manual_seed(0)).heads
        assert (heads.q(states, preferred).mean(dim=0) > heads.q(states, other).mean(dim=0)).all()


@pytest.mark.parametrize("config", [
    IQLConfig(expectile=0.5, **SETTINGS),
    BehaviorValuesConfig(trace_decay=0.9, **SETTINGS),
    BehaviorValuesConfig(trace_decay=1.0, **SETTINGS),
], ids=["expectile 0.5", "TD(0.9)", "Monte-Carlo"])  # fmt: skip
def test_the_values_of_the_behavior(config: IQLConfig | BehaviorValuesConfig, tmp_path: Path) -> None:
    """Three ways to the value of walking at random. Walks that were cut off bootstrap, or V would be too high where
    the way is long (a step costs something).
    """
    dataset, features = corridor.walks(tmp_path / "data", 600, 0)
    heads = fit_values(features, dataset, config, generator=torch.Generator().manual_seed(0)).heads
    _check(heads, *corridor.values_of_walking_at_random(), v_within=0.1, q_within=0.12)
