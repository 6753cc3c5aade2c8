"""Every task of a probe has an example of success and one of failure, and each ends as it should."""

from __future__ import annotations

import pytest

from offline_arl import optional
from offline_arl.environments import load
from offline_arl.environments.checking import CheckReport, check
from offline_arl.environments.gymnasium_text import GymnasiumFamily
from offline_arl.environments.protocol import HasExamples

SPLITS = ("train", "validation", "test")


def checked(name: str, count: int) -> CheckReport:
    family = load(name)
    assert isinstance(family, HasExamples)
    return check(family, [task for split in SPLITS for task in family.tasks(split, count, seed=3)])


@pytest.mark.parametrize("name", ["random_walks", "double_t_maze", "key_to_door", "stitching"])
def test_the_judges_of_probes_are_right_about_every_example(name: str) -> None:
    report = checked(name, 30)
    assert report.problems == []
    assert (report.examples, report.without) == (2 * report.tasks, {"success": 0, "failure": 0})


def test_examples_of_random_walks_are_shortest() -> None:
    family = load("random_walks")
    assert isinstance(family, HasExamples)
    for task in family.tasks("test", 20, seed=0):
        success = family.examples(task).success
        assert success is not None
        assert f"distance_{len(success)}" == task.task_type


@pytest.mark.skipif(not optional.available("gymnasium"), reason="gymnasium is not installed")
@pytest.mark.parametrize("name", ["FrozenLake-v1", "CliffWalking-v1", "Taxi-v4"])
def test_gymnasiums_toy_problems_have_both_examples_with_all_their_dice(name: str) -> None:
    """The cliff pays nothing but -1: arriving is success there, by a return of -13."""
    report = checked(f"gym:{name}", 4)
    assert report.problems == []
    assert (report.examples, report.without) == (2 * report.tasks, {"success": 0, "failure": 0})
    if name == "CliffWalking-v1":
        family = GymnasiumFamily(name)
        (task,) = family.tasks("test", 1, seed=0)
        success = family.examples(task).success
        assert success is not None
        assert len(success) == 13


@pytest.mark.skipif(not optional.available("gymnasium"), reason="gymnasium is not installed")
def test_where_nobody_knows_how_to_succeed_there_is_no_example_and_the_report_says_so() -> None:
    report = checked("gym:CartPole-v1", 2)
    assert (report.problems, report.without) == ([], {"success": 6, "failure": 0})
