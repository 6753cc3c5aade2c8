"""Online GRPO turns a policy that guesses half of the time into one that does not, and never loses what it had."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from toys.lookup import LookupFamily

from offline_arl.evaluation.policy import paired_difference
from offline_arl.models.policy import load_policy
from offline_arl.online.config import GateConfig, GrpoConfig
from offline_arl.online.grpo import train_grpo
from offline_arl.rendering import Renderer
from offline_arl.rollouts.collect import collect
from offline_arl.rollouts.episode import Episode
from offline_arl.rollouts.transformers_sampler import TransformersSampler

FAMILY = LookupFamily()
CONFIG = GrpoConfig(
    steps=18,
    group_size=8,
    prompts_per_step=8,
    learning_rate=4e-4,
    max_tokens_per_step=24,
    max_total_tokens=128,
    validation_every=6,
    gate=GateConfig(minimum_tasks=80),
    backend="transformers",
)


def play(path: Path, *, temperature: float) -> list[Episode]:
    model, tokenizer = load_policy(path)
    renderer = Renderer(tokenizer)
    sampler = TransformersSampler(model, stop_token_ids=renderer.stop_token_ids, max_model_len=128)
    tasks = FAMILY.tasks("test", 200, seed=7)
    return collect(FAMILY, tasks, sampler, renderer, temperature=temperature, max_tokens_per_step=24, seed=3)


@pytest.mark.learning
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sampled_success_rises_and_greedy_success_does_not_fall(lookup_policy: Path, tmp_path: Path, seed: int) -> None:
    result = train_grpo(
        lookup_policy,
        FAMILY,
        FAMILY.tasks("train", 200, seed=seed),
        CONFIG,
        tmp_path,
        seed=seed,
        validation_tasks=FAMILY.tasks("validation", 80, seed=seed),
    )
    generator = np.random.default_rng(0)
    pairs = {
        temperature: paired_difference(
            play(result.policy_path, temperature=temperature), play(lookup_policy, temperature=temperature),
            generator=generator,
        )
        for temperature in (0.0, 1.0)
    }  # fmt: skip
    assert pairs[1.0].low > 0.05
    assert pairs[0.0].estimate >= -0.01
    assert result.start is not None
    assert result.best is not None
    assert result.best.greedy >= result.start.greedy
