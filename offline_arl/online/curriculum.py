"""Which tasks the next step attempts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from offline_arl.environments.protocol import Task
from offline_arl.errors import UsageError
from offline_arl.online.config import CurriculumConfig


class TaskSchedule:
    """Draws tasks without replacement, anew when all were drawn; no task comes up twice in a step.

    With a curriculum the task type is drawn first, in proportion to its share of the tasks times p (1 - p) + floor,
    p the running success of its groups: a group of attempts teaches only where some succeed and some fail. Until a
    type was attempted its p is 1/2.
    """

    def __init__(
        self, tasks: Sequence[Task], *, curriculum: CurriculumConfig | None, generator: np.random.Generator
    ) -> None:
        """Hold the tasks.

        Raises:
            UsageError: Two tasks have the same id.
        """
        if len({task.task_id for task in tasks}) != len(tasks):
            raise UsageError("two training tasks share a task_id; groups are told apart by it")
        self._curriculum = curriculum
        self._generator = generator
        self._tasks: dict[str, list[Task]] = defaultdict(list)
        for task in tasks:
            # Without a curriculum there is one queue of all tasks.
            self._tasks["" if curriculum is None else task.task_type].append(task)
        self._queues: dict[str, list[Task]] = {name: [] for name in self._tasks}
        self._success: dict[str, float] = dict.fromkeys(self._tasks, 0.5)
        self._size = len(tasks)

    def check(self, count: int) -> None:
        """Make sure that a step can draw `count` tasks.

        Raises:
            UsageError: There are fewer tasks.
        """
        if count > self._size:
            raise UsageError(f"a step attempts {count} tasks and there are {self._size}; pass more training tasks")

    def draw(self, count: int) -> list[Task]:
        """The tasks of the next step.

        Raises:
            UsageError: There are fewer tasks than `count`.
        """
        self.check(count)
        drawn: dict[str, Task] = {}
        while len(drawn) < count:
            open_types = [
                name for name, tasks in self._tasks.items() if not all(task.task_id in drawn for task in tasks)
            ]
            weights = np.array([self._weight(name) for name in open_types])
            name = open_types[int(self._generator.choice(len(open_types), p=weights / weights.sum()))]
            task = self._next(name)
            drawn.setdefault(task.task_id, task)
        return list(drawn.values())

    def update(self, success: Mapping[str, Sequence[float]]) -> None:
        """Tell the schedule how the groups went: task type to the mean success of each of its groups."""
        if self._curriculum is None:
            return
        memory = self._curriculum.memory
        for name, groups in success.items():
            for value in groups:
                self._success[name] = memory * self._success[name] + (1 - memory) * value

    def _weight(self, name: str) -> float:
        if self._curriculum is None:
            return 1.0
        p = self._success[name]
        return len(self._tasks[name]) * (p * (1 - p) + self._curriculum.floor)

    def _next(self, name: str) -> Task:
        queue = self._queues[name]
        if not queue:
            order = self._generator.permutation(len(self._tasks[name]))
            queue.extend(self._tasks[name][index] for index in order)
        return queue.pop()
