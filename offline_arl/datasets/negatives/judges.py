"""Judges that say why a step is wrong. A negative that no judge convicts is not used: it may be right.

A judge may only say what it can prove. The schema proves that a call is malformed; the log proves that a value could
not be known yet, that a call repeats what was answered already, or that the world refused it; an environment proves
that the attempt fails with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec

from offline_arl.datasets.pairs.pair import call_key
from offline_arl.environments.protocol import EnvironmentFamily, Task, closing
from offline_arl.trajectories.acceptance import checker_for
from offline_arl.trajectories.schema import Message, ToolCall, Trajectory, is_policy_message

# What can be looked up in a conversation: words of letters and digits, also with the signs that ids have in them.
_WORD = re.compile(r"[^\W_]+(?:[-_.:/@][^\W_]+)*")


@dataclass(frozen=True)
class Candidate:
    """A step in place of a logged one.

    Attributes:
        trajectory: The attempt.
        position: Index of the message whose place it takes.
        message: The step.
        resume: Index of the logged message that would follow what the world answers: `position` where the candidate
            was put in before the logged step, `position + 1` where it stands in its place.
    """

    trajectory: Trajectory
    position: int
    message: Message
    resume: int


class Verdict(NamedTuple):
    """Who says that a step is wrong, and why."""

    judge: str
    reason: str


class Judge(Protocol):
    """Says why a candidate is wrong, or None where it cannot tell."""

    def __call__(self, candidate: Candidate) -> Verdict | None:
        """The verdict."""
        ...


def schema_judge(candidate: Candidate) -> Verdict | None:
    """A call that the tools in force do not accept is wrong. Says nothing where the log has no tools."""
    tools = candidate.trajectory.context_at(candidate.position).tools
    if tools is None:
        return None
    problems = map(checker_for(tools).problem, candidate.message.tool_calls)
    found = next((problem for problem in problems if problem is not None), None)
    return None if found is None else Verdict("schema", f"{found.kind}: {found.text}")


def log_judge(candidate: Candidate) -> Verdict | None:
    """What the attempt itself shows: a value that nobody had named yet, a repeated call, a call that was refused."""
    for judge in (_unknown_value, _repetition, _refused_elsewhere):
        reason = judge(candidate)
        if reason is not None:
            return Verdict("log", reason)
    return None


@dataclass
class EnvironmentJudge:
    """Replays the attempt with the candidate in it: wrong is what makes a successful attempt fail.

    It says nothing about attempts whose replay does not succeed without the candidate either (an environment that is
    not deterministic, or another one), and nothing where the candidate only makes the attempt too long.

    Attributes:
        family: The environment.
        task_of: The task of an attempt, None where it is not known.
    """

    family: EnvironmentFamily
    task_of: Callable[[Trajectory], Task | None]
    _sound: dict[str, bool] = field(default_factory=dict)

    def __call__(self, candidate: Candidate) -> Verdict | None:
        """The verdict."""
        trajectory = candidate.trajectory
        task = self.task_of(trajectory)
        if task is None:
            return None
        if trajectory.trajectory_id not in self._sound:
            self._sound[trajectory.trajectory_id] = self._success(task, _steps(trajectory.messages)) is True
        if not self._sound[trajectory.trajectory_id]:
            return None
        before = _steps(trajectory.messages[: candidate.position])
        after = _steps(trajectory.messages[candidate.resume :])
        if self._success(task, [*before, candidate.message, *after]) is not False:
            return None
        return Verdict(f"environment {self.family.name}", "the attempt fails with it and succeeds without it")

    def _success(self, task: Task, steps: Sequence[Message]) -> bool | None:
        """Whether the environment passes an attempt of these steps; None where it was cut off, or judges nothing."""
        with closing(self.family.make()) as environment:
            environment.reset(task)
            for message in steps:
                result = environment.step(message)
                if result.truncated:
                    return None
                if result.terminated:
                    break
            return environment.outcome().success


def is_failure(answer: Message) -> bool:
    """Whether the result of a call says that it failed: the log marks it, or it is an error in JSON or in words."""
    if answer.error is not None:
        return True
    text = answer.text.lstrip()
    if text[:6].lower() == "error:":
        return True
    if not text.startswith("{"):
        return False
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return isinstance(value, dict) and bool(value.get("error"))


def _words(text: str) -> set[str]:
    """What can be looked up: the words and ids of a text, in lower case."""
    return {word.lower() for word in _WORD.findall(text)}


def _argument_words(call: ToolCall) -> set[str]:
    """The words in the values of a call's arguments; true, false and null are no values of the world."""
    found: set[str] = set()
    pending: list[Any] = [call.arguments]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
        elif isinstance(value, str | int | float) and not isinstance(value, bool):
            found |= _words(str(value))
    return found


