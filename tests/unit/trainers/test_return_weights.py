"""Weights of classes of returns: equal say at 1, none at 0, and the class that a step's context names."""

from __future__ import annotations

from pathlib import Path

import pytest

from offline_arl.datasets import ReturnConditionedConfig, SegmentDataset, build_return_conditioned
from offline_arl.datasets.return_conditioning import ReturnConditioning, fit_conditioning
from offline_arl.errors import UsageError
from offline_arl.models.tiny import train_tiny_tokenizer
from offline_arl.rendering import Renderer
from offline_arl.rendering.return_conditioning import ConditioningConfig
from offline_arl.rewards.components import RewardConfig
from offline_arl.trainers.return_weights import balanced_rows, class_weights, return_step_weights
from offline_arl.trajectories.schema import Message, Outcome, Source, TextPart, Trajectory, text_message

RENDERER = Renderer(train_tiny_tokenizer(["Go. Yes. return"] * 5, vocabulary_size=300))


def attempt(name: str, *rewards: float) -> Trajectory:
    messages = []
    for reward in rewards:
        messages += [text_message("user", "Go."), Message("assistant", [TextPart("Yes.")], metadata={"reward": reward})]
    return Trajectory(name, messages, Source("test"), outcome=Outcome("scored", success=True))


# Returns-to-go: 0, 0, 0; 0, 0; 1, 1; 1.7, 0.7. The last is 0.7 only up to rounding.
ATTEMPTS = [attempt("a", 0, 0, 0), attempt("b", 0, 0), attempt("c", 0, 1), attempt("d", 1, 0.4 + 0.3)]


def built(folder: Path, **config: object) -> tuple[SegmentDataset, ReturnConditioning]:
    settings = ConditioningConfig.model_validate(config)
    fitted = fit_conditioning(ATTEMPTS, rewards=RewardConfig(source="logged"), config=settings)
    build_return_conditioned(ATTEMPTS, RENDERER, folder, config=ReturnConditionedConfig(return_conditioning=fitted))
    return SegmentDataset.load(folder), fitted


def test_a_step_weighs_what_the_class_in_its_context_weighs(tmp_path: Path) -> None:
    """Nine conditions: five of 0, one of 0.7, two of 1, one of 1.7. At balance 1 each class sums to 9 / 4."""
    dataset, fitted = built(tmp_path / "data")
    assert fitted.class_counts == (5, 1, 2, 1)
    weights = return_step_weights(dataset, fitted, balance=1.0)
    expected = {("a", 0): 0.45, ("b", 1): 0.45, ("c", 0): 1.125, ("c", 1): 1.125, ("d", 0): 2.25, ("d", 1): 2.25}
    assert {key: weights[key] for key in expected} == pytest.approx(expected)
    assert sum(weights.values()) == pytest.approx(9)


def test_where_the_return_is_said_once_all_steps_stand_under_it(tmp_path: Path) -> None:
    """Four attempts of 0, 0, 1 and 1.7: the class of 0 has half of them."""
    dataset, fitted = built(tmp_path / "data", scope="trajectory")
    weights = return_step_weights(dataset, fitted, balance=1.0)
    assert [weights["a", step] for step in range(3)] == pytest.approx([2 / 3] * 3)
    assert [weights["d", step] for step in range(2)] == pytest.approx([4 / 3] * 2)


def test_no_balance_weighs_all_alike(tmp_path: Path) -> None:
    dataset, fitted = built(tmp_path / "data")
    assert set(return_step_weights(dataset, fitted, balance=0.0).values()) == {1.0}
    assert class_weights(fitted, balance=0.5)[1] == pytest.approx(class_weights(fitted, balance=0.5)[0] * 5**0.5)


def test_numbers_have_no_classes_to_balance(tmp_path: Path) -> None:
    dataset, fitted = built(tmp_path / "data", form="number")
    with pytest.raises(UsageError, match="quantile"):
        return_step_weights(dataset, fitted, balance=1.0)


def test_attempts_of_rare_classes_are_seen_more_often_and_the_rest_is_weighed(tmp_path: Path) -> None:
    """Attempt d has steps of two classes of weight 2.25; attempt a's steps weigh 0.45. Nothing is left to weigh."""
    dataset, fitted = built(tmp_path / "data")
    balanced = balanced_rows(dataset, fitted, balance=1.0)
    assert balanced.frequencies == pytest.approx([0.45, 0.45, 1.125, 2.25])
    assert balanced.step_weights is None


def test_what_a_row_cannot_be_seen_more_often_for_is_weighed(tmp_path: Path) -> None:
    """Steps of one attempt in classes of different weight: frequency times weight is the weight of each step."""
    attempts = [*ATTEMPTS, attempt("e", 1, 0, 0)]
    settings = ConditioningConfig()
    fitted = fit_conditioning(attempts, rewards=RewardConfig(source="logged"), config=settings)
    config = ReturnConditionedConfig(return_conditioning=fitted)
    build_return_conditioned(attempts, RENDERER, tmp_path / "data", config=config)
    dataset = SegmentDataset.load(tmp_path / "data")
    wanted = return_step_weights(dataset, fitted, balance=1.0)
    balanced = balanced_rows(dataset, fitted, balance=1.0)
    assert balanced.step_weights is not None
    by_attempt = dict(zip(dataset.column("trajectory_id"), balanced.frequencies, strict=True))
    product = {key: by_attempt[key[0]] * weight for key, weight in balanced.step_weights.items()}
    assert product == pytest.approx(dict(wanted))
    assert wanted["e", 0] != pytest.approx(wanted["e", 1])
