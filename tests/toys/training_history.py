"""Made-up histories of online trainings: what runs that learn look like, and one change to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from offline_arl.online.diagnosis import Finding, History, diagnose
from offline_arl.online.diagnosis.facts import Facts
from offline_arl.online.records import StepRecord

Fields = Mapping[str, Any] | Callable[[int], Mapping[str, Any]]  # by step where it changes


def step_record(step: int, **fields: Any) -> StepRecord:
    """A step in which nothing is wrong."""
    values: dict[str, Any] = {
        "step": step,
        "n_episodes": 128,
        "environment_steps": 256,
        "success": 0.6,
        "mean_return": 0.58,
        "return_spread": 0.3,
        "mean_steps": 3.0,
        "mean_tokens": 40.0,
        "invalid_actions": 0.1,
        "truncated": 0.01,
        "infrastructure_errors": 0,
        "idle_groups": 0.5,
        "identical_episodes": 0.6,
        "refilled_groups": 0,
        "kl": 0.02,
        "entropy": 0.2,
        "loss": 0.05,
        "gradient_norm": 0.5,
        "ratio_drift": 0.02,
        "clipped": 0.05,
        "mismatch": 1e-6,
        "sync_difference": None,
        "cloning_loss": 0.2,
        "explained_variance": 0.4,
        "learning_rate": 1e-4,
    }
    return StepRecord(**{**values, **fields})


def step_facts(step: int, **fields: Any) -> Facts:
    """Of sixteen groups of eight, of two task types, at tasks that no other step draws."""
    values: Facts = {
        "entropy": 0.2,
        "uniform_groups": 0.1,
        "empty_episodes": 0.0,
        "unjudged": 0.0,
        "contradictions": 0.0,
        "idle_successes": 0.0,
        "types": {"refund": [8, 64, 40, 0], "status": [8, 64, 37, 0]},
        "tasks": list(range(16 * step, 16 * step + 16)),
    }
    return {**values, **fields}


def history(steps: int, fields: Fields = {}, facts: Fields = {}, **settings: Any) -> History:  # noqa: B006
    """A training of so many steps with these fields changed."""
    found = History(**settings)
    for step in range(1, steps + 1):
        found.records.append(step_record(step, **(fields(step) if callable(fields) else fields)))
        found.facts.append(step_facts(step, **(facts(step) if callable(facts) else facts)))
    return found


def learning_history(steps: int, *, seed: int, episodes: int = 128) -> History:
    """A noisy training that goes well: success rises to 0.97, entropy and groups that teach fall with it."""
    generator = np.random.default_rng(seed)
    found = History()
    tasks = episodes // 8
    for step in range(1, steps + 1):
        done = min(1.0, step / 60)
        chance = 0.5 + 0.47 * done
        chances = np.clip(generator.beta(4 * chance, 4 * (1 - chance), tasks), 1e-3, 1 - 1e-3)
        successes = generator.binomial(8, chances)
        idle = float(np.mean((successes == 0) | (successes == 8)))
        noise = generator.lognormal(0, 0.25, 8)
        record = step_record(
            step,
            n_episodes=episodes,
            success=float(successes.mean() / 8),
            mean_return=float(successes.mean() / 8) - 0.01,
            return_spread=float(np.mean(np.sqrt(successes / 8 * (1 - successes / 8)))),
            idle_groups=idle,
            mean_steps=3.0 * noise[0] ** 0.3,
            mean_tokens=40.0 * noise[1] ** 0.5,
            invalid_actions=0.15 * noise[2],
            truncated=0.02 * noise[3],
            kl=0.15 * done * noise[4] ** 2 if step > 1 else 0.0,
            entropy=0.2 * (1 - 0.5 * done) * noise[5],
            loss=float(generator.normal(0.03, 0.1)),
            gradient_norm=0.5 * (1 + done) * noise[6] ** 1.5,
        )
        found.records.append(record)
        found.facts.append(step_facts(step, entropy=0.2 * (1 - 0.5 * done) * noise[7] ** 0.5, tasks=None))
    return found


def kinds(found: History, **settings: Any) -> dict[str, int]:
    """The kinds of failure in a history, and the first step of each."""
    first: dict[str, int] = {}
    for finding in diagnose(found, **settings):
        first.setdefault(finding.kind, finding.step)
    return first


def symptoms(found: History, **settings: Any) -> dict[str, Finding]:
    """The findings of a history by their symptoms."""
    return {finding.symptom: finding for finding in diagnose(found, **settings)}
