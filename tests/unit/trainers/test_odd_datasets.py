"""What trainers say about datasets that hold nothing, too little, or numbers that are none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toys import ToyTokenizer, toy_model
from toys.preferences import answer_dataset, pair_dataset, toy_answers, toy_pairs
from toys.token_transitions import transition_row, transition_rows

from offline_arl.datasets.pairs import PairDataset, PreferenceWriter
from offline_arl.datasets.segments import SegmentDataset, SegmentRow, SegmentWriter
from offline_arl.errors import DataError
from offline_arl.models.config import FeatureConfig
from offline_arl.trainers.config import (
    BehaviorValuesConfig,
    CQLConfig,
    IQLConfig,
    TokenCQLConfig,
    TokenIQLConfig,
    WeightedBCConfig,
)
from offline_arl.trainers.preference import train_preferences
from offline_arl.trainers.preference_config import DPOConfig, KTOConfig, SimPOConfig
from offline_arl.trainers.step_features import compute_features
from offline_arl.trainers.token_values import train_token_values
from offline_arl.trainers.value import fit_values
from offline_arl.trainers.weighted_bc import train_weighted_bc

Train = Callable[[SegmentDataset, Path], Any]
TOKENS: dict[str, Any] = {"max_steps": 2, "batch_size": 8, "hidden_size": 8, "holdout_fraction": 0.0}


def _step_level(config: Any) -> Train:
    def train(dataset: SegmentDataset, folder: Path) -> Any:
        features = compute_features(toy_model(), ToyTokenizer(), dataset, folder / "cache", config=FeatureConfig())
        return fit_values(features, dataset, config, generator=torch.Generator().manual_seed(0)).diagnostics

    return train


def _token_level(config: Any) -> Train:
    def train(dataset: SegmentDataset, folder: Path) -> Any:
        return train_token_values(toy_model(), ToyTokenizer(), dataset, config, folder / "out", seed=0).diagnostics

    return train


def _clone(dataset: SegmentDataset, folder: Path, **options: Any) -> Any:
    config = WeightedBCConfig(tokens_per_batch=500)
    return train_weighted_bc(
        toy_model(), ToyTokenizer(), dataset, config, folder / "out", seed=0, **options
    ).metrics  # fmt: skip


VALUES: dict[str, Train] = {
    "iql": _step_level(IQLConfig(steps=2, holdout_fraction=0.0)),
    "cql": _step_level(CQLConfig(steps=2, holdout_fraction=0.0)),
    "behavior": _step_level(BehaviorValuesConfig(steps=2, holdout_fraction=0.0)),
    "token_iql": _token_level(TokenIQLConfig(**TOKENS)),
    "token_cql": _token_level(TokenCQLConfig(**TOKENS, cache_megabytes=0)),
}
ONE = transition_row("one", seed=0, steps=1)


def _dataset(folder: Path, rows: list[SegmentRow]) -> SegmentDataset:
    writer = SegmentWriter(folder / "data", kind="transitions", fingerprint="toy", config={}, may_be_empty=True)
    with writer:
        for row in rows:
            writer.add([row])
    return SegmentDataset.load(folder / "data")


def _without_actions(row: SegmentRow) -> SegmentRow:
    nothing = {name: getattr(row, name)[:0] for name in ("steps", "rewards", "terminated", "truncated")}
    return replace(
        row, action_mask=np.zeros_like(row.action_mask), step_index=np.full_like(row.step_index, -1), **nothing
    )


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "the dataset is empty; build it again"),
        ([_without_actions(ONE)], "no step has action tokens, .* build the dataset again"),
        ([replace(ONE, rewards=np.array([np.nan], np.float32))], "one: the reward of step 0 is nan; leave"),
        ([replace(ONE, rewards=np.array([np.inf], np.float32))], "one: the reward of step 0 is inf; leave"),
        ([replace(ONE, token_ids=ONE.token_ids + 100)], "has token 1.. and the model only 24 tokens; build"),
        ([replace(ONE, rewards=np.array([1e30], np.float32))], "training diverged: .* lower learning_rate"),
    ],
    ids=["empty", "no actions", "nan", "inf", "foreign tokens", "enormous rewards"],
)
def test_values_are_not_learned_from_what_holds_none(
    name: str, rows: list[SegmentRow], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message) as told:
        VALUES[name](_dataset(tmp_path, rows), tmp_path)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize(
    "rows",
    [
        [ONE],
        [ONE, replace(_without_actions(ONE), trajectory_id="nothing")],
        [transition_row("cut", seed=1, steps=1, ending="truncated")],
    ],
    ids=["one step", "beside one without actions", "without a target"],
)
def test_a_single_step_is_enough(name: str, rows: list[SegmentRow], tmp_path: Path) -> None:
    found = VALUES[name](_dataset(tmp_path, rows), tmp_path)
    assert found["updates"] == 2
    assert np.isfinite(list(found.values())).all()


@pytest.mark.parametrize("name", VALUES)
def test_rewards_that_are_all_alike_are_learned(name: str, tmp_path: Path) -> None:
    rows = [replace(row, rewards=np.zeros_like(row.rewards)) for row in transition_rows(6)]
    found = VALUES[name](_dataset(tmp_path, rows), tmp_path)
    assert abs(found["train/mean_q"]) < 0.3


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -1.0])
def test_a_weight_that_is_no_number_is_not_taken_for_none(weight: float, tmp_path: Path) -> None:
    rows = transition_rows(3)
    weights = {(row.trajectory_id, step): 1.0 for row in rows for step in range(3)}
    weights["t1", 0] = weight
    with pytest.raises(DataError, match=f"trajectory t1: step 0 has the weight {weight}; weights are finite"):
        _clone(_dataset(tmp_path, rows), tmp_path, step_weights=weights)


def test_frequencies_are_numbers(tmp_path: Path) -> None:
    dataset = _dataset(tmp_path, transition_rows(3))
    with pytest.raises(DataError, match="give other frequencies"):
        _clone(dataset, tmp_path, row_frequencies=np.array([1.0, np.nan, 1.0]))


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -1.0])
def test_preferences_have_weights_that_are_numbers(weight: float, tmp_path: Path) -> None:
    pairs, answers = toy_pairs(3), toy_answers(4)
    dataset: Any = pair_dataset(tmp_path / "pairs", [pairs[0], replace(pairs[1], weight=weight)])
    with pytest.raises(DataError, match=f"row p1 has the weight {weight}; give weights that are finite"):
        train_preferences(toy_model(), ToyTokenizer(), dataset, DPOConfig(), tmp_path / "out", seed=0)
    dataset = answer_dataset(tmp_path / "answers", [*answers[:2], replace(answers[2], weight=weight)])
    with pytest.raises(DataError, match=f"row u2 has the weight {weight}; give weights that are finite"):
        train_preferences(toy_model(), ToyTokenizer(), dataset, KTOConfig(), tmp_path / "out", seed=0)


def test_a_side_without_anything_to_score_is_no_preference(tmp_path: Path) -> None:
    """SimPO would take it for the likeliest answer of all. A first token is not predicted, so it does not count."""
    pairs, answers = toy_pairs(2), toy_answers(4)
    silent = replace(pairs[1], rejected_action_mask=np.zeros_like(pairs[1].rejected_action_mask))
    first = replace(answers[1], action_mask=np.arange(len(answers[1])) == 0)
    for config, dataset, name in (
        (SimPOConfig(), pair_dataset(tmp_path / "pairs", [pairs[0], silent]), "p1"),
        (KTOConfig(), answer_dataset(tmp_path / "answers", [answers[0], first]), "u1"),
    ):
        with pytest.raises(DataError, match=f"row {name} has a side without action tokens; leave it out"):
            train_preferences(toy_model(), ToyTokenizer(), dataset, config, tmp_path / "out", seed=0)


def test_no_pair_and_a_single_one(tmp_path: Path) -> None:
    with PreferenceWriter(tmp_path / "no", kind="pairs", fingerprint="toy", config={}, may_be_empty=True):
        pass
    config = DPOConfig(epochs=1)
    with pytest.raises(DataError, match="no row has a weight above 0"):
        train_preferences(
            toy_model(), ToyTokenizer(), PairDataset.load(tmp_path / "no"), config, tmp_path / "out", seed=0
        )
    one = pair_dataset(tmp_path / "one", toy_pairs(1))
    record = train_preferences(toy_model(), ToyTokenizer(), one, config, tmp_path / "out", seed=0)
    assert record.metrics["loss"] == pytest.approx(one[0].weight * np.log(2), rel=1e-5)
