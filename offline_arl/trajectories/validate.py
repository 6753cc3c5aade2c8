"""What a trajectory must satisfy to enter a store, and what is only worth a warning."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Literal, NamedTuple

import msgspec

from offline_arl.trajectories.schema import Message, Outcome, Trajectory
from offline_arl.trajectories.step_table import RefusedCall, steps_of
from offline_arl.trajectories.text_cache import cached_by_text

Severity = Literal["error", "warning"]


class Problem(NamedTuple):
    """One finding. An error keeps the trajectory out of the store; a warning does not."""

    code: str  # one of `CODES`
    severity: Severity
    where: str  # path into the record, for example "messages[3].tokens"
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


# What each code means. Codes are stable: reports, filters and other programs go by them.
# Errors: what would break a reader or a loss.
ERRORS: Mapping[str, str] = {
    "empty_id": "the trajectory has no id",
    "no_messages": "the trajectory has no messages",
    "contradictory_end": "the ending is both terminated and truncated",
    "number_not_finite": "a score is infinite or not a number",
    "index_out_of_range": "an index points outside of the messages, or contexts are out of order",
    "unreadable_tools": "tools are not a list of objects in OpenAI form",
    "logprobs_mismatch": "log-probabilities do not fit their tokens",
}
# Warnings: what real logs do.
WARNINGS: Mapping[str, str] = {
    "invalid_json": "a call's arguments are not a JSON object",
    "unknown_tool": "a call names a tool that was not offered",
    "invalid_arguments": "a call's arguments do not fit the schema of the tool",
    "unanswered_call": "a call has no result, and the conversation went on",
    "unnamed_result": "a tool result does not say which call it answers",
    "orphan_result": "a tool result answers a call that was never made",
    "repeated_result": "a call has several results",
    "reused_call_id": "two calls have the same id",
    "time_reversal": "a message is earlier than the one before it, or the end earlier than the beginning",
    "impossible_reward": "the outcome contradicts itself",
    "empty_message": "an assistant message holds nothing",
    "no_policy_step": "no message was made by the policy under study",
}
CODES: Mapping[str, str] = {**ERRORS, **WARNINGS}
_TEXT_LIMIT = 300


def errors_of(trajectory: Trajectory) -> list[Problem]:
    """The findings that keep a trajectory out of a store."""
    return [problem for problem in structural_problems(trajectory) if problem.severity == "error"]


def problems_of(trajectory: Trajectory) -> list[Problem]:
    """Every finding about `trajectory` (see `CODES`), errors first."""
    found = structural_problems(trajectory)
    refused: list[RefusedCall] = []
    if not any(problem.severity == "error" for problem in found):  # tools that are unreadable cannot judge calls
        if not steps_of(trajectory, refused).rows:
            found.append(no_policy_step())
        found.extend(map(refused_call, refused))
    return sorted(found, key=lambda problem: problem.severity)


def structural_problems(trajectory: Trajectory) -> list[Problem]:
    """The findings that need no look at calls' arguments."""
    found: list[Problem] = []
    _check_record(trajectory, found)
    _check_contexts(trajectory, found)
    _check_outcome(trajectory.outcome, found)
    _check_messages(trajectory.messages, found)
    return found


def refused_call(refused: RefusedCall) -> Problem:
    """The finding about a call that the tools in force would not accept."""
    where = f"messages[{refused.message_index}].tool_calls[{refused.call_index}]"
    return _warning(refused.problem.kind, where, refused.problem.text[:_TEXT_LIMIT])


def no_policy_step() -> Problem:
    """The finding about a trajectory without a step."""
    return _warning("no_policy_step", "messages", "no message was made by the policy under study")


def _error(code: str, where: str, text: str) -> Problem:
    return Problem(code, "error", where, text)


def _warning(code: str, where: str, text: str) -> Problem:
    return Problem(code, "warning", where, text)


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer that no float can hold
        return False


def _check_record(trajectory: Trajectory, found: list[Problem]) -> None:
    if not trajectory.trajectory_id:
        found.append(_error("empty_id", "trajectory_id", "is empty"))
    if not trajectory.messages:
        found.append(_error("no_messages", "messages", "there are none"))
    if trajectory.terminated and trajectory.truncated:
        found.append(_error("contradictory_end", "terminated", "a trajectory cannot be both terminated and truncated"))
    if trajectory.outcome.score is not None or trajectory.outcome.components:
        for name, number in (("score", trajectory.outcome.score), *trajectory.outcome.components.items()):
            if number is not None and not _is_finite(number):
                found.append(_error("number_not_finite", f"outcome, {name}", "is not a finite number"))
    for position, score in enumerate(trajectory.scores):
        if score.value is not None and not _is_finite(score.value):
            found.append(_error("number_not_finite", f"scores[{position}].value", "is not a finite number"))
        if score.message_index is not None and not 0 <= score.message_index < len(trajectory.messages):
            found.append(
                _error(
                    "index_out_of_range", f"scores[{position}].message_index", f"{score.message_index} is no message"
                )
            )
    began, ended = trajectory.started_at, trajectory.ended_at
    if began is not None and ended is not None and _is_earlier(ended, began):
        found.append(_warning("time_reversal", "ended_at", f"{ended[:40]} is before started_at, {began[:40]}"))
    branch = trajectory.branch
    if branch is not None and not 0 <= branch.message_index <= len(trajectory.messages):
        found.append(
            _error("index_out_of_range", "branch.message_index", f"{branch.message_index} is outside of the messages")
        )


