"""What observability platforms record of a program: operations in a tree, and traces that hold them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from offline_arl.logs.platforms.answer_shapes import Answer
from offline_arl.logs.platforms.message_shapes import Prompt
from offline_arl.trajectories.schema import MessageError, Score, Usage

OperationKind = Literal["model", "tool", "other"]


@dataclass
class Operation:
    """One observation, run or call: of a model, of a tool, or what encloses them.

    Attributes:
        operation_id: Its id in the log.
        pieces: Indices of the group's pieces that it was read from.
        input: As recorded, any JSON value or JSON text; `output` likewise.
        system: System prompt that is recorded beside the input, of any shape.
        tools: JSON text of the tools in OpenAI form, where they are recorded beside the input.
        response_id: The provider's id of the answer; `previous_response_id` that of the answer that is continued,
            where the provider keeps the conversation.
        tool_call_id: Of a tool: the call that it answers, where recorded.
        agent: Name of the agent whose operation it is, where it is recorded with it.
        is_utility: Known to serve something else than the agent's task (a judge, a title); None: not known.
        scores: Judgements of this operation.
    """

    operation_id: str
    kind: OperationKind
    pieces: tuple[int, ...]
    trace_id: str | None = None
    parent_id: str | None = None
    name: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    input: object = None
    output: object = None
    system: object = None
    tools: str | None = None
    response_id: str | None = None
    previous_response_id: str | None = None
    model: str | None = None
    usage: Usage | None = None
    stop_reason: str | None = None
    error: MessageError | None = None
    tool_call_id: str | None = None
    agent: str | None = None
    session_id: str | None = None
    user_id: str | None = None
    is_utility: bool | None = None
    scores: list[Score] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class TraceInfo:
    """What a log says of a trace as a whole; `scores` are its judgements."""

    trace_id: str
    session_id: str | None = None
    user_id: str | None = None
    task_id: str | None = None
    group_id: str | None = None
    scores: list[Score] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class CallContent:
    """A model operation with its messages."""

    operation: Operation
    prompt: Prompt | None
    answer: Answer | None
    merged: list[Operation] = field(default_factory=list)  # recorded pieces of the same turn

    @property
    def operations(self) -> list[Operation]:
        """The operations that it was read from."""
        return [self.operation, *self.merged]


def in_time_order(operations: Iterable[Operation]) -> list[Operation]:
    """Operations by start; those without one last, ties as recorded."""
    return sorted(operations, key=lambda operation: moment(operation.started_at))


def moment(text: str | None) -> tuple[bool, datetime]:
    """A sortable point in time; what is no time sorts last."""
    if text is not None:
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            pass
        else:
            return False, found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return True, datetime.max.replace(tzinfo=UTC)


class OperationTree:
    """Operations by id, and what encloses what."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = in_time_order(operations)
        self._by_id = {operation.operation_id: operation for operation in operations}

    def get(self, operation_id: str | None) -> Operation | None:
        """The operation of an id."""
        return None if operation_id is None else self._by_id.get(operation_id)

    def ancestors(self, operation: Operation) -> Iterator[Operation]:
        """What encloses an operation, from the inside out; ends where a parent is missing, or at a circle."""
        seen = {operation.operation_id}
        parent = self.get(operation.parent_id)
        while parent is not None and parent.operation_id not in seen:
            seen.add(parent.operation_id)
            yield parent
            parent = self.get(parent.parent_id)
