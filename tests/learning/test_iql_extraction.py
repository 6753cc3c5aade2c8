"""Advantage-weighted cloning beats cloning where good and bad decisions are mixed within every attempt."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from toys import ToyTokenizer, toy_dataset, toy_model

from offline_arl.datasets.segments import SegmentDataset, SegmentRow
from offline_arl.models.config import FeatureConfig
from offline_arl.trainers.config import IQLConfig, WeightedBCConfig
from offline_arl.trainers.extraction import advantages, awr_step_weights
from offline_arl.trainers.step_features import compute_features
from offline_arl.trainers.value import fit_values
from offline_arl.trainers.weighted_bc import train_weighted_bc

pytestmark = pytest.mark.learning

CELLS, START, HORIZON = 7, 2, 8
FIRST_CELL, LEFT, RIGHT, OPENING = 2, 10, 11, 12  # tokens


class Corridor:
    """Text corridor: the policy reads its cell and writes LEFT or RIGHT; the right end within HORIZON is success."""

    def __init__(self, episodes: int) -> None:
        self.cells = np.full(episodes, START)
        self.done = np.zeros(episodes, dtype=np.bool_)

    def step(self, tokens: np.ndarray) -> None:
        """Move all episodes that are still running; any token but RIGHT goes left."""
        moved = np.clip(self.cells + np.where(tokens == RIGHT, 1, -1), 0, CELLS - 1)
        self.cells = np.where(self.done, self.cells, moved)
        self.done |= self.cells == CELLS - 1


def _logs(folder: Path, episodes: int, generator: np.random.Generator) -> tuple[SegmentDataset, float]:
    """Attempts of an agent that goes right half of the time; as transitions, with the outcome as reward."""
    rows: list[SegmentRow] = []
    for number in range(episodes):
        corridor, tokens = Corridor(1), [OPENING, FIRST_CELL + START]
        while not corridor.done[0] and len(tokens) < 2 * HORIZON + 2:
            tokens.append(RIGHT if generator.random() < 0.5 else LEFT)
            corridor.step(np.array(tokens[-1:]))
            tokens.append(FIRST_CELL + int(corridor.cells[0]))
        del tokens[-1]  # nothing is done in the last cell
        steps, success = (len(tokens) - 1) // 2, bool(corridor.done[0])
        step_index = np.full(len(tokens), -1, dtype=np.int32)
        step_index[2::2] = np.arange(steps)
        last = np.arange(steps) == steps - 1
        rows.append(
            SegmentRow(
                f"e{number}", f"e{number}", None, success, 0, np.array(tokens, dtype=np.int32), step_index >= 0,
                step_index, None, steps, np.arange(steps, dtype=np.int32), (last & success).astype(np.float32),
                last, last & False,
            )
        )  # fmt: skip
    return toy_dataset(folder, rows, kind="transitions"), float(np.mean([row.success for row in rows]))


def _success(model: torch.nn.Module, episodes: int, generator: torch.Generator) -> float:
    """Success of the policy, sampled at temperature 1."""
    corridor = Corridor(episodes)
    tokens = torch.tensor([[OPENING, FIRST_CELL + START]]).repeat(episodes, 1)
    with torch.inference_mode():
        for _ in range(HORIZON):
            logits = model(input_ids=tokens).logits[:, -1]
            actions = torch.multinomial(logits.softmax(-1), 1, generator=generator)
            corridor.step(actions.squeeze(1).numpy())
            cells = torch.from_numpy(FIRST_CELL + corridor.cells).unsqueeze(1)
            tokens = torch.cat([tokens, actions, cells], dim=1)
    return float(corridor.done.mean())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_iql_beats_cloning(seed: int, tmp_path: Path) -> None:
    """Every attempt mixes moves, and cloning does as well as the logs: four more moves right than left within eight
    fair coins is about 0.18. The value heads find that RIGHT is the better move in every cell, also in the many
    attempts that failed, and the weighted policy goes right nearly always (measured: 0.99 to 1.00).
    """
    dataset, behavior = _logs(tmp_path / "data", 500, np.random.default_rng(seed))
    model = toy_model(seed=seed)
    cloning = WeightedBCConfig(epochs=6, tokens_per_batch=512, learning_rate=5e-3)
    train_weighted_bc(model, ToyTokenizer(), dataset, cloning, tmp_path / "bc", seed=seed)
    cloned = copy.deepcopy(model)
    features = compute_features(model, ToyTokenizer(), dataset, tmp_path / "features", config=FeatureConfig())
    config = IQLConfig(steps=600, hidden_size=32, target_update_rate=0.05, holdout_fraction=0.0, weight_decay=0.01)
    heads = fit_values(features, dataset, config, generator=torch.Generator().manual_seed(seed)).heads
    step_advantages = advantages(heads, features)
    weights = awr_step_weights(step_advantages, inverse_temperature=10.0, max_weight=20.0)
    train_weighted_bc(
        model, ToyTokenizer(), dataset, cloning, tmp_path / "iql", step_weights=weights, seed=seed, algorithm="iql"
    )
    bc = _success(cloned, 400, torch.Generator().manual_seed(seed))
    iql = _success(model, 400, torch.Generator().manual_seed(seed))
    assert abs(bc - behavior) < 0.12
    assert iql > bc + 0.6