def _check_contexts(trajectory: Trajectory, found: list[Problem]) -> None:
    previous = -1
    for number, context in enumerate(trajectory.contexts):
        where = f"contexts[{number}]"
        if context.start <= previous or context.start > len(trajectory.messages):
            found.append(
                _error(
                    "index_out_of_range",
                    f"{where}.start",
                    f"{context.start} is out of order or outside of the messages",
                )
            )
        previous = context.start
        if context.tools is not None and not _is_tool_list(context.tools):
            found.append(
                _error("unreadable_tools", f"{where}.tools", "is not the JSON text of a list of tools in OpenAI form")
            )


class _Function(msgspec.Struct):
    name: str


class _Tool(msgspec.Struct):
    function: _Function


_tools_decoder = msgspec.json.Decoder(list[_Tool])


@cached_by_text(entries=1024)
def _is_tool_list(text: str) -> bool:
    try:
        _tools_decoder.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True


def _token_problems(message: Message, index: int) -> list[Problem]:
    tokens = message.tokens
    if tokens is None or tokens.logprobs is None:
        return []
    where = f"messages[{index}].tokens.logprobs"
    if len(tokens.logprobs) != len(tokens.token_ids):
        return [
            _error("logprobs_mismatch", where, f"{len(tokens.logprobs)} values for {len(tokens.token_ids)} token ids")
        ]
    if not all(map(_is_finite, tokens.logprobs)):
        return [_error("logprobs_mismatch", where, "a value is not a finite number")]
    return []


def _check_outcome(outcome: Outcome, found: list[Problem]) -> None:
    success, score = outcome.success, outcome.score
    if outcome.status == "scored":
        if success is None and score is None:
            found.append(_warning("impossible_reward", "outcome", "is scored and has neither success nor score"))
        # Only the two ends of the usual scale from 0 to 1: what lies between is the scorer's own affair.
        if (success is True and score == 0) or (success is False and score == 1):
            found.append(_warning("impossible_reward", "outcome", f"success is {success} and the score {score}"))
    elif success is not None or score is not None:
        found.append(_warning("impossible_reward", "outcome", f"is {outcome.status} and has a result"))


def _check_messages(messages: list[Message], found: list[Problem]) -> None:
    """One walk over the messages; it is on the path of every record, so it does little where nothing is wrong."""
    calls: dict[str, tuple[int, int]] = {}  # id to the place of the call that has no result yet
    answered: set[str] = set()
    previous: str | None = None
    for index, message in enumerate(messages):
        if message.role == "tool":
            _take_result(message, index, calls, answered, found)
        elif message.tool_calls:
            for number, call in enumerate(message.tool_calls):
                if call.id is None:
                    continue
                if call.id in calls or call.id in answered:
                    where = f"messages[{index}].tool_calls[{number}].id"
                    found.append(_warning("reused_call_id", where, f"an earlier call has the id {call.id[:80]!r}"))
                    answered.discard(call.id)
                calls[call.id] = (index, number)
        elif message.role == "assistant" and not message.content and message.error is None:
            found.append(_warning("empty_message", f"messages[{index}]", "the assistant says nothing"))
        if message.tokens is not None:
            found.extend(_token_problems(message, index))
        if message.timestamp is not None:
            if previous is not None and _is_earlier(message.timestamp, previous):
                where = f"messages[{index}].timestamp"
                found.append(_warning("time_reversal", where, f"{message.timestamp[:40]} is before {previous[:40]}"))
            previous = message.timestamp
    for name, (index, number) in calls.items():
        if index < len(messages) - 1:
            where = f"messages[{index}].tool_calls[{number}]"
            found.append(_warning("unanswered_call", where, f"the call {name[:80]!r} has no result"))


def _take_result(
    message: Message, index: int, calls: dict[str, tuple[int, int]], answered: set[str], found: list[Problem]
) -> None:
    name = message.tool_call_id
    if name is None:
        found.append(_warning("unnamed_result", f"messages[{index}]", "a tool result names no call"))
    elif name in calls:
        del calls[name]
        answered.add(name)
    elif name in answered:
        text = f"the call {name[:80]!r} has a result already"
        found.append(_warning("repeated_result", f"messages[{index}].tool_call_id", text))
    else:
        text = f"a tool result answers {name[:80]!r}, which no earlier message called"
        found.append(_warning("orphan_result", f"messages[{index}].tool_call_id", text))


def _is_earlier(time: str, other: str) -> bool:
    """Whether a time is before another; False where that cannot be told."""
    if len(time) == len(other) and time[-1:] == other[-1:] == "Z":
        return time < other
    try:
        return datetime.fromisoformat(time) < datetime.fromisoformat(other)
    except (ValueError, TypeError):  # not ISO 8601, or one of them has no time zone
        return False
