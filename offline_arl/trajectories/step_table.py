"""The derived step table: one row of scalars a step, so that questions need no parsing of messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from offline_arl.trajectories.acceptance import CallChecker, checker_for
from offline_arl.trajectories.calls import CallProblem
from offline_arl.trajectories.schema import POLICY_KINDS, ReasoningPart, TextPart, ToolCall, Trajectory


class StepRow(NamedTuple):
    """One step: the i-th message of the policy under study."""

    trajectory_id: str
    step: int  # 0-based
    message_index: int  # index into Trajectory.messages
    n_tool_calls: int
    tool_names: list[str]  # in call order
    n_invalid_calls: int
    invalid_action: bool
    problem: str | None  # kind of the first problem, see `calls.CallProblemKind`, or "marked"
    characters: int  # visible text and raw arguments
    reasoning_characters: int
    has_text: bool
    n_tokens: int | None  # recorded token ids, the stop token included
    reward: float | None  # `metadata["reward"]` of the message, where an environment logged one
    is_last: bool


def call_problems(trajectory: Trajectory, message_index: int) -> list[CallProblem]:
    """The problems of the calls in one message, judged by the tools in force there, in call order."""
    message = trajectory.messages[message_index]
    if not message.tool_calls:
        return []
    checker = checker_for(trajectory.context_at(message_index).tools)
    found = (checker.problem(call) for call in message.tool_calls)
    return [problem for problem in found if problem is not None]


def is_marked_invalid(trajectory: Trajectory, message_index: int) -> bool:
    """Whether the log or environment itself marked the message (`metadata["invalid_action"]` is true).

    Malformed plain text has no call that could be checked, so environments mark it.
    """
    return trajectory.messages[message_index].metadata.get("invalid_action") is True


def is_invalid_action(trajectory: Trajectory, message_index: int) -> bool:
    """Whether any call of the message is one that the tools in force would not accept, or it is marked invalid.

    Where the log has no tools, only the arguments' JSON is checked.
    """
    return is_marked_invalid(trajectory, message_index) or bool(call_problems(trajectory, message_index))


class RefusedCall(NamedTuple):
    """A call that the tools in force would not accept, and where it is."""

    message_index: int
    call_index: int
    problem: CallProblem


class Steps(NamedTuple):
    """The steps of a trajectory, and their sums."""

    rows: list[tuple[Any, ...]]  # the values of `StepRow`
    tool_calls: int
    invalid_calls: int
    invalid_actions: int


def step_rows(trajectory: Trajectory) -> list[StepRow]:
    """One row a step of `trajectory`, in order."""
    return [StepRow._make(row) for row in steps_of(trajectory).rows]


def steps_of(trajectory: Trajectory, refused: list[RefusedCall] | None = None) -> Steps:
    """The values of one row a step of `trajectory`, in order, and their sums.

    Args:
        trajectory: The trajectory.
        refused: Gets the calls that are not acceptable, where given.
    """
    rows: list[tuple[Any, ...]] = []
    refused = [] if refused is None else refused
    name, contexts = trajectory.trajectory_id, trajectory.contexts
    checker = checker_for(contexts[0].tools) if len(contexts) == 1 and contexts[0].start == 0 else None
    tool_calls = all_invalid_calls = invalid_actions = 0
    for index, message in enumerate(trajectory.messages):
        if message.role != "assistant" or message.producer.kind not in POLICY_KINDS:
            continue
        characters = reasoning_characters = invalid_calls = 0
        has_text = False
        for part in message.content or ():
            if type(part) is TextPart:
                text = part.text
                characters += len(text)
                has_text = has_text or (text != "" and not text.isspace())
            elif type(part) is ReasoningPart:
                reasoning_characters += len(part.text)
        calls, metadata, tokens = message.tool_calls, message.metadata, message.tokens
        problem: str | None = None
        names: list[str] = []
        if calls:
            tool_calls += len(calls)
            for call in calls:
                names.append(call.name)
                characters += len(call.arguments_raw)
            found = _refused(calls, checker or checker_for(trajectory.context_at(index).tools), index)
            if found:
                refused.extend(found)
                problem, invalid_calls = found[0].problem.kind, len(found)
                all_invalid_calls += invalid_calls
        marked = bool(metadata) and metadata.get("invalid_action") is True
        if marked or invalid_calls:
            invalid_actions += 1
        rows.append(
            (
                name,
                len(rows),
                index,
                len(calls),
                names,
                invalid_calls,
                marked or invalid_calls > 0,
                problem or ("marked" if marked else None),
                characters,
                reasoning_characters,
                has_text,
                None if tokens is None else len(tokens.token_ids),
                logged_reward(metadata) if metadata else None,
                False,
            )
        )
    if rows:
        rows[-1] = (*rows[-1][:-1], True)
    return Steps(rows, tool_calls, all_invalid_calls, invalid_actions)


def _refused(calls: Sequence[ToolCall], checker: CallChecker, index: int) -> list[RefusedCall]:
    found = []
    for number, call in enumerate(calls):
        problem = checker.problem(call)
        if problem is not None:
            found.append(RefusedCall(index, number, problem))
    return found


def logged_reward(metadata: Mapping[str, Any]) -> float | None:
    """The reward in the metadata of a message; None where there is none, or it is no number."""
    reward = metadata.get("reward")
    return float(reward) if isinstance(reward, (int, float)) and not isinstance(reward, bool) else None
