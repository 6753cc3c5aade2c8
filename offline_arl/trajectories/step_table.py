"""The derived step table: one row of scalars a step, so that questions need no parsing of messages."""

from __future__ import annotations

from typing import NamedTuple

from offline_arl.trajectories.acceptance import checker_for
from offline_arl.trajectories.calls import CallProblem
from offline_arl.trajectories.schema import ReasoningPart, TextPart, Trajectory


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


def step_rows(trajectory: Trajectory) -> list[StepRow]:
    """One row a step of `trajectory`, in order."""
    indices = trajectory.step_indices()
    rows: list[StepRow] = []
    last = len(indices) - 1
    for step, index in enumerate(indices):
        message = trajectory.messages[index]
        text_characters, reasoning_characters, has_text = 0, 0, False
        for part in message.content or ():
            if isinstance(part, TextPart):
                text_characters += len(part.text)
                has_text = has_text or bool(part.text.strip())
            elif isinstance(part, ReasoningPart):
                reasoning_characters += len(part.text)
        calls = message.tool_calls
        problems = call_problems(trajectory, index) if calls else []
        marked = is_marked_invalid(trajectory, index)
        reward = message.metadata.get("reward")
        rows.append(
            StepRow(
                trajectory.trajectory_id,
                step,
                index,
                len(calls),
                [call.name for call in calls],
                len(problems),
                marked or bool(problems),
                problems[0].kind if problems else "marked" if marked else None,
                text_characters + sum([len(call.arguments_raw) for call in calls]),
                reasoning_characters,
                has_text,
                None if message.tokens is None else len(message.tokens.token_ids),
                float(reward) if isinstance(reward, (int, float)) and not isinstance(reward, bool) else None,
                step == last,
            )
        )
    return rows
