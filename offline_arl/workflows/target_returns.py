"""What return-conditioned policies are asked for in an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from offline_arl.datasets.return_conditioning import ReturnConditioning
from offline_arl.environments.protocol import EnvironmentFamily, KnowsTargetReturns, Task
from offline_arl.evaluation.calibration import achieved_returns, calibration_metrics
from offline_arl.evaluation.intervals import Estimate
from offline_arl.rewards.components import RewardConfig
from offline_arl.rollouts.episode import Episode
from offline_arl.workflows.stages import Evaluate


@dataclass(frozen=True)
class Target:
    """One thing that a policy is asked for. `value` is None where each task has a target of its own."""

    value: float | None
    per_task: tuple[float, ...]

    @property
    def label(self) -> str:
        """For people."""
        return "that of each task" if self.value is None else f"{self.value:g}"


def targets_for(
    config: Evaluate, conditioning: ReturnConditioning, family: EnvironmentFamily, tasks: Sequence[Task]
) -> list[Target]:
    """The targets of a policy in the order in which they are wanted, without repetitions.

    Args:
        config: Says what is wanted in `target_returns`.
        conditioning: Of the policy.
        family: Of the tasks.
        tasks: To play.
    """
    found: dict[float | None, Target] = {}
    for item in config.targets:
        if item == "task":
            assert isinstance(family, KnowsTargetReturns)  # dispatch.check_ready made sure of it
            found.setdefault(None, Target(None, tuple(family.target_return(task) for task in tasks)))
        else:
            value = conditioning.default_target if item == "best" else float(item)
            found.setdefault(value, Target(value, (value,) * len(tasks)))
    return list(found.values())


def calibration_curve(
    targets: Sequence[Target],
    runs: Sequence[Sequence[Episode]],
    rewards: RewardConfig,
    *,
    generator: np.random.Generator,
) -> dict[str, Estimate]:
    """Achieved returns of those targets that are one number for all tasks; empty where there is none.

    Args:
        targets: What the policy was asked for.
        runs: The episodes under each of them.
        rewards: Of the policy's training data.
        generator: Of the bootstrap.
    """
    achieved = {
        target.value: achieved_returns(episodes, rewards)
        for target, episodes in zip(targets, runs, strict=True)
        if target.value is not None
    }
    return calibration_metrics(achieved, generator=generator) if achieved else {}
