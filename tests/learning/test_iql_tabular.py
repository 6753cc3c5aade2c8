"""IQL on a small MDP with one-hot features comes close to the values of exact dynamic programming."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from toys import toy_dataset

from offline_arl.datasets.segments import SegmentDataset, SegmentRow
from offline_arl.models.features import StepFeatures
from offline_arl.trainers.config import IQLConfig
from offline_arl.trainers.value import fit_values

pytestmark = pytest.mark.learning

CELLS, HORIZON, DISCOUNT, STEP_COST = 6, 8, 0.9, 0.1


def _move(cell: int, right: bool) -> tuple[int, float, bool]:
    """(next cell, reward, terminated) in a corridor: 1 at the right end, a cost a step, the left wall holds."""
    following = cell + 1 if right else max(cell - 1, 0)
    goal = following == CELLS - 1
    return following, float(goal) - STEP_COST, goal


def optimal_values() -> tuple[np.ndarray, np.ndarray]:
    """V* [CELLS - 1] and Q* [CELLS - 1, 2] by value iteration."""
    values = np.zeros(CELLS)
    for _ in range(200):
        q_values = np.zeros((CELLS - 1, 2))
        for cell in range(CELLS - 1):
            for right in (False, True):
                following, reward, goal = _move(cell, right)
                q_values[cell, int(right)] = reward + (0.0 if goal else DISCOUNT * values[following])
        values = np.append(q_values.max(axis=1), 0.0)
    return values[:-1], q_values


def _walks(folder: Path, count: int, seed: int) -> tuple[SegmentDataset, StepFeatures]:
    """Walks of a policy that goes left or right alike; those that run out of steps are truncated, not terminated."""
    generator = np.random.default_rng(seed)
    rows, keys, cells, moves = [], [], [], []
    for number in range(count):
        name, cell = f"w{number}", int(generator.integers(CELLS - 1))
        rewards: list[float] = []
        goal = False
        while not goal and len(rewards) < HORIZON:
            right = bool(generator.random() < 0.5)
            keys.append((name, len(rewards)))
            cells.append(cell)
            moves.append(int(right))
            cell, reward, goal = _move(cell, right)
            rewards.append(reward)
        steps = len(rewards)
        if not goal:
            keys.append((name, steps))
            cells.append(cell)
            moves.append(-1)
        index = np.concatenate([[-1], np.arange(steps)]).astype(np.int32)
        last = np.arange(steps) == steps - 1
        rows.append(
            SegmentRow(
                name, name, None, goal, 0, np.zeros(steps + 1, dtype=np.int32), index >= 0, index, None, steps,
                np.arange(steps, dtype=np.int32), np.array(rewards, dtype=np.float32), last & goal, last & (not goal),
                final_state=not goal,
            )
        )  # fmt: skip
    one_hot = torch.eye(2)[torch.tensor(moves).clamp_min(0)]
    features = StepFeatures(
        trajectory_ids=[name for name, _ in keys],
        steps=torch.tensor([step for _, step in keys]),
        has_action=torch.tensor(moves) >= 0,
        states=torch.eye(CELLS - 1)[torch.tensor(cells)],
        actions=one_hot * (torch.tensor(moves) >= 0).unsqueeze(-1),
    )
    return toy_dataset(folder, rows, kind="transitions"), features


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_values_come_close_to_dynamic_programming(seed: int, tmp_path: Path) -> None:
    """At an expectile of 0.99 V is nearly the maximum over the actions of the data, so IQL finds V* and Q*.

    The walks are random: their own values (what an expectile of 0.5 finds) are far below.
    """
    dataset, features = _walks(tmp_path / "data", 300, seed)
    config = IQLConfig(
        expectile=0.99, discount=DISCOUNT, target_update_rate=0.05, steps=1_000, hidden_size=32,
        learning_rate=2e-3, weight_decay=0.0, layer_norm=False, holdout_fraction=0.0,
    )  # fmt: skip
    heads = fit_values(features, dataset, config, generator=torch.Generator().manual_seed(seed)).heads
    states = torch.eye(CELLS - 1)
    expected_v, expected_q = optimal_values()
    np.testing.assert_allclose(heads.v(states).numpy(), expected_v, atol=0.05)
    for right in (0, 1):
        actions = torch.eye(2)[right].expand(CELLS - 1, -1)
        for critic in heads.q(states, actions).numpy():
            np.testing.assert_allclose(critic, expected_q[:, right], atol=0.07)


def test_a_middle_expectile_gives_the_values_of_the_behavior(tmp_path: Path) -> None:
    """At 0.5 V is the mean: the value of walking at random, by solving its linear equations."""
    dataset, features = _walks(tmp_path / "data", 600, 0)
    config = IQLConfig(
        expectile=0.5, discount=DISCOUNT, target_update_rate=0.05, steps=1_000, hidden_size=32,
        learning_rate=2e-3, weight_decay=0.0, layer_norm=False, holdout_fraction=0.0,
    )  # fmt: skip
    heads = fit_values(features, dataset, config, generator=torch.Generator().manual_seed(0)).heads
    transition, reward = np.zeros((CELLS - 1, CELLS - 1)), np.zeros(CELLS - 1)
    for cell in range(CELLS - 1):
        for right in (False, True):
            following, earned, goal = _move(cell, right)
            reward[cell] += 0.5 * earned
            if not goal:
                transition[cell, following] += 0.5
    expected = np.linalg.solve(np.eye(CELLS - 1) - DISCOUNT * transition, reward)
    np.testing.assert_allclose(heads.v(torch.eye(CELLS - 1)).numpy(), expected, atol=0.1)
