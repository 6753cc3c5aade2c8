"""The check of an environment finds the bugs that environments have."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from offline_arl.environments import load
from offline_arl.environments.checking import check
from offline_arl.environments.protocol import Examples, StepResult, Task
from offline_arl.environments.support_desk import family
from offline_arl.environments.support_desk.environment import SupportDesk, SupportDeskFamily
from offline_arl.errors import UsageError
from offline_arl.trajectories.schema import Message, Outcome

TASKS = family.tasks("train", 40, seed=0)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_the_support_desk_judges_rightly(split: str) -> None:
    tasks = family.tasks(split, 300, seed=1)
    report = check(family, tasks)
    assert (report.tasks, report.examples, report.problems) == (300, 600, [])


def family_of(environment: type[SupportDesk]) -> SupportDeskFamily:
    class Broken(SupportDeskFamily):
        def make(self) -> SupportDesk:
            return environment()

        def examples(self, task: Task) -> Examples:
            return family.examples(task)

    return Broken()


class Lenient(SupportDesk):
    """Its judge is content with everything."""

    def outcome(self) -> Outcome:
        return Outcome("scored", success=True, score=1.0)


class Silent(SupportDesk):
    """Its judge says nothing."""

    def outcome(self) -> Outcome:
        return Outcome()


class Remembering(SupportDesk):
    """Pays less in every further episode."""

    paid = 0

    def step(self, message: Message) -> StepResult:
        self.paid += 1
        result = super().step(message)
        return replace(result, reward=result.reward - 0.01 * self.paid)


class Shared(SupportDesk):
    """All environments share a counter."""

    paid: list[int] = []  # noqa: RUF012 (the fault)

    def step(self, message: Message) -> StepResult:
        self.paid.append(1)
        result = super().step(message)
        return replace(result, reward=result.reward - 0.01 * (len(self.paid) > 6))


class Forgetful(SupportDesk):
    """Its snapshot does not know that the episode went on."""

    def restore(self, state: bytes) -> None:
        ended = self._ended
        super().restore(state)
        self._ended = ended


class Endless(SupportDesk):
    """Never over."""

    def step(self, message: Message) -> StepResult:
        result = super().step(message)
        self._ended = False
        return replace(result, terminated=False, truncated=False)


class Crashing(SupportDesk):
    """Raises."""

    def step(self, message: Message) -> StepResult:
        raise KeyError("order")


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        (Lenient, "the judge says success=True"),
        (Silent, "no verdict"),
        (Remembering, "something is left of the first"),
        (Shared, "not determined by the task|left of the first|restored snapshot"),
        (Forgetful, "fails with UsageError: the episode has ended"),
        (Endless, "is not over after"),
        (Crashing, "the environment fails with KeyError: 'order'"),
    ],
)
def test_each_bug_is_named(environment: type[SupportDesk], text: str) -> None:
    problems = check(family_of(environment), TASKS).problems
    assert problems
    assert all(re.search(text, problem.text) for problem in problems), problems[:2]


def test_examples_that_fail_and_ids_that_repeat_are_told() -> None:
    class NoExamples(SupportDeskFamily):
        def examples(self, task: Task) -> Examples:
            raise ValueError("none")

    report = check(NoExamples(), [TASKS[0], TASKS[0]])
    assert [problem.text for problem in report.problems] == [
        "examples fail with ValueError: none", "two tasks have this id", "examples fail with ValueError: none",
    ]  # fmt: skip


def test_an_environment_without_examples_is_told() -> None:
    class Plain:
        name = "plain"

        def make(self) -> Any: ...
        def tasks(self, split: str, count: int, *, seed: int) -> Sequence[Task]: ...

    with pytest.raises(UsageError, match="'plain' has no examples"):
        check(Plain(), [])  # type: ignore[arg-type]
    assert load("support_desk") is family
