"""`toys.lookup` with things that go wrong: in the judge, in what is paid, in the harness and in the sampler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from offline_arl.environments.protocol import EpisodeStart, StepResult, Task
from offline_arl.trajectories.schema import Message, Outcome
from toys.lookup import ANSWERS, Lookup, LookupFamily


class LookupVariant(LookupFamily):
    """A family of lookups of another kind."""

    def __init__(self, make: Callable[[], Lookup]) -> None:
        self._make = make

    def make(self) -> Lookup:
        return self._make()


class Misled(Lookup):
    """For half of the keys of each type the tool says a letter that is not the answer."""

    def outcome(self) -> Outcome:
        told, key = self._task.payload["answer"], int(self._task.payload["key"])
        right = told if key // 6 % 2 else ANSWERS[(ANSWERS.index(told) + 1) % 4]
        success = self._answer.strip() == right
        return Outcome("scored", success=success, score=float(success), scorer="lookup")


class Constant(Lookup):
    """Every attempt fails, whatever the agent says."""

    def outcome(self) -> Outcome:
        return Outcome("scored", success=False, score=0.0, scorer="lookup")


class Contrary(Lookup):
    """Pays 1 for a failure and -1 for a success."""

    def step(self, message: Message) -> StepResult:
        result = super().step(message)
        if result.terminated or result.truncated:
            return replace(result, reward=-1.0 if self.outcome().success else 1.0)
        return result


class OddJudgeAway(Lookup):
    """Episodes of the task type "odd" always end in an error of the harness."""

    def reset(self, task: Task) -> EpisodeStart:
        if task.task_type == "odd":
            raise RuntimeError("no database of odd keys")
        return super().reset(task)


class OddNeverRight(Lookup):
    """The judge of the task type "odd" has no right answer."""

    def outcome(self) -> Outcome:
        outcome = super().outcome()
        if self._task.task_type == "odd":
            return Outcome("scored", success=False, score=0.0, scorer="lookup")
        return outcome


class PaysForLength(Lookup):
    """Pays for every character of what the agent says, right or wrong; nothing that is said ends the episode."""

    def step(self, message: Message) -> StepResult:
        return replace(super().step(message), reward=len(message.text) / 10)


class OnlyA(Lookup):
    """Right is "A", and for half of the keys nothing: who always says "A" has learned all there is to learn."""

    def outcome(self) -> Outcome:
        success = self._answer.strip() == "A" and int(self._task.payload["key"]) // 6 % 2 == 1
        return Outcome("scored", success=success, score=float(success), scorer="lookup")
