"""Each request to a sampler has a seed of its own, which the same run gives it again and no other run does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from toys.lookup import LookupFamily, ScriptedSampler, call_text, demonstrations

from offline_arl.models.tiny import train_tiny_tokenizer
from offline_arl.online.config import GrpoConfig
from offline_arl.online.policy_rollouts import PolicyRollouts
from offline_arl.rendering import Renderer
from offline_arl.rollouts.sampler import Completion, SamplingConfig
from offline_arl.workflows.context import StageContext

TEXTS = [message.text for item in demonstrations(50, accuracy=1.0, seed=0) for message in item.messages]
RENDERER = Renderer(train_tiny_tokenizer([*TEXTS, call_text("123")], vocabulary_size=300))
CONFIG = GrpoConfig(max_tokens_per_step=24, max_total_tokens=200, backend="transformers")
STEPS, TASKS, ATTEMPTS, TURNS = (1, 2, 3), 3, 2, 2


class Recording(ScriptedSampler):
    """Looks something up and answers; keeps the seeds that it was given, and takes any weights."""

    def __init__(self) -> None:
        super().__init__(RENDERER, lambda prompt, seed: "A" if "<|tool|>" in prompt else call_text("123"))
        self.seeds: list[int] = []

    def generate(
        self, prompts: Sequence[Sequence[int]], config: SamplingConfig, *, seeds: Sequence[int]
    ) -> list[Completion]:
        self.seeds += seeds
        return super().generate(prompts, config, seeds=seeds)

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> None:
        list(weights)


def seeds(folder: Path, run_seed: int, stage: str = "grpo") -> list[int]:
    """Those of an online stage in a run: of several steps, tasks, attempts and turns, and of one validation."""
    context = StageContext(stage, folder, run_seed, {})
    sampler = Recording()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PolicyRollouts, "_start", lambda self: sampler)
        patch.setattr("offline_arl.online.policy_rollouts.model_weights", lambda model: [])
        rollouts = PolicyRollouts(folder, None, LookupFamily(), RENDERER, CONFIG, seed=context.integer_seed())
        tasks = LookupFamily().tasks("train", TASKS, seed=0)
        for step in STEPS:
            episodes = rollouts.collect(tasks, purpose="training", step=step, temperature=1.0, group_size=ATTEMPTS)
            assert all(episode.n_steps == TURNS for episode in episodes)
        rollouts.collect(tasks, purpose="validation", step=1, temperature=1.0)
    return sampler.seeds


def test_seeds_are_keyed_by_run_step_task_attempt_and_turn(tmp_path: Path) -> None:
    first, second, other_stage = seeds(tmp_path, 0), seeds(tmp_path, 1), seeds(tmp_path, 0, stage="later")
    requests = (len(STEPS) * ATTEMPTS + 1) * TASKS * TURNS
    assert len({*first, *second, *other_stage}) == 3 * requests  # no two are the same
    assert seeds(tmp_path, 0) == first
    assert all(0 <= seed < 2**63 for seed in first)


def test_validation_is_the_same_at_every_step(tmp_path: Path) -> None:
    """So that policies of different steps are compared under the same draws."""
    sampler = Recording()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PolicyRollouts, "_start", lambda self: sampler)
        patch.setattr("offline_arl.online.policy_rollouts.model_weights", lambda model: [])
        rollouts = PolicyRollouts(tmp_path, None, LookupFamily(), RENDERER, CONFIG, seed=3)
        tasks = LookupFamily().tasks("validation", TASKS, seed=0)
        for step in (1, 2):
            rollouts.collect(tasks, purpose="validation", step=step, temperature=1.0)
    assert sampler.seeds[: TASKS * TURNS] == sampler.seeds[TASKS * TURNS :]
