"""Held-out success along an online training: the gate in front of it, the best policy, early stopping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from offline_arl.environments.protocol import Task
from offline_arl.errors import DataError
from offline_arl.online.config import GrpoConfig
from offline_arl.online.policy_rollouts import PolicyRollouts
from offline_arl.online.processes import Processes
from offline_arl.online.records import Validation
from offline_arl.rollouts.episode import Episode
from offline_arl.warmstart import check_gate


class _Played(NamedTuple):
    greedy: list[Episode]
    sampled: list[Episode]


class Validator:
    """Measures the policy greedily and sampled, always on the same tasks with the same seeds.

    With `full_validation_every` the first `small_validation` tasks are played each time. All are played at the start,
    at the end, every so many times, and where the policy does at least as well on the small set as any before. Kept is
    the policy with the best mean of greedy and sampled success on all tasks among those whose greedy success is not
    below that of the start, which is itself a candidate.

    Args:
        rollouts: Of the policy.
        tasks: Held out; none: nothing is measured.
        config: How often and how.
        processes: They share out the tasks.
    """

    def __init__(
        self, rollouts: PolicyRollouts, tasks: Sequence[Task], config: GrpoConfig, processes: Processes
    ) -> None:
        self.tasks = list(tasks)
        self.best: Validation | None = None  # of the policy that is kept
        self.last_step = -1  # that was validated
        self._rollouts = rollouts
        self._config = config
        self._processes = processes
        self._start: Validation | None = None
        self._best_small = float("-inf")
        self._done = 0
        self._without_gain = 0

    def is_due(self, step: int) -> bool:
        """Whether the policy is validated after this step."""
        return bool(self.tasks) and (step % self._config.validation_every == 0 or step == self._config.steps)

    def measure(self, step: int, environment_steps: int) -> tuple[Validation, list[Episode]]:
        """Validate the policy after `step` steps; also gives the sampled episodes.

        Raises:
            GateError: Step 0, and the warm start succeeds too seldom.
            DataError: The environment judged no episode.
        """
        every = self._config.full_validation_every
        size = len(self.tasks) if every is None else min(self._config.small_validation, len(self.tasks))
        played = self._play(self.tasks[:size], step)
        small_score = (_success(played.greedy) + _success(played.sampled)) / 2
        is_full = (
            every is None
            or step in (0, self._config.steps)
            or self._done % every == 0
            or small_score >= self._best_small
        )
        if is_full and size < len(self.tasks):
            rest = self._play(self.tasks[size:], step)
            played = _Played(played.greedy + rest.greedy, played.sampled + rest.sampled)
        if step == 0 and self._config.gate is not None:
            gate = self._config.gate
            check_gate(played.sampled, minimum_success=gate.minimum_success, minimum_tasks=gate.minimum_tasks)
        validation = Validation(
            step=step,
            greedy=_success(played.greedy),
            sampled=_success(played.sampled),
            n_tasks=len(played.greedy),
            environment_steps=environment_steps,
            full=is_full,
            small_score=small_score,
        )
        return validation, played.sampled

    def take(self, validation: Validation) -> bool:
        """Note a validation, also one of before an interruption; whether its policy is the best so far."""
        self._done += 1
        self.last_step = validation.step
        self._best_small = max(self._best_small, validation.small_score)
        if self._start is None:
            self._start = validation
        better = validation.full and (
            self.best is None or (validation.greedy >= self._start.greedy and validation.score > self.best.score)
        )
        if better:
            self.best = validation
        self._without_gain = 0 if better else self._without_gain + 1
        return better

    @property
    def out_of_patience(self) -> bool:
        """Whether so many validations in a row found no better policy that training should stop."""
        patience = self._config.stop.patience
        return patience is not None and self._without_gain >= patience

    def _play(self, tasks: Sequence[Task], step: int) -> _Played:
        mine = self._processes.share(tasks)
        parts = [
            self._processes.gather(
                self._rollouts.collect(mine, purpose="validation", step=step, temperature=temperature)
            )
            for temperature in (0.0, self._config.temperature)
        ]
        return _Played(*parts)


def _success(episodes: Sequence[Episode]) -> float:
    verdicts = [episode.success for episode in episodes if episode.success is not None]
    if not verdicts:
        raise DataError("the environment judged no validation episode; look at the log of the rollouts")
    return float(np.mean(verdicts))