def _is_name(word: str) -> bool:
    """Whether a word names one thing of the world (an id, a long number), so that nobody says it by chance."""
    digits = sum(character.isdigit() for character in word)
    return digits >= 4 or (digits > 0 and len(word) >= 3 and digits < len(word))


class _FirstMentions:
    """For each word of a conversation the message that says it first; of the last conversation that was asked for."""

    def __init__(self) -> None:
        self._of: Trajectory | None = None
        self._first: dict[str, int] = {}

    def __call__(self, trajectory: Trajectory) -> dict[str, int]:
        if self._of is not trajectory:
            self._of, self._first = trajectory, {}
            for context in trajectory.contexts:
                for word in _words(context.tools or ""):
                    self._first.setdefault(word, -1)
            for index, message in enumerate(trajectory.messages):
                said = [message.text, message.reasoning, *(call.arguments_raw for call in message.tool_calls)]
                for word in _words(" ".join(said)):
                    self._first.setdefault(word, index)
        return self._first


_first_mentions = _FirstMentions()


def _unknown_value(candidate: Candidate) -> str | None:
    """A value that the world names for the first time after this step: the agent cannot know it, it can only guess.

    What the agent itself says before the world does can be worked out (a sum, a date), and proves nothing.
    """
    stated = _words(candidate.message.text).union(*map(_argument_words, candidate.message.tool_calls))
    messages, first = candidate.trajectory.messages, _first_mentions(candidate.trajectory)
    revealed = [
        word
        for word in stated
        if _is_name(word) and first.get(word, -1) >= candidate.position and not is_policy_message(messages[first[word]])
    ]
    return f"{min(revealed)!r} is not known before the answer to a later step" if revealed else None


def _repetition(candidate: Candidate) -> str | None:
    """The same call was answered without an error, and nobody but the agent has said anything since."""
    if len(candidate.message.tool_calls) != 1 or candidate.message.text.strip():
        return None
    wanted = call_key(candidate.message.tool_calls[0])
    messages = candidate.trajectory.messages[: candidate.position]
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if message.role == "user":
            return None
        if is_policy_message(message) and any(call_key(call) == wanted for call in message.tool_calls):
            answers = [answer for answer in messages[index + 1 :] if answer.role == "tool"]
            is_last_call = not any(is_policy_message(later) and later.tool_calls for later in messages[index + 1 :])
            if is_last_call and answers and not any(map(is_failure, answers)):
                return "the same call was just answered"
            return None
    return None


def _refused_elsewhere(candidate: Candidate) -> str | None:
    """The same call stands elsewhere in the attempt, and the world refused it each time."""
    if len(candidate.message.tool_calls) != 1:
        return None
    wanted = call_key(candidate.message.tool_calls[0])
    messages = candidate.trajectory.messages
    answers = [
        messages[index + 1]
        for index, message in enumerate(messages[:-1])
        if is_policy_message(message) and len(message.tool_calls) == 1 and call_key(message.tool_calls[0]) == wanted
    ]
    refused = [answer.role == "tool" and is_failure(answer) for answer in answers]
    return "elsewhere in the attempt the same call was refused" if refused and all(refused) else None


def _steps(messages: Sequence[Message]) -> list[Message]:
    return [message for message in messages if is_policy_message(message)]
