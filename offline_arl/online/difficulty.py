"""How likely each task succeeds: the running success of its type, told apart by what a critic predicts."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_arl.environments.protocol import Task
from offline_arl.rollouts.episode import Episode

logger = logging.getLogger(__name__)

PRIOR_EPISODES = 2.0  # that the success of a type starts with, at the success of all types
UNKNOWN = 0.5
_NEVER, _ALWAYS = 0.01, 0.99  # bounds of success that log-odds are taken of
_SMALLEST_SPREAD = 1e-9  # of values that tell tasks apart


class Difficulty:
    """Estimates of success, each the sum of log-odds: of the type now, and by how much the task differs from its type.

    A type's success is a running mean over groups of attempts. By how much a task differs is its predicted log-odds
    less those of the tasks that the running mean was measured on, which are not all tasks of the type: tasks of
    intermediate difficulty are drawn more often.

    Args:
        values: V of the first state of each task (`task_id`) under a critic; tasks that are missing or not finite are
            as hard as their type.
        memory: Of the running means, a group.
    """

    def __init__(self, values: Mapping[str, float], *, memory: float) -> None:
        self._values = {task: float(value) for task, value in values.items() if math.isfinite(value)}
        self._memory = memory
        self._slope = 0.0  # log-odds of success a unit of return
        self._success: dict[str, float] = {}
        self._reference: dict[str, float] = {}  # running mean of the values of the tasks behind that success
        self._attempted: dict[str, list[float]] = {}  # values of the tasks of a type that no success is told of yet

    def type_success(self, name: str) -> float:
        """The running success of a task type; 1/2 where nothing is known."""
        return self._success.get(name, UNKNOWN)

    def success(self, task: Task) -> float:
        """The estimate for one task."""
        base = self.type_success(task.task_type)
        value, reference = self._values.get(task.task_id), self._reference.get(task.task_type)
        if value is None or reference is None or self._slope == 0.0:
            return base
        return _sigmoid(_log_odds(base) + self._slope * (value - reference))

    def attempted(self, tasks: Sequence[Task]) -> None:
        """Take note of which tasks the next success is measured on."""
        for task in tasks:
            if task.task_id in self._values:
                self._attempted.setdefault(task.task_type, []).append(self._values[task.task_id])

    def update(self, success: Mapping[str, Sequence[float]]) -> None:
        """Task type to the mean success of each of its groups, of the tasks attempted since the last update."""
        for name, groups in success.items():
            for value in groups:
                self._success[name] = self._running(self._success.get(name, UNKNOWN), value)
            for value in self._attempted.get(name, ()):
                self._reference[name] = self._running(self._reference.get(name, value), value)
        self._attempted.clear()

    def calibrate(self, episodes: Sequence[Episode], values: Mapping[str, float] | None, tasks: Sequence[Task]) -> None:
        """Start from sampled episodes on held-out tasks.

        The success of each type is its share of successes, drawn towards the success of all types as by
        `PRIOR_EPISODES` episodes. The predicted log-odds of a task are linear in its value, with the slope of a
        logistic regression on the episodes in which every type has an intercept of its own. A negative slope says that
        the values tell nothing, and none is used.

        Args:
            episodes: Of the policy; those without a verdict do not count.
            values: Of their tasks.
            tasks: That will be drawn; those of types without an episode are compared with one another.
        """
        self._values |= {task: float(value) for task, value in (values or {}).items() if math.isfinite(value)}
        judged = [(episode.task, episode.success) for episode in episodes if episode.success is not None]
        by_type: dict[str, list[bool]] = defaultdict(list)
        for task, success in judged:
            by_type[task.task_type].append(success)
        overall = (sum(success for _, success in judged) + PRIOR_EPISODES * UNKNOWN) / (len(judged) + PRIOR_EPISODES)
        for name in {*by_type, *(task.task_type for task in tasks)}:
            found = by_type[name]
            self._success[name] = (sum(found) + PRIOR_EPISODES * overall) / (len(found) + PRIOR_EPISODES)
        known = [(task, success) for task, success in judged if task.task_id in self._values]
        self._reference = self._type_values(tasks) | self._type_values([task for task, _ in known])
        self._slope = _slope(
            np.array([self._values[task.task_id] for task, _ in known]),
            [task.task_type for task, _ in known],
            [success for _, success in known],
        )

    def _running(self, before: float, value: float) -> float:
        return self._memory * before + (1 - self._memory) * value

    def _type_values(self, tasks: Sequence[Task]) -> dict[str, float]:
        """The mean value of each type."""
        found: dict[str, list[float]] = defaultdict(list)
        for task in tasks:
            if task.task_id in self._values:
                found[task.task_type].append(self._values[task.task_id])
        return {name: float(np.mean(values)) for name, values in found.items()}

    def state(self) -> dict[str, Any]:
        """All of it, as JSON."""
        return {
            "values": self._values,
            "slope": self._slope,
            "success": self._success,
            "reference": self._reference,
            "attempted": self._attempted,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave."""
        self._values, self._slope = dict(state["values"]), state["slope"]
        self._success, self._reference = dict(state["success"]), dict(state["reference"])
        self._attempted = {name: list(values) for name, values in state["attempted"].items()}


def _slope(values: NDArray[np.float64], types: Sequence[str], success: Sequence[bool]) -> float:
    """Log-odds a unit of return, by a logistic regression with standard normal priors, values standardized."""
    if len(set(success)) < 2:
        return 0.0
    from sklearn.linear_model import LogisticRegression

    names = sorted(set(types))
    of_type = np.array(types)[:, None] == np.array(names)  # [N, types]
    within = values - of_type @ (of_type.T @ values / of_type.sum(axis=0))
    spread = float(within.std())
    if spread < _SMALLEST_SPREAD:
        return 0.0
    inputs = np.column_stack([within / spread, of_type])
    slope = float(LogisticRegression(C=1.0).fit(inputs, success).coef_[0, 0]) / spread
    if slope < 0.0:
        logger.warning(
            "of one type, tasks that the critic values higher succeed less often on %d validation episodes: "
            "the curriculum goes by task types alone", len(success),
        )  # fmt: skip
        return 0.0
    return slope


def _log_odds(success: float) -> float:
    bounded = min(max(success, _NEVER), _ALWAYS)
    return math.log(bounded / (1.0 - bounded))


def _sigmoid(log_odds: float) -> float:
    return 1.0 / (1.0 + math.exp(-log_odds))
