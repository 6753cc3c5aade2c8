"""Each failure of online training, provoked on purpose, is named within 20 steps; a healthy training has none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from toys.broken_lookup import (
    Constant,
    Contrary,
    LookupVariant,
    Misled,
    OddJudgeAway,
    OddNeverRight,
    PaysForLength,
)
from toys.lookup import Lookup, LookupFamily

from offline_arl.online.config import GrpoConfig
from offline_arl.online.diagnosis import diagnose
from offline_arl.online.diagnosis.metrics import read_history
from offline_arl.online.grpo import GrpoResult, train_grpo
from offline_arl.rollouts.transformers_sampler import TransformersSampler

TRAIN = LookupFamily().tasks("train", 100, seed=0)
STEPS = 20  # within which a failure has to be named


class Failure(NamedTuple):
    """How a failure is provoked, and what has to be said."""

    kind: str
    symptom: str
    environment: Callable[[], Lookup] = Lookup
    tasks: int = len(TRAIN)
    steps: int = STEPS
    unchecked: dict[str, Any] = {}  # noqa: RUF012 - settings that the configuration would refuse
    settings: dict[str, Any] = {}  # noqa: RUF012


FAST = {"learning_rate": 2e-3, "kl_coefficient": 0.0}
FAILURES = {
    "a judge that fails every attempt": Failure("reward_variance", "idle_groups", Constant, steps=12),
    "a learning rate far too high, held by a strong KL term": Failure(
        "loss_oscillation",
        "gradient_growth",
        steps=9,
        settings={"learning_rate": 0.01, "kl_coefficient": 1.0, "group_gate": "none", "group_size": 8},
    ),
    "a learning rate far too high": Failure("kl_growth", "gibberish", steps=6, settings={"learning_rate": 0.03}),
    "a learning rate far too high, with no KL term": Failure(
        "kl_growth", "gibberish", steps=6, settings={"learning_rate": 0.03, "kl_coefficient": 0.0}
    ),
    "a sampler that always says the same": Failure(
        "data_quality", "identical_episodes", Misled, steps=8, settings={"temperature": 0.02}
    ),
    "six tasks again and again": Failure("data_quality", "few_tasks", tasks=6, steps=12),
    "a judge that pays for failing": Failure("environment", "contradictions", Contrary, steps=6),
    "a task type whose harness fails": Failure("environment", "failing_type:odd", OddJudgeAway, steps=6),
    "a task type that nobody can solve": Failure("environment", "unsolved_type:odd", OddNeverRight, steps=14),
    "an entropy term with the wrong sign": Failure(
        "entropy_collapse",
        "entropy",
        Misled,
        steps=14,
        settings=FAST | {"updates_per_step": 2, "reuse_limit": 10.0, "group_gate": "none"},
        unchecked={"entropy_coefficient": -5.0},
    ),
    "a reward for every character": Failure(
        "length_drift",
        "mean_tokens_up",
        PaysForLength,
        steps=14,
        settings=FAST | {"group_gate": "return", "max_tokens_per_step": 32},
    ),
}


def train(policy: Path, output: Path, failure: Failure, *, seed: int = 0) -> GrpoResult:
    values: dict[str, Any] = {
        "steps": failure.steps,
        "group_size": 4,
        "prompts_per_step": 4,
        "rows_per_batch": 16,
        "warmup_steps": 0,
        "learning_rate": 4e-4,
        "max_tokens_per_step": 24,
        "max_total_tokens": 128,
        "save_every": 1000,
        "gate": None,
        "stop": {"dead_steps": None},
        "backend": "transformers",
    }
    config = GrpoConfig(**{**values, **failure.settings}).model_copy(update=failure.unchecked)
    family = LookupVariant(failure.environment)
    return train_grpo(policy, family, TRAIN[: failure.tasks], config, output, seed=seed)


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_named(name: str, lookup_policy: Path, tmp_path: Path) -> None:
    failure = FAILURES[name]
    result = train(lookup_policy, tmp_path, failure)
    found = [finding for finding in result.findings if finding.symptom == failure.symptom]
    assert [finding.kind for finding in found] == [failure.kind], result.findings
    assert found[0].step <= STEPS
    assert diagnose(read_history(tmp_path / "metrics.jsonl"), dead_steps=None) == result.findings


def test_a_sampler_with_other_weights_is_named(
    lookup_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = TransformersSampler.load_weights

    def perturbed(self: TransformersSampler, weights: Any) -> None:
        generator = torch.Generator().manual_seed(0)
        noisy = ((name, value + 0.02 * torch.randn(value.shape, generator=generator)) for name, value in weights)
        exact(self, noisy)

    monkeypatch.setattr(TransformersSampler, "load_weights", perturbed)
    settings = {"mismatch": {"on_mismatch": "correct", "tolerance": 1e-3}}
    result = train(lookup_policy, tmp_path, Failure("mismatch", "growing", steps=5, settings=settings))
    assert {(finding.kind, finding.symptom) for finding in result.findings} == {("mismatch", "growing")}


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_a_training_that_goes_well_has_no_findings(lookup_policy: Path, tmp_path: Path, seed: int) -> None:
    settings = {"group_size": 8, "prompts_per_step": 8, "rows_per_batch": 64}
    result = train(lookup_policy, tmp_path, Failure("", "", settings=settings), seed=seed)
    assert result.findings == []
    assert result.history[-1].step == STEPS


def test_a_training_without_a_signal_stops_itself_and_says_why(lookup_policy: Path, tmp_path: Path) -> None:
    settings = {"stop": {"dead_steps": 4}}
    result = train(lookup_policy, tmp_path, Failure("", "", Constant, settings=settings))
    assert len(result.history) == 4
    assert result.stopped is not None
    assert "reward_variance" in result.stopped
