"""What a trajectory recorded, as an environment can play it back."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from offline_arl.environments.protocol import EpisodeStart, tool_names
from offline_arl.trajectories.schema import Message, Outcome, ToolCall, Trajectory

MISS = "not_recorded"  # type of the error of a tool message that answers a call which nobody made in the recordings


class Recording(msgspec.Struct, frozen=True, dict=True, omit_defaults=True):
    """One attempt at a task: what came before its first step, its steps, and what answered each."""

    trajectory_id: str
    task_id: str
    task_type: str
    split: str
    opening: list[Message]
    tools: str  # JSON text of the tools in OpenAI form
    steps: list[Message]
    replies: list[list[Message]]  # to each step
    outcome: Outcome
    terminated: bool = False
    truncated: bool = False
    stop_reason: str | None = None

    @cached_property
    def turns(self) -> list[Turn]:
        """The steps in the form in which they are compared."""
        return [turn_of(step) for step in self.steps]

    @cached_property
    def call_keys(self) -> list[CallKey]:
        """All calls in order."""
        return [key for turn in self.turns for key in turn.calls]

    @property
    def tool_names(self) -> set[str]:
        """The tools that it offers, and those that were called all the same."""
        try:
            offered = tool_names(EpisodeStart([], msgspec.json.decode(self.tools, type=list[dict[str, Any]])))
        except (msgspec.DecodeError, RecursionError):
            offered = []  # see `is_whole`
        return {*offered, *(key.name for key in self.call_keys)}

    @cached_property
    def results(self) -> dict[CallKey, list[Message]]:
        """What answered each call, in the order in which it was made; calls that nothing answered are missing."""
        found: dict[CallKey, list[Message]] = {}
        for step, replies in zip(self.steps, self.replies, strict=True):
            for call, result in answered(step.tool_calls, replies):
                if result is not None:
                    found.setdefault(call_key(call), []).append(result)
        return found

    @cached_property
    def user_replies(self) -> list[list[Message]]:
        """What followed each step that called no tool and did not end the attempt."""
        return [
            replies
            for step, replies in zip(self.steps, self.replies, strict=True)
            if not step.tool_calls and any(reply.role == "user" for reply in replies)
        ]

    @cached_property
    def opening_key(self) -> str:
        """Equal for attempts that begin with the same messages and tools."""
        return hashlib.sha256(msgspec.json.encode([self.task_id, _spoken(self.opening), self.tools])).hexdigest()

    def agrees_with(self, other: Recording) -> bool:
        """Whether one environment can play both: as long as their steps are the same, so is what answers them.

        Users who are played by a model, or tools that answer by chance, make recordings that disagree.
        """
        for number, turns in enumerate(zip(self.turns, other.turns, strict=False)):
            if turns[0] != turns[1]:
                return True
            if _spoken(self.replies[number]) != _spoken(other.replies[number]):
                return False
        return len(self.steps) == len(other.steps) and self.outcome == other.outcome


class CallKey(NamedTuple):
    """A call as it is compared: the spelling of its JSON does not count, its values do."""

    name: str
    arguments: str


class Turn(NamedTuple):
    """An assistant message as it is compared."""

    text: str
    calls: tuple[CallKey, ...]


def call_key(call: ToolCall) -> CallKey:
    """What a call is compared by.

    >>> from offline_arl.trajectories.schema import tool_call
    >>> call_key(tool_call("f", '{"b": 1, "a": 2}')) == call_key(tool_call("f", '{"a":2,"b":1}'))
    True
    """
    if call.arguments is None:
        return CallKey(call.name, call.arguments_raw)
    return CallKey(call.name, msgspec.json.encode(call.arguments, order="sorted").decode())


def turn_of(message: Message) -> Turn:
    """What an assistant message is compared by."""
    return Turn(message.text.strip(), tuple(call_key(call) for call in message.tool_calls))


def answered(calls: Sequence[ToolCall], replies: Sequence[Message]) -> list[tuple[ToolCall, Message | None]]:
    """Each call with the tool message that answers it: by id, else in order."""
    left = [reply for reply in replies if reply.role == "tool"]
    found: list[tuple[ToolCall, Message | None]] = []
    for call in calls:
        by_id = next((reply for reply in left if call.id is not None and reply.tool_call_id == call.id), None)
        in_order = left[0] if left and (call.id is None or left[0].tool_call_id is None) else None
        result = by_id or in_order
        if result is not None:
            left.remove(result)
        found.append((call, result))
    return found


def _spoken(messages: Sequence[Message]) -> list[tuple[str, str, list[CallKey]]]:
    """Messages as they are compared: their ids and spelling do not count."""
    return [(message.role, message.text, [call_key(call) for call in message.tool_calls]) for message in messages]


def recording_of(trajectory: Trajectory, *, split: str) -> Recording | None:
    """The recording of a trajectory; None where it has no step, or its harness failed."""
    steps = trajectory.step_indices()
    if not steps or trajectory.outcome.status == "infrastructure_error":
        return None
    ends = [*steps[1:], len(trajectory.messages)]
    context = trajectory.context_at(steps[0])
    return Recording(
        trajectory_id=trajectory.trajectory_id,
        task_id=trajectory.task_id or trajectory.trajectory_id,
        task_type=trajectory.task_type or "unknown",
        split=split,
        opening=[_plain(message) for message in trajectory.messages[: steps[0]]],
        tools=context.tools or "[]",
        steps=[_plain(trajectory.messages[index]) for index in steps],
        replies=[
            [_plain(message) for message in trajectory.messages[index + 1 : end]]
            for index, end in zip(steps, ends, strict=True)
        ],
        outcome=trajectory.outcome,
        terminated=trajectory.terminated,
        truncated=trajectory.truncated,
        stop_reason=trajectory.stop_reason,
    )


def is_whole(recording: Recording) -> bool:
    """Whether a recording can be played: it has steps, what answered each, and tools in OpenAI form."""
    try:
        msgspec.json.decode(recording.tools, type=list[dict[str, Any]])
    except (msgspec.DecodeError, RecursionError):
        return False
    return 0 < len(recording.steps) == len(recording.replies)


def _plain(message: Message) -> Message:
    """Without what only training needs."""
    return msgspec.structs.replace(message, tokens=None) if message.tokens is not None else message
