"""All failures that are looked for, and the diagnosis of a whole training."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from offline_arl.online.diagnosis.data import data_quality
from offline_arl.online.diagnosis.drift import entropy_collapse, length_drift, success_drop
from offline_arl.online.diagnosis.environments import environment_bugs
from offline_arl.online.diagnosis.findings import Finding
from offline_arl.online.diagnosis.history import DEAD_STEPS, History, View
from offline_arl.online.diagnosis.mismatch import mismatch
from offline_arl.online.diagnosis.signal import reward_variance
from offline_arl.online.diagnosis.stability import kl_growth, loss_oscillation

Rule = Callable[[View], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    reward_variance,
    loss_oscillation,
    kl_growth,
    data_quality,
    environment_bugs,
    entropy_collapse,
    length_drift,
    mismatch,
    success_drop,
)


def check(view: View) -> list[Finding]:
    """What is wrong at the last step of a view."""
    return [finding for rule in RULES for finding in rule(view)]


def diagnose(history: History, *, dead_steps: int | None = DEAD_STEPS) -> list[Finding]:
    """What went wrong in a training, each finding at the first step that showed it.

    Args:
        history: Of the training.
        dead_steps: `StopConfig.dead_steps`: steps in a row without any signal that are fatal; None: never.
    """
    found: dict[object, Finding] = {}
    for steps in range(len(history.records) + 1):
        for finding in check(history.view(steps=steps, dead_steps=dead_steps)):
            found.setdefault(finding.key, finding)
    return list(found.values())
