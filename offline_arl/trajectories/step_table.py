"""The derived step table: one row of scalars a step, so that questions need no parsing of messages."""

from __future__ import annotations

from typing import NamedTuple

from offline_arl.trajectories.acceptance import checker_for
from offline_arl.trajectories.calls import CallProblem
from offline_arl.trajectories.schema import POLICY_KINDS, ReasoningPart, TextPart, Trajectory


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


def step_rows(trajectory: Trajectory, refused: list[RefusedCall] | None = None) -> list[StepRow]:
    """One row a step of `trajectory`, in order.

    Args:
        trajectory: The trajectory.
        refused: Gets the calls that are not acceptable, where given.
    """
    rows: list[StepRow] = []
    contexts = trajectory.contexts
    checker = checker_for(contexts[0].tools) if len(contexts) == 1 and contexts[0].start == 0 else None
    for index, message in enumerate(trajectory.messages):
        if message.role != "assistant" or message.producer.kind not in POLICY_KINDS:
            continue
        text_characters, reasoning_characters, has_text = 0, 0, False
        for part in message.content or ():
            if type(part) is TextPart:
                text_characters += len(part.text)
                has_text = has_text or (part.text != "" and not part.text.isspace())
            elif type(part) is ReasoningPart:
                reasoning_characters += len(part.text)
        calls, invalid_calls, problem, names = message.tool_calls, 0, None, []
        if calls:
            judge = checker or checker_for(trajectory.context_at(index).tools)
            for number, call in enumerate(calls):
                names.append(call.name)
                text_characters += len(call.arguments_raw)
                found = judge.problem(call)
                if found is not None:
                    invalid_calls += 1
                    problem = problem or found.kind
                    if refused is not None:
                        refused.append(RefusedCall(index, number, found))
        metadata = message.metadata
        marked = bool(metadata) and metadata.get("invalid_action") is True
        reward = metadata.get("reward") if metadata else None
        rows.append(
            StepRow._make(
                (
                    trajectory.trajectory_id,
                    len(rows),
                    index,
                    len(calls),
                    names,
                    invalid_calls,
                    marked or invalid_calls > 0,
                    problem or ("marked" if marked else None),
                    text_characters,
                    reasoning_characters,
                    has_text,
                    None if message.tokens is None else len(message.tokens.token_ids),
                    float(reward) if isinstance(reward, (int, float)) and not isinstance(reward, bool) else None,
                    False,
                )
            )
        )
    if rows:
        rows[-1] = rows[-1]._replace(is_last=True)
    return rows
