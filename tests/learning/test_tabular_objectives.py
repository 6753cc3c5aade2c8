"""Tables trained with the objectives reach what dynamic programming says, on the data of a small random MDP."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from references import tabular
from torch import Tensor

from offline_arl import objectives

pytestmark = pytest.mark.learning

SEEDS = [0, 1, 2]
EXPECTILES = [0.9, 0.99, 0.999]
UPDATES, LEARNING_RATE, TARGET_UPDATE_RATE = 1_000, 0.1, 0.3


class Batch:
    """A log as tensors; every update uses all of it."""

    def __init__(self, log: tabular.Log) -> None:
        self.states, self.actions = torch.from_numpy(log.states), torch.from_numpy(log.actions)
        self.rewards, self.next_states = torch.from_numpy(log.rewards), torch.from_numpy(log.next_states)
        self.terminated = torch.from_numpy(log.terminated)
        self.everything = torch.ones(len(log.states), dtype=torch.bool)

    def taken(self, q_table: Tensor) -> Tensor:
        """[critics, S, A] -> [critics, N]."""
        return q_table[:, self.states, self.actions]

    def mean(self, losses: Tensor) -> Tensor:
        return objectives.masked_mean(losses, self.everything, denominator=len(self.states))


def _tables(seed: int) -> tuple[Tensor, Tensor]:
    """Twin Q [2, S, A] and V [S], at random."""
    generator = torch.Generator().manual_seed(seed)
    shape = 2, tabular.N_STATES, tabular.N_ACTIONS
    q_table = torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
    values = torch.randn(tabular.N_STATES, generator=generator, dtype=torch.float64).requires_grad_()
    return q_table, values


def _descend(q_table: Tensor, parameters: list[Tensor], loss: Callable[[Tensor], Tensor]) -> np.ndarray:
    """Minimize `loss(target critics)`; the targets follow the critics. Returns the smaller target critic [S, A]."""
    optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, UPDATES)
    target = q_table.detach().clone()
    for _ in range(UPDATES):
        optimizer.zero_grad()
        loss(target).backward()
        optimizer.step()
        schedule.step()
        target.lerp_(q_table.detach(), TARGET_UPDATE_RATE)
    return target.amin(dim=0).numpy()


def _train_iql(log: tabular.Log, expectile: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    batch = Batch(log)
    q_table, values = _tables(seed)

    def loss(target: Tensor) -> Tensor:
        lowest = batch.taken(target).amin(dim=0)
        value_losses = objectives.expectile_loss(lowest, values[batch.states], batch.everything, expectile=expectile)
        q_losses = objectives.td_loss(
            batch.taken(q_table), batch.rewards, values[batch.next_states], batch.terminated, batch.everything,
            discount=tabular.DISCOUNT,
        )  # fmt: skip
        return batch.mean(value_losses) + batch.mean(q_losses)

    learned = _descend(q_table, [q_table, values], loss)
    return values.detach().numpy(), learned


def _train_cql(log: tabular.Log, conservative_weight: float, seed: int, *, support: np.ndarray) -> np.ndarray:
    batch = Batch(log)
    q_table, _ = _tables(seed)
    candidates = torch.from_numpy(support)

    def loss(target: Tensor) -> Tensor:
        next_values = objectives.double_q_values(
            q_table[:, batch.next_states], target[:, batch.next_states], candidates[batch.next_states]
        )
        q_losses = objectives.td_loss(
            batch.taken(q_table), batch.rewards, next_values, batch.terminated, batch.everything,
            discount=tabular.DISCOUNT,
        )  # fmt: skip
        push = objectives.candidate_conservative_loss(
            q_table[:, batch.states], candidates[batch.states], batch.taken(q_table), batch.everything, temperature=1.0
        )
        return batch.mean(q_losses) + conservative_weight * batch.mean(push)

    return _descend(q_table, [q_table], loss)


@pytest.mark.parametrize("seed", SEEDS)
def test_iql_reaches_the_expectile_fixed_point_and_nears_the_optimum(seed: int) -> None:
    """Within 1e-3 of the exact fixed point; the distance to Q* of the data falls as the expectile rises."""
    log = tabular.log_of_random_behavior(seed, 300)
    support, optimum = log.support, tabular.optimal_q(log)
    distances = []
    for expectile in EXPECTILES:
        values, q_values = _train_iql(log, expectile, seed)
        exact_values, exact_q = tabular.expectile_fixed_point(log, expectile)
        np.testing.assert_allclose(values, exact_values, rtol=0, atol=1e-3)
        np.testing.assert_allclose(q_values[support], exact_q[support], rtol=0, atol=1e-3)
        distances.append(np.abs(q_values - optimum)[support].max())
    assert distances[0] > distances[1] > distances[2]
    assert distances[2] < 0.1 * distances[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_cql_without_its_weight_is_optimal_on_the_support(seed: int) -> None:
    """Double Q-learning over the logged candidates finds Q* of the data within 1e-3."""
    log = tabular.log_of_random_behavior(seed, 300)
    learned = _train_cql(log, 0.0, seed, support=log.support)
    np.testing.assert_allclose(learned[log.support], tabular.optimal_q(log)[log.support], rtol=0, atol=1e-3)


def test_cql_pushes_unlogged_actions_below_logged_ones() -> None:
    """With all actions as candidates and a weight, no action that the data lack is the best of its state."""
    log = tabular.log_of_random_behavior(0, 300)
    everything = np.ones_like(log.support)
    learned = _train_cql(log, 0.5, 0, support=everything)
    best_logged = np.where(log.support, learned, -np.inf).max(axis=1)
    assert not log.support.all()
    assert (learned < best_logged[:, np.newaxis])[~log.support].all()
