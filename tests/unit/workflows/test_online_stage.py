"""What the stage of online training says at its end, and what makes two of them the same."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from toys.online_runs import logged_successes, save_values
from toys.training_history import step_record

from offline_arl.evaluation.intervals import wilson_interval
from offline_arl.online.config import CloningConfig, CurriculumConfig, GrpoConfig
from offline_arl.online.diagnosis.setup import Setup
from offline_arl.online.grpo import GrpoResult
from offline_arl.online.records import Validation
from offline_arl.warmstart import WarmStart
from offline_arl.workflows.online import _identity, _metrics, _notes


def result(*explained: float | None) -> GrpoResult:
    history = [step_record(step, explained_variance=value) for step, value in enumerate(explained, start=1)]
    return GrpoResult(
        policy_path=Path("policy"), best=None, start=None, validations=[], history=history, findings=[], stopped=None,
        environment_steps=9, backend="transformers", sync_reports=[], seconds={},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("explained", "critic", "replay", "curriculum", "told"),
    [
        (
            (0.2, 0.4),
            True,
            True,
            CurriculumConfig(),
            "with a critic that explains 0.300 of the variance of returns (last 2 steps), curriculum, replay",
        ),
        ((None,), False, False, CurriculumConfig(), "with curriculum"),
        ((np.nan,), True, False, None, "with critic"),
    ],
)
def test_the_end_says_what_the_training_used_and_what_the_critic_explains(
    explained: tuple[float | None, ...], critic: bool, replay: bool, curriculum: CurriculumConfig | None, told: str
) -> None:
    setup = Setup.of(GrpoConfig(curriculum=curriculum), critic=critic, replay=replay)
    assert _notes(result(*explained), setup)[1:] == (told,)


def test_nothing_is_said_of_parts_that_a_training_does_not_use() -> None:
    setup = Setup.of(GrpoConfig(), critic=False, replay=False)
    assert len(_notes(result(None), setup)) == 1


def test_validation_has_intervals_over_its_tasks_and_a_start_that_is_kept_is_told() -> None:
    start = Validation(0, 0.9, 0.7, 100)
    metrics = _metrics(replace(result(None), start=start, best=Validation(4, 1.0, 0.8, 100)), "grpo")
    assert metrics["validation_greedy_start/grpo"] == wilson_interval(90, 100)
    assert metrics["validation_sampled_best/grpo"] == wilson_interval(80, 100)
    setup = Setup.of(GrpoConfig(), critic=False, replay=False)
    for kept, gained in ((start, False), (Validation(4, 1.0, 0.8, 100), True)):
        notes = _notes(replace(result(None), start=start, best=kept), setup)
        assert any("nothing was gained" in note for note in notes) is not gained


def test_a_warm_start_is_the_same_wherever_it_lies(lookup_policy: Path, tmp_path: Path) -> None:
    """Else an interrupted training would begin anew, without a word, under another path for the same folders."""
    save_values(lookup_policy, tmp_path / "a/values")
    logged_successes(tmp_path / "a/logged", CloningConfig())
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    starts = [
        WarmStart(lookup_policy, "", tmp_path / name / "values", lookup_policy, tmp_path / name / "logged")
        for name in "ab"
    ]
    assert _identity(starts[0]) == _identity(starts[1])
    (weights,) = (tmp_path / "b/values").glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-4] + b"else")
    assert _identity(starts[0]) != _identity(starts[1])
    assert _identity(WarmStart(lookup_policy, "")) == {"critic": None, "replay": None}
