"""A policy learns from its own attempts: pairs of steps, labels, and clones of its successes raise sampled success."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys.lookup import LookupFamily

from offline_arl.datasets.bc import BCConfig, build_bc
from offline_arl.datasets.pairs import PairDataset, UnpairedDataset
from offline_arl.datasets.pairs.build import build_pairs, build_unpaired
from offline_arl.datasets.pairs.mining import families_of
from offline_arl.datasets.segments import SegmentDataset
from offline_arl.evaluation.policy import paired_difference
from offline_arl.models.policy import load_policy
from offline_arl.rendering import Renderer
from offline_arl.rewards.preferences import PairsConfig, UnpairedConfig
from offline_arl.rollouts.collect import collect
from offline_arl.rollouts.episode import Episode
from offline_arl.rollouts.rejection_sampling import kept_successes
from offline_arl.rollouts.transformers_sampler import TransformersSampler
from offline_arl.trainers.config import WeightedBCConfig
from offline_arl.trainers.preference import train_preferences
from offline_arl.trainers.preference_config import AnyPreferenceConfig, DPOConfig, IPOConfig, KTOConfig, SimPOConfig
from offline_arl.trainers.weighted_bc import train_weighted_bc

FAMILY = LookupFamily()
SETTINGS: dict[str, Any] = {"epochs": 3, "tokens_per_batch": 1_024, "learning_rate": 5e-4}
CONFIGS: dict[str, AnyPreferenceConfig] = {
    "dpo": DPOConfig(**SETTINGS), "ipo": IPOConfig(**SETTINGS), "simpo": SimPOConfig(**SETTINGS),
    "kto": KTOConfig(**SETTINGS),
}  # fmt: skip


def play(policy: Path, split: str, count: int, *, attempts: int, seed: int) -> list[Episode]:
    """Attempts at a temperature of 1."""
    model, tokenizer = load_policy(policy)
    renderer = Renderer(tokenizer)
    sampler = TransformersSampler(model, stop_token_ids=renderer.stop_token_ids, max_model_len=128)
    tasks = FAMILY.tasks(split, count, seed=seed)
    return collect(
        FAMILY, tasks, sampler, renderer,
        temperature=1.0, max_tokens_per_step=24, seed=seed, group_size=attempts, policy="start",
    )  # fmt: skip


def train(policy: Path, episodes: list[Episode], algorithm: str, folder: Path, seed: int) -> None:
    model, tokenizer = load_policy(policy)
    renderer = Renderer(tokenizer)
    trajectories = [episode.trajectory for episode in episodes]
    if algorithm == "rft":
        kept = [episode.trajectory for episode in kept_successes(episodes, per_task=2, prefer="diverse")]
        build_bc(kept, renderer, folder / "data", config=BCConfig())
        config = WeightedBCConfig(**SETTINGS)
        train_weighted_bc(model, tokenizer, SegmentDataset.load(folder / "data"), config, folder / "out", seed=seed)
        return
    if algorithm == "kto":
        build_unpaired(trajectories, renderer, folder / "data", config=UnpairedConfig())
        dataset: Any = UnpairedDataset.load(folder / "data")
    else:
        pairs = PairsConfig(pair_kinds=("step",))
        build_pairs(families_of(trajectories, pairs), renderer, folder / "data", config=pairs)
        dataset = PairDataset.load(folder / "data")
    train_preferences(model, tokenizer, dataset, CONFIGS[algorithm], folder / "out", seed=seed)


@pytest.fixture(scope="module")
def attempts(lookup_policy: Path) -> dict[int, tuple[list[Episode], list[Episode]]]:
    """For each seed: attempts to learn from, and attempts at test tasks."""
    return {
        seed: (
            play(lookup_policy, "train", 100, attempts=4, seed=seed),
            play(lookup_policy, "test", 200, attempts=1, seed=seed + 10),
        )
        for seed in (0, 1, 2)
    }


@pytest.mark.learning
@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["dpo", "ipo", "simpo", "kto", "rft"])
def test_sampled_success_rises(
    lookup_policy: Path, attempts: dict[int, tuple[list[Episode], list[Episode]]], algorithm: str, tmp_path: Path
) -> None:
    for seed, (own, before) in attempts.items():
        folder = tmp_path / str(seed)
        train(lookup_policy, own, algorithm, folder, seed)
        after = play(folder / "out", "test", 200, attempts=1, seed=seed + 10)
        gain = paired_difference(after, before, generator=np.random.default_rng(0))
        assert gain.low > 0.05, (seed, gain)
