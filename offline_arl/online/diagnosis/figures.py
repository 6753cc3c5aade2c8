"""How a training stands: its parts, its key figures, and what cannot be told of it yet."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from offline_arl.online.diagnosis.findings import Kind
from offline_arl.online.diagnosis.history import RECENT, History

# Steps after which each failure can be told by all its signs. What is fatal needs `stop.dead_steps`, 10 by default.
STEPS_NEEDED: dict[Kind, int] = {
    "reward_variance": 10,
    "loss_oscillation": 8,
    "kl_growth": 15,
    "data_quality": 10,
    "environment": 10,
    "entropy_collapse": 6,
    "length_drift": 6,
    "mismatch": 5,
    "success_drop": 15,
}
_FIGURES = ("success", "kl", "entropy", "idle_groups", "explained_variance", "cloning_loss")


def parts_of(history: History) -> list[str]:
    """What a training uses besides the policy: critic, curriculum, replay."""
    setup = history.setup
    if setup is not None:
        used = {"critic": setup.critic, "curriculum": setup.curriculum_levels is not None, "replay": setup.replay}
    else:  # written by an earlier version: what the steps show
        used = {
            "critic": any(record.explained_variance is not None for record in history.records),
            "curriculum": not history.steady_tasks,
            "replay": any(record.cloning_loss is not None for record in history.records),
        }
    return [name for name, is_used in used.items() if is_used]


def figures(history: History) -> dict[str, Any]:
    """Means over the last steps, as of the last one; None where nothing was measured. JSON."""
    if not history.records:
        return {}
    view = history.view()
    means = {name: view.last(name) for name in _FIGURES}
    return {
        "step": view.step,
        "over_steps": min(RECENT, view.count),
        **{name: None if math.isnan(value) else value for name, value in means.items()},
    }


def validations(history: History) -> dict[str, dict[str, Any]]:
    """The first, the best and the last validation on all tasks. JSON; empty where there is none."""
    full = [found for found in history.validations if found.full]
    if not full:
        return {}
    best = max(full, key=lambda found: found.score)
    return {name: asdict(found) for name, found in (("start", full[0]), ("best", best), ("last", full[-1]))}


def describe_figures(history: History) -> str:
    """The key figures in one line; empty where there are none."""
    now = figures(history)
    told = []
    if now:
        names = {"success": "success", "kl": "KL", "explained_variance": "variance of returns explained by the critic"}
        values = [f"{text} {now[name]:.3f}" for name, text in names.items() if now[name] is not None]
        told.append(f"last {now['over_steps']} steps: {', '.join(values) or 'nothing was judged'}")
    found = validations(history)
    if found:
        moments = {found[name]["step"]: found[name] for name in ("start", "best", "last")}
        course = ", ".join(
            f"{moments[step]['greedy']:.3f} and {moments[step]['sampled']:.3f} at step {step}"
            + (" (best)" if step == found["best"]["step"] and len(moments) > 1 else "")
            for step in sorted(moments)
        )
        told.append(f"validation, greedy and sampled: {course}")
    return "; ".join(told)


def undecided(history: History) -> dict[Kind, str]:
    """The failures that so few steps cannot show by all their signs, and what each needs."""
    count = len(history.records)
    needed: dict[Kind, str] = {kind: f"{steps} steps" for kind, steps in STEPS_NEEDED.items() if count < steps}
    if len(history.validations) > 1:
        needed.pop("success_drop", None)
    elif history.validations:
        needed["success_drop"] = "a second validation"
    elif not history.steady_tasks:  # under a curriculum the success of the steps says nothing about a drop
        needed["success_drop"] = "validations"
    return needed
