"""Which tasks come up, and how often."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from offline_arl.environments.protocol import Task
from offline_arl.errors import UsageError
from offline_arl.online.config import CurriculumConfig
from offline_arl.online.curriculum import TaskSchedule

TASKS = [Task(f"{name}-{index}", name, {}) for name in ("easy", "middle", "hard") for index in range(20)]


def schedule(curriculum: CurriculumConfig | None = None, tasks: list[Task] = TASKS, seed: int = 0) -> TaskSchedule:
    return TaskSchedule(tasks, curriculum=curriculum, generator=np.random.default_rng(seed))


def test_without_a_curriculum_every_task_comes_up_once_before_any_comes_twice() -> None:
    drawn = schedule()
    first = [task.task_id for _ in range(6) for task in drawn.draw(10)]
    second = [task.task_id for _ in range(6) for task in drawn.draw(10)]
    assert Counter(first) == Counter(task.task_id for task in TASKS)
    assert first != second
    assert [task.task_id for task in schedule().draw(10)] == first[:10]
    assert [task.task_id for task in schedule(seed=1).draw(10)] != first[:10]


def test_no_task_comes_twice_in_a_step() -> None:
    for curriculum in (None, CurriculumConfig()):
        drawn = schedule(curriculum, TASKS[:7])
        for _ in range(20):
            assert len({task.task_id for task in drawn.draw(5)}) == 5


def test_types_are_drawn_by_the_variance_of_their_success() -> None:
    """Success 1, 1/2 and 0 after many groups: weights 0 + 0.05, 0.25 + 0.05 and 0 + 0.05."""
    drawn = schedule(CurriculumConfig(floor=0.05, memory=0.5))
    for _ in range(40):
        drawn.update({"easy": [1.0], "middle": [0.5], "hard": [0.0]})
    counts = Counter(task.task_type for _ in range(1000) for task in drawn.draw(2))
    shares = {name: counts[name] / 2000 for name in counts}
    assert shares == pytest.approx({"easy": 0.125, "middle": 0.75, "hard": 0.125}, abs=0.03)


def test_running_success_forgets_as_configured() -> None:
    """From 1/2 with memory 0.9: one group at 1 gives 0.55, and then one at 0 gives 0.495."""
    drawn = schedule(CurriculumConfig(memory=0.9))
    drawn.update({"easy": [1.0, 0.0]})
    assert drawn.success(TASKS[0]) == pytest.approx(0.495)


def test_before_anything_is_known_types_come_up_by_their_share() -> None:
    tasks = [Task(f"a-{index}", "a", {}) for index in range(30)] + [Task(f"b-{index}", "b", {}) for index in range(10)]
    drawn = schedule(CurriculumConfig(), tasks)
    counts = Counter(task.task_type for _ in range(1000) for task in drawn.draw(1))
    assert counts["a"] / 1000 == pytest.approx(0.75, abs=0.05)


def test_too_few_tasks_and_doubles_are_refused() -> None:
    with pytest.raises(UsageError, match="attempts 5 tasks and there are 3"):
        schedule(tasks=TASKS[:3]).draw(5)
    with pytest.raises(UsageError, match="share a task_id"):
        schedule(tasks=[TASKS[0], TASKS[0]])
