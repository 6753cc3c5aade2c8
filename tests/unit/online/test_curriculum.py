"""Which tasks come up, and how often."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest
from toys.verdicts import verdict

from offline_arl.environments.protocol import Task
from offline_arl.errors import UsageError
from offline_arl.online.config import CurriculumConfig
from offline_arl.online.curriculum import TaskSchedule

TASKS = [Task(f"{name}-{index}", name, {}) for name in ("easy", "middle", "hard") for index in range(20)]


def schedule(
    curriculum: CurriculumConfig | None = None,
    tasks: list[Task] = TASKS,
    seed: int = 0,
    predictions: Mapping[str, float] | None = None,
) -> TaskSchedule:
    generator = np.random.default_rng(seed)
    return TaskSchedule(tasks, curriculum=curriculum, generator=generator, predictions=predictions)


HELD_OUT = [Task(f"held-out-{name}-{index}", name, {}) for name in ("easy", "middle", "hard") for index in range(10)]
SHARES = {"easy": 9, "middle": 5, "hard": 1}  # successes of ten
EPISODES = [verdict(task, int(task.task_id.split("-")[-1]) < SHARES[task.task_type]) for task in HELD_OUT]


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


def test_tasks_are_drawn_by_the_variance_of_what_is_predicted_for_them() -> None:
    """Of one type with success 1/2, half the tasks are predicted as the type, half at +- 3 nats: p (1 - p) = 0.0452."""
    tasks = TASKS[:20]
    values = {task.task_id: 0.0 if index < 10 else 3.0 * (-1) ** index for index, task in enumerate(tasks)}
    drawn = schedule(CurriculumConfig(floor=0.05, memory=0.9), tasks, predictions=values)
    state = drawn.state()
    state["difficulty"] |= {"slope": 1.0, "success": {"easy": 0.5}, "reference": {"easy": 0.0}}
    drawn.restore(state)
    expected = 0.30 / (0.30 + 0.05 + 0.0452)
    counts = Counter(values[task.task_id] == 0.0 for _ in range(400) for task in drawn.draw(1))
    assert counts[True] / 400 == pytest.approx(expected, abs=0.03)


def test_every_task_is_drawn_as_often_as_its_weight_says_and_evenly() -> None:
    """The easy and the hard have weight 0.05, the middle 0.30: in 160 draws, 10 of each 20 tasks once, 6 times each."""
    drawn = schedule(CurriculumConfig(floor=0.05, memory=0.0))
    drawn.update({"easy": [1.0], "middle": [0.5], "hard": [0.0]})
    counts = Counter(task.task_id for _ in range(160) for task in drawn.draw(1))
    assert all(5 <= counts[task.task_id] <= 7 for task in TASKS if task.task_type == "middle")
    assert all(counts[task.task_id] <= 2 for task in TASKS if task.task_type != "middle")


def test_without_values_types_start_from_their_validation() -> None:
    """9, 5 and 1 of 10, each with two episodes more at the success of all, (15 + 1) / (30 + 2) = 1/2."""
    drawn = schedule(CurriculumConfig())
    drawn.calibrate(EPISODES)
    found = [drawn.success(task) for task in (TASKS[0], TASKS[20], TASKS[40])]
    assert found == pytest.approx([10 / 12, 6 / 12, 2 / 12])


def test_calibration_means_nothing_without_a_curriculum() -> None:
    drawn, other = schedule(), schedule()
    drawn.calibrate(EPISODES)
    assert not drawn.promote(1.0)
    assert drawn.draw(10) == other.draw(10)


def test_excluded_tasks_do_not_come() -> None:
    for curriculum in (None, CurriculumConfig()):
        drawn = schedule(curriculum, TASKS[:12])
        for _ in range(10):
            first = drawn.draw(5)
            more = drawn.draw(4, exclude={task.task_id for task in first} | {"unknown"})
            assert len({task.task_id for task in [*first, *more]}) == 9
        with pytest.raises(UsageError, match="attempts 8 tasks and there are 7 that are open and not in it yet"):
            drawn.draw(8, exclude=[task.task_id for task in first])


def test_excluded_tasks_come_up_later() -> None:
    """What was passed over stays due: after it, both halves have been drawn equally often."""
    drawn = schedule(tasks=TASKS[:20])
    half = [task.task_id for task in TASKS[:10]]
    first = [task.task_id for task in drawn.draw(10, exclude=half)]
    assert sorted([*first, *(task.task_id for task in drawn.draw(10))]) == sorted(task.task_id for task in TASKS[:20])


def test_training_starts_with_the_easiest_level_and_is_promoted() -> None:
    """Three levels are the three types. 0.7 promotes at once, less after three validations, NaN counts as less."""
    drawn = schedule(CurriculumConfig(levels=3, promote_at=0.7, patience=3))
    assert drawn.level == 3
    assert len({task.task_type for task in drawn.draw(60)}) == 3
    drawn.calibrate(EPISODES)
    assert drawn.level == 1
    assert {task.task_type for _ in range(5) for task in drawn.draw(20)} == {"easy"}
    assert [drawn.is_open(task) for task in (TASKS[0], TASKS[20], HELD_OUT[0], HELD_OUT[10])] == [True, False] * 2
    assert [drawn.promote(success) for success in (0.69, 0.7)] == [False, True]
    assert {task.task_type for task in drawn.draw(40)} == {"easy", "middle"}
    assert [drawn.is_open(task) for task in (TASKS[20], TASKS[40], HELD_OUT[10], HELD_OUT[20])] == [True, False] * 2
    assert [drawn.promote(success) for success in (0.0, math.nan, 0.0, 1.0)] == [False, False, True, False]
    assert drawn.level == 3
    assert all(drawn.is_open(task) for task in [*TASKS, *HELD_OUT])


def test_levels_follow_what_is_predicted_for_each_task() -> None:
    """The value tells successes from failures exactly and not by type; the easiest third has the highest values."""
    generator = np.random.default_rng(0)
    values = {task.task_id: float(generator.random()) for task in TASKS}
    held_out = {task.task_id: float(generator.random()) for task in HELD_OUT}
    drawn = schedule(CurriculumConfig(levels=3), predictions=values)
    drawn.calibrate([verdict(task, held_out[task.task_id] > 0.5) for task in HELD_OUT], held_out)
    first = drawn.draw(20)
    lowest = min(drawn.success(task) for task in first)
    assert all(drawn.success(task) <= lowest for task in TASKS if task not in first)
    assert len({task.task_type for task in first}) == 3
    assert np.mean([values[task.task_id] for task in first]) > 0.75
    opened = [held_out[task.task_id] for task in HELD_OUT if drawn.is_open(task)]
    closed = [held_out[task.task_id] for task in HELD_OUT if not drawn.is_open(task)]
    assert np.mean(opened) > 0.75 > 0.5 > np.mean(closed)


def test_levels_stay_as_they_were_made() -> None:
    """Success of the hard type at 1 changes its weight, not its level."""
    drawn = schedule(CurriculumConfig(levels=3, memory=0.0))
    drawn.calibrate(EPISODES)
    drawn.update({"hard": [1.0], "easy": [0.0]})
    assert drawn.is_open(HELD_OUT[0])
    assert not drawn.is_open(HELD_OUT[20])
    assert {task.task_type for task in drawn.draw(20)} == {"easy"}


def test_levels_are_large_enough_for_a_step_or_refused() -> None:
    levels = schedule(CurriculumConfig(levels=3))
    levels.check(20)
    with pytest.raises(UsageError, match="attempts 21 tasks and there are 20 in each of 3 levels"):
        levels.check(21)
    levels.calibrate(EPISODES)
    with pytest.raises(UsageError, match="attempts 21 tasks and there are 20 that are open"):
        levels.draw(21)
    with pytest.raises(UsageError, match="4 levels for 3 tasks"):
        schedule(CurriculumConfig(levels=4), TASKS[:3])


def test_a_restored_schedule_draws_the_same() -> None:
    values = {task.task_id: index / 60 for index, task in enumerate(TASKS)}
    curriculum = CurriculumConfig(levels=2, memory=0.5)
    straight = schedule(curriculum, predictions=values)
    straight.calibrate(EPISODES, {task.task_id: index / 30 for index, task in enumerate(HELD_OUT)})
    straight.draw(7)
    straight.update({"easy": [0.25, 1.0], "middle": [0.5]})
    resumed = schedule(curriculum, seed=5)
    resumed.restore(json.loads(json.dumps(straight.state())))
    for drawn in (straight, resumed):
        assert not drawn.promote(0.5)
    for _ in range(5):
        assert straight.draw(9) == resumed.draw(9)
        for drawn in (straight, resumed):
            drawn.update({"hard": [0.5], "easy": [0.0]})
            drawn.promote(0.5)
        assert straight.level == resumed.level
    assert resumed.level == 2
    assert [straight.success(task) for task in TASKS] == [resumed.success(task) for task in TASKS]
    assert [straight.is_open(task) for task in HELD_OUT] == [resumed.is_open(task) for task in HELD_OUT]


def test_a_state_of_other_tasks_is_refused() -> None:
    with pytest.raises(UsageError, match="saved state is of other training tasks or levels; resume with the same"):
        schedule(tasks=TASKS[:10]).restore(schedule(tasks=TASKS[:11]).state())
