"""What the tree of spans says beyond the single calls: which agent called which, and what tools answered."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from offline_arl.logs.primitives.values import json_text
from offline_arl.logs.telemetry.span_calls import agent_of, error_of, kind_of
from offline_arl.logs.telemetry.spans import Key, Span, ancestors
from offline_arl.trajectories.schema import Message, Producer, TextPart, Trajectory

_CALL_ID_KEYS = ("gen_ai.tool.call.id", "ai.toolCall.id", "tool_call.id", "tool.id")
_RESULT_KEYS = ("gen_ai.tool.call.result", "ai.toolCall.result", "output.value", "mlflow.spanOutputs", "output")


def link_trajectories(trajectories: list[Trajectory], by_key: dict[Key, Span]) -> None:
    """Set agent, parent and enclosing spans of trajectories, in place.

    The parent of a sub-agent is the trajectory of the agent (or of the tool run) around its own agent span; where
    that one asked for a tool whose run holds the sub-agent, the trajectory with this very call.
    """
    by_span = {span.span_id: span for span in by_key.values() if span.span_id is not None}
    scopes = [_scopes(trajectory, by_span, by_key) for trajectory in trajectories]
    callers = _Callers(trajectories, scopes)
    for index, (trajectory, own) in enumerate(zip(trajectories, scopes, strict=True)):
        agent = next((span for span in own if kind_of(span) == "agent"), None)
        trajectories[index] = msgspec.structs.replace(
            trajectory,
            agent=trajectory.agent if agent is None else agent_of(agent) or agent.name or trajectory.agent,
            parent_trajectory_id=trajectory.parent_trajectory_id or callers.of(trajectory, own),
            identifiers={**trajectory.identifiers, **_enclosing(trajectory, by_span, by_key)},
        )


def _enclosing(trajectory: Trajectory, by_span: dict[str, Span], by_key: dict[Key, Span]) -> dict[str, str]:
    """The spans around all calls of a trajectory, the outermost first: annotations may be of them."""
    chains = [
        [span.span_id for span in ancestors(by_span[message.id], by_key)][::-1]
        for message in trajectory.messages
        if message.role == "assistant" and message.id in by_span
    ]
    common = [level[0] for level in zip(*chains, strict=False) if len(set(level)) == 1]
    return {f"operation_{n}" if n > 1 else "operation": span for n, span in enumerate(filter(None, common), 1)}


def tool_call_id(span: Span) -> str | None:
    """The id of the call that a tool run answers."""
    return span.text(*_CALL_ID_KEYS)


def _scopes(trajectory: Trajectory, by_span: dict[str, Span], by_key: dict[Key, Span]) -> list[Span]:
    """The agents and tool runs around the first call of a trajectory, from the inside out."""
    first = trajectory.branch.message_index if trajectory.branch is not None else 0
    for message in trajectory.messages[first:]:
        if message.role == "assistant" and message.id in by_span:
            return [span for span in ancestors(by_span[message.id], by_key) if kind_of(span) in ("agent", "tool")]
    return []


class _Callers:
    """Trajectories by the tool calls that they made, and by the agents and tool runs that they lie in."""

    def __init__(self, trajectories: Sequence[Trajectory], scopes: Sequence[list[Span]]) -> None:
        self._by_call: dict[str, str] = {}
        self._by_scope: dict[tuple[str | None, ...], str] = {}
        for trajectory, own in zip(trajectories, scopes, strict=True):
            self._by_scope.setdefault(_ids(own), trajectory.trajectory_id)
            for message in trajectory.messages:
                for call in message.tool_calls:
                    if call.id is not None:
                        self._by_call.setdefault(call.id, trajectory.trajectory_id)

    def of(self, trajectory: Trajectory, own: list[Span]) -> str | None:
        """The trajectory that started another one, which is no branch of it."""
        if trajectory.branch is not None:
            return None
        asked = (self._by_call.get(tool_call_id(span) or "") for span in own if kind_of(span) == "tool")
        around = (self._by_scope.get(_ids(own[depth:])) for depth in range(1, len(own)))
        found = (parent for parent in (*asked, *around) if parent not in (None, trajectory.trajectory_id))
        return next(found, None)


def _ids(spans: Sequence[Span]) -> tuple[str | None, ...]:
    return tuple(span.span_id for span in spans)


def add_tool_results(trajectories: list[Trajectory], tools: Sequence[tuple[int, Span]]) -> set[int]:
    """Mark failed tools, and add the results of the last calls of a trajectory, which no later prompt repeats.

    Returns:
        The pieces of the spans that added something.
    """
    by_call = {call_id: (piece, span) for piece, span in tools if (call_id := tool_call_id(span)) is not None}
    used: set[int] = set()
    if not by_call:
        return used
    for index, trajectory in enumerate(trajectories):
        messages = list(trajectory.messages)
        answered = {message.tool_call_id for message in messages if message.role == "tool"}
        for position, message in enumerate(messages):
            found = by_call.get(message.tool_call_id or "")
            error = None if found is None or message.error is not None else error_of(found[1])
            if message.role == "tool" and found is not None and error is not None:
                messages[position] = msgspec.structs.replace(message, error=error)
                used.add(found[0])
        for call in messages[-1].tool_calls:
            found = by_call.get(call.id or "")
            if found is not None and call.id not in answered and (result := _result(found[1], call.name)) is not None:
                messages.append(msgspec.structs.replace(result, tool_call_id=call.id))
                used.add(found[0])
        trajectories[index] = msgspec.structs.replace(trajectory, messages=messages)
    return used


def _result(span: Span, name: str) -> Message | None:
    value = next((span.attributes[key] for key in _RESULT_KEYS if span.attributes.get(key) is not None), None)
    error = error_of(span)
    if value is None and error is None:
        return None
    text = error.text if value is None and error is not None else value if isinstance(value, str) else json_text(value)
    return Message(
        "tool",
        [TextPart(text)],
        name=name,
        error=error,
        producer=Producer("environment"),
        timestamp=span.ended_at,
        id=span.span_id,
    )
