"""Estimates of success: of types, of tasks, and how they start."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
from toys.verdicts import verdict

from offline_arl.environments.protocol import Task
from offline_arl.online.difficulty import Difficulty
from offline_arl.rollouts.episode import Episode


def sigmoid(log_odds: float) -> float:
    return 1.0 / (1.0 + math.exp(-log_odds))


def log_odds(success: float) -> float:
    return math.log(success / (1.0 - success))


def simulated(count: int, *, slope: float, seed: int = 0) -> tuple[list[Episode], dict[str, float]]:
    """Log-odds: slope times (value - mean of the type) plus 1.5 for type a, whose values are low, and -1.5 for b."""
    generator = np.random.default_rng(seed)
    episodes, values = [], {}
    for index in range(count):
        name = "ab"[index % 2]
        task = Task(f"{name}-{index}", name, {})
        within = float(generator.normal(scale=0.3))
        values[task.task_id] = within + (0.2 if name == "a" else 0.8)
        success = generator.random() < sigmoid(slope * within + (1.5 if name == "a" else -1.5))
        episodes.append(verdict(task, bool(success)))
    return episodes, values


def test_a_task_differs_from_its_type_in_log_odds() -> None:
    """Type 0.8, so log 4; one unit of value above its reference at a slope of 2: 0.8 becomes 0.967."""
    found = Difficulty({"high": 1.5, "same": 0.5, "unknown": math.nan}, memory=0.9)
    found.restore({**found.state(), "slope": 2.0, "success": {"a": 0.8}, "reference": {"a": 0.5}})
    estimates = [found.success(Task(name, "a", {})) for name in ("high", "same", "unknown", "missing")]
    assert estimates == pytest.approx([sigmoid(math.log(4) + 2), 0.8, 0.8, 0.8])
    assert found.success(Task("high", "new", {})) == 0.5


def test_a_type_that_always_succeeds_still_has_log_odds() -> None:
    """1 counts as 0.99 where tasks are told apart, so a task far below its type can be hard."""
    found = Difficulty({"low": -10.0}, memory=0.0)
    found.restore({**found.state(), "slope": 1.0, "success": {"a": 1.0}, "reference": {"a": 0.0}})
    assert found.success(Task("low", "a", {})) == pytest.approx(sigmoid(math.log(99) - 10))


def test_few_episodes_say_neither_never_nor_always() -> None:
    """One success of one: (1 + 2 * 2/3) / (1 + 2), the success of all being (1 + 1) / (1 + 2)."""
    found = Difficulty({}, memory=0.9)
    found.calibrate([verdict(Task("x", "a", {}), True), verdict(Task("y", "a", {}), None)], None, [Task("z", "b", {})])
    assert found.type_success("a") == pytest.approx(7 / 9)
    assert found.type_success("b") == pytest.approx(2 / 3)


def test_the_slope_is_that_within_types() -> None:
    """Over all tasks higher values go with failure; of one type a value 0.8 higher adds 0.8 * 4 nats."""
    episodes, values = simulated(3000, slope=4.0)
    low, high = (
        np.mean([bool(episode.success) for episode in episodes if (values[episode.task.task_id] > 0.5) is above])
        for above in (False, True)
    )
    assert low > high + 0.1
    found = Difficulty({"a-low": -0.2, "a-high": 0.6, "b-low": 0.4, "b-high": 1.2}, memory=0.9)
    found.calibrate(episodes, values, [])
    for name in "ab":
        odds = [found.success(Task(f"{name}-{which}", name, {})) for which in ("low", "high")]
        assert log_odds(odds[1]) - log_odds(odds[0]) == pytest.approx(3.2, abs=0.3)


def test_values_that_tell_the_wrong_way_round_are_not_used(caplog: pytest.LogCaptureFixture) -> None:
    episodes, values = simulated(400, slope=-4.0)
    found = Difficulty({"high": 2.0}, memory=0.9)
    with caplog.at_level(logging.WARNING):
        found.calibrate(episodes, values, [Task("high", "a", {})])
    assert found.success(Task("high", "a", {})) == found.type_success("a")
    assert "the curriculum goes by task types alone" in caplog.text


@pytest.mark.parametrize("same", ["success", "values"])
def test_where_nothing_differs_nothing_is_told_apart(same: str) -> None:
    episodes, values = simulated(40, slope=4.0)
    if same == "success":
        episodes = [verdict(episode.task, True) for episode in episodes]
    else:
        values = dict.fromkeys(values, 0.3)
    found = Difficulty({"high": 2.0}, memory=0.9)
    found.calibrate(episodes, values, [Task("high", "a", {})])
    assert found.success(Task("high", "a", {})) == found.type_success("a")


def test_the_running_success_is_compared_with_the_tasks_it_was_measured_on() -> None:
    """Groups on easier tasks than before (values 1 and 1, memory 1/2) move the reference from 0 to 3/4."""
    found = Difficulty({"x": 1.0, "y": 1.0, "z": 0.0}, memory=0.5)
    found.restore({**found.state(), "slope": 2.0, "success": {"a": 0.5}, "reference": {"a": 0.0}})
    found.attempted([Task("x", "a", {}), Task("y", "a", {}), Task("other", "a", {})])
    assert found.success(Task("z", "a", {})) == 0.5  # until their success is told, nothing moves
    found.update({"a": [0.5, 0.5]})
    found.update({"a": [0.5]})
    assert found.success(Task("z", "a", {})) == pytest.approx(sigmoid(-1.5))


def test_types_without_an_episode_are_compared_with_one_another() -> None:
    """Values 0 and 1 of a type that validation lacks: their mean is the reference, so they lie apart evenly."""
    episodes, values = simulated(200, slope=6.0)
    tasks = [Task("x", "c", {}), Task("y", "c", {})]
    found = Difficulty({"x": 0.0, "y": 1.0}, memory=0.9)
    found.calibrate(episodes, values, tasks)
    low, high = (found.success(task) for task in tasks)
    middle = found.type_success("c")
    assert low < middle < high
    assert log_odds(middle) - log_odds(low) == pytest.approx(log_odds(high) - log_odds(middle))
