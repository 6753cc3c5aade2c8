"""What is fitted to the returns of the training data, and how it is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from offline_arl.datasets import BCConfig, ReturnConditionedConfig, build_bc, build_return_conditioned
from offline_arl.datasets.manifest import load_manifest
from offline_arl.datasets.return_conditioned import conditioning_of
from offline_arl.datasets.return_conditioning import FILE_NAME, ReturnConditioning, fit_conditioning, load_conditioning
from offline_arl.datasets.segments import SegmentDataset
from offline_arl.errors import DataError, UsageError
from offline_arl.rendering import Renderer
from offline_arl.rendering.return_conditioning import ConditioningConfig
from offline_arl.rewards.components import RewardConfig
from offline_arl.trajectories.schema import Message, Outcome, Source, TextPart, Trajectory, text_message


def attempt(name: str, *rewards: float) -> Trajectory:
    """A chat of one word a step; each step earned what is given."""
    messages = []
    for reward in rewards:
        messages += [
            text_message("user", "Go."),
            Message("assistant", [TextPart("Yes.")], metadata={"reward": reward}),
        ]
    return Trajectory(name, messages, Source("test"), outcome=Outcome("scored", success=True))


def fitted(*attempts: Trajectory, **config: object) -> ReturnConditioning:
    settings = ConditioningConfig.model_validate(config)
    return fit_conditioning(attempts, rewards=RewardConfig(source="logged"), config=settings)


def test_classes_are_of_what_is_written() -> None:
    """Returns-to-go of the steps: 0, 0; 1, 1; 3, 2. Returns of the attempts: 0, 1, 3."""
    attempts = attempt("a", 0, 0), attempt("b", 0, 1), attempt("c", 1, 2)
    steps = fitted(*attempts)
    assert (steps.edges, steps.class_counts) == ((1.0, 2.0, 3.0), (2, 2, 1, 1))
    whole = fitted(*attempts, scope="trajectory")
    assert (whole.edges, whole.class_counts) == ((1.0, 3.0), (1, 1, 1))
    numbers = fitted(*attempts, form="number")
    assert (numbers.edges, numbers.class_counts) == ((), (6,))


def test_the_best_attempt_is_the_target_and_the_deciles_are_returns_of_attempts() -> None:
    """Single steps may have more to come than any attempt gets in all: a start that costs 5 and then earns 9."""
    fit = fitted(*(attempt(str(number), float(number)) for number in range(10)), attempt("late", -5, 9))
    assert fit.default_target == fit.returns.maximum == 9
    assert fit.returns.minimum == 0
    assert fit.returns.attempts == 11
    assert fit.returns.deciles == (0, 1, 2, 3, 4, 4, 5, 6, 7, 8, 9)


def test_rounding_errors_make_no_classes() -> None:
    """0.1 + 0.2 and 0.3 are one return."""
    assert fitted(attempt("a", 0.1 + 0.2), attempt("b", 0.3), attempt("c", 0.0)).edges == (0.3,)


def test_it_is_kept_in_the_dataset_and_in_the_policy(renderer: Renderer, tmp_path: Path) -> None:
    fit = fitted(attempt("a", 0, 1), attempt("b", 0.1, 0.2), form="quantile_text", bins=3)
    config = ReturnConditionedConfig(return_conditioning=fit)
    build_return_conditioned([attempt("a", 0, 1)], renderer, tmp_path / "data", config=config)
    kept = conditioning_of(load_manifest(tmp_path / "data"))
    assert kept == fit
    kept.save(tmp_path)
    assert load_conditioning(tmp_path) == fit


def test_a_policy_without_it_reads_no_returns_and_a_damaged_file_is_told(tmp_path: Path) -> None:
    assert load_conditioning(tmp_path) is None
    (tmp_path / FILE_NAME).write_text('{"edges": 3}')
    with pytest.raises(DataError, match="train the policy again"):
        load_conditioning(tmp_path)


def test_steps_without_a_message_of_their_own_are_counted(renderer: Renderer, tmp_path: Path) -> None:
    """Two answers in a row: the second stands under the return before the first."""
    double = Trajectory(
        "double",
        [text_message("user", "Go."), text_message("assistant", "One."), text_message("assistant", "Two.")],
        Source("test"),
        outcome=Outcome("scored", success=True),
    )
    fit = fit_conditioning([double], rewards=RewardConfig(), config=ConditioningConfig(form="number"))
    config = ReturnConditionedConfig(return_conditioning=fit)
    manifest = build_return_conditioned([double], renderer, tmp_path / "data", config=config)
    assert manifest.assumed == {"condition_of_step_before": 1}
    (row,) = SegmentDataset.load(tmp_path / "data")
    assert renderer.tokenizer.decode(row.token_ids).count("[return 1.00]") == 1


def test_only_a_dataset_with_conditions_has_them(renderer: Renderer, tmp_path: Path) -> None:
    build_bc([attempt("a", 1.0)], renderer, tmp_path / "bc", config=BCConfig())
    with pytest.raises(UsageError, match="kind bc; dt needs one of the form return_conditioned"):
        conditioning_of(load_manifest(tmp_path / "bc"))
