"""What a trajectory must satisfy to enter a store, and what is only worth a warning."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import msgspec

from offline_arl.trajectories.schema import Message, Trajectory

Severity = Literal["error", "warning"]


class Problem(NamedTuple):
    """One finding. An error keeps the trajectory out of the store; a warning does not."""

    severity: Severity
    where: str  # path into the record, for example "messages[3].tokens"
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


def errors_of(trajectory: Trajectory) -> list[Problem]:
    """The findings that keep a trajectory out of a store."""
    return [problem for problem in _structural_problems(trajectory) if problem.severity == "error"]


def problems_of(trajectory: Trajectory) -> list[Problem]:
    """Every finding about `trajectory`, errors first.

    Errors are what would break a reader or a loss: no messages, contexts out of order, tools that are not a list
    of objects, log-probabilities that do not fit their tokens, numbers that JSON cannot hold, an ending that is
    both terminated and truncated. Warnings are what real logs do: tool results that answer no known call, calls
    without a result, no message of the policy.
    """
    found = [*_structural_problems(trajectory), *_pairing_problems(trajectory.messages)]
    if not trajectory.step_indices():
        found.append(Problem("warning", "messages", "no message was made by the policy under study"))
    return sorted(found, key=lambda problem: problem.severity)


def _structural_problems(trajectory: Trajectory) -> list[Problem]:
    found = [*_record_problems(trajectory), *_context_problems(trajectory)]
    for index, message in enumerate(trajectory.messages):
        if message.tokens is not None:
            found.extend(_token_problems(message, index))
    return found


def _error(where: str, text: str) -> Problem:
    return Problem("error", where, text)


def _record_problems(trajectory: Trajectory) -> list[Problem]:
    found = []
    if not trajectory.trajectory_id:
        found.append(_error("trajectory_id", "is empty"))
    if not trajectory.messages:
        found.append(_error("messages", "there are none"))
    if trajectory.terminated and trajectory.truncated:
        found.append(_error("terminated", "a trajectory cannot be both terminated and truncated"))
    for name, number in (("score", trajectory.outcome.score), *trajectory.outcome.components.items()):
        if number is not None and not math.isfinite(number):
            found.append(_error(f"outcome, {name}", f"{number} is not a finite number"))
    for position, score in enumerate(trajectory.scores):
        if score.value is not None and not math.isfinite(score.value):
            found.append(_error(f"scores[{position}].value", f"{score.value} is not a finite number"))
        if score.message_index is not None and not 0 <= score.message_index < len(trajectory.messages):
            found.append(_error(f"scores[{position}].message_index", f"{score.message_index} is no message"))
    branch = trajectory.branch
    if branch is not None and not 0 <= branch.message_index <= len(trajectory.messages):
        found.append(_error("branch.message_index", f"{branch.message_index} is outside of the messages"))
    return found


def _context_problems(trajectory: Trajectory) -> list[Problem]:
    found = []
    previous = -1
    for number, context in enumerate(trajectory.contexts):
        where = f"contexts[{number}]"
        if context.start <= previous or context.start > len(trajectory.messages):
            found.append(_error(f"{where}.start", f"{context.start} is out of order or outside of the messages"))
        previous = context.start
        if context.tools is not None and not _is_tool_list(context.tools):
            found.append(_error(f"{where}.tools", "is not the JSON text of a list of tools in OpenAI form"))
    return found


class _Function(msgspec.Struct):
    name: str


class _Tool(msgspec.Struct):
    function: _Function


_tools_decoder = msgspec.json.Decoder(list[_Tool])
_checked_tools: dict[str, bool] = {}


def _is_tool_list(text: str) -> bool:
    known = _checked_tools.get(text)
    if known is None:
        try:
            _tools_decoder.decode(text)
            known = True
        except (msgspec.DecodeError, UnicodeEncodeError):
            known = False
        if len(_checked_tools) >= 1024:
            _checked_tools.clear()
        _checked_tools[text] = known
    return known


def _token_problems(message: Message, index: int) -> list[Problem]:
    tokens = message.tokens
    if tokens is None or tokens.logprobs is None:
        return []
    where = f"messages[{index}].tokens.logprobs"
    if len(tokens.logprobs) != len(tokens.token_ids):
        return [_error(where, f"{len(tokens.logprobs)} values for {len(tokens.token_ids)} token ids")]
    if not all(map(math.isfinite, tokens.logprobs)):
        return [_error(where, "a value is not a finite number")]
    return []


def _pairing_problems(messages: list[Message]) -> list[Problem]:
    found = []
    open_calls: set[str] = set()
    for index, message in enumerate(messages):
        for call in message.tool_calls:
            if call.id is not None:
                open_calls.add(call.id)
        if message.role == "tool":
            if message.tool_call_id is None:
                found.append(Problem("warning", f"messages[{index}]", "a tool result names no call"))
            elif message.tool_call_id in open_calls:
                open_calls.discard(message.tool_call_id)
            else:
                text = f"a tool result answers {message.tool_call_id!r}, which no earlier message called"
                found.append(Problem("warning", f"messages[{index}].tool_call_id", text))
    if open_calls:
        found.append(Problem("warning", "messages", f"{len(open_calls)} tool calls have no result"))
    return found
