"""The session of a managed agent, put together from its events in order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from offline_arl.logs.adapter import Group
from offline_arl.logs.primitives.values import as_list, as_object, as_text
from offline_arl.logs.providers.anthropic_messages import (
    convert_message,
    convert_usage,
    name_results,
    normalize_tools,
    system_messages,
)
from offline_arl.trajectories.schema import (
    Context,
    Message,
    MessageError,
    Outcome,
    Producer,
    ReasoningPart,
    Score,
    Trajectory,
)

_CALLS = {
    "agent.tool_use": "tool_use",
    "agent.custom_tool_use": "tool_use",
    "agent.mcp_tool_use": "mcp_tool_use",
}
_RESULTS = {
    "agent.tool_result": "tool_use_id",
    "agent.mcp_tool_result": "mcp_tool_use_id",
    "user.tool_result": "tool_use_id",
    "user.custom_tool_result": "custom_tool_use_id",
}
_VERDICTS = {"satisfied": True, "needs_revision": False, "max_iterations_reached": False}
_EVALUATION = "outcome_evaluation"


@dataclass
class _Stretch:
    """The part of a session that the model sees as one conversation."""

    messages: list[Message]
    pieces: list[int] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    stop_reason: str | None = None


@dataclass
class _Turn:
    """The turn of the model that is going on."""

    request_id: str | None
    timestamp: str | None = None
    blocks: list[dict[str, Any]] = field(default_factory=list)
    thoughts: int = 0


def check(events: Iterable[dict[str, Any]], created: dict[str, Any] | None) -> None:
    """Read the events of one record by themselves, and the session that it creates.

    Raises:
        RecordRefusedError: What should be a message, call, result, system prompt or tool is none.
    """
    session = Session(Group("", None, ()))
    if created is not None:
        session.begin(created)
        return
    for event in events:
        session.add(event, 0)
    session.close()


class Session:
    """Takes the events of a session and gives its trajectories."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._fields: dict[str, Any] = {}
        self._agent: dict[str, Any] = {}
        self._tools: str | None = None
        self._stretches = [_Stretch([])]
        self._turn: _Turn | None = None
        self._outcome = Outcome()
        self._error: str | None = None

    def begin(self, session: dict[str, Any]) -> None:
        """Take what the creation of the session says: agent, system prompt, tools, title.

        Raises:
            RecordRefusedError: The system prompt or the tools cannot be read.
        """
        self._fields = session
        self._agent = as_object(session.get("agent"))
        logged = [_without_nulls(tool) for tool in as_list(self._agent.get("tools"))]
        self._tools = normalize_tools(logged or None, "agent.tools")
        if not self._stretches[0].messages:
            self._stretches[0].messages.extend(self._system())

    def add(self, event: dict[str, Any], piece: int) -> str | None:
        """Add one event; returns why it is not part of the conversation, None where it is."""
        kind = str(event.get("type"))
        if kind.startswith("agent.") and event.get("session_thread_id") is not None:
            return "of the thread of a sub-agent, shown here to ask for a permission"
        told = self._add(kind, event)
        if told is None:
            self._stretches[-1].pieces.append(piece)
        return told

    def finish(self) -> list[Trajectory]:
        """The trajectories; one for each stretch in which the model answered."""
        self.close()
        return [
            self._trajectory(number)
            for number, stretch in enumerate(self._stretches)
            if any(message.role == "assistant" for message in stretch.messages)
        ]

    def _add(self, kind: str, event: dict[str, Any]) -> str | None:
        fields = {key: value for key, value in event.items() if key not in ("type", "id", "processed_at")}
        time = as_text(event.get("processed_at"))
        if kind in _CALLS:
            self._open(time).blocks.append({"type": _CALLS[kind], "id": event.get("id"), **fields})
        elif kind == "agent.message":
            self._open(time).blocks.extend(as_list(event.get("content")))
        elif kind == "agent.thinking":
            self._open(time).thoughts += 1
        elif kind in _RESULTS:
            call_id = fields.pop(_RESULTS[kind], None)
            self._append("user", [{"type": "tool_result", "tool_use_id": call_id, **fields}], event)
        elif kind in ("user.message", "system.message"):
            self._append(kind.partition(".")[0], fields.pop("content", None), event)
        elif kind == "user.define_outcome":
            self._append("user", fields.pop("description", None) or "", {**event, **fields})
        elif kind == "span.model_request_start":
            self.close()
            self._turn = _Turn(as_text(event.get("id")), time)
        elif kind == "span.model_request_end":
            self._end_request(event)
        elif kind == "span.outcome_evaluation_end":
            self._evaluate(event)
        elif kind == "user.tool_confirmation" and event.get("result") == "deny":
            self._judge("user_rejection", event, as_text(event.get("tool_use_id")), as_text(event.get("deny_message")))
        elif kind == "user.interrupt":
            self._judge("user_interruption", event, None, None)
        elif kind == "agent.thread_context_compacted":
            self.close()
            self._stretches[-1].stop_reason = "compaction"
            self._stretches.append(_Stretch(self._system()))
        else:
            return self._status(kind, event)
        return None

    def _status(self, kind: str, event: dict[str, Any]) -> str:
        if kind == "session.status_idle":
            self._stretches[-1].stop_reason = as_text(as_object(event.get("stop_reason")).get("type"))
        elif kind == "session.error":
            self._error = as_text(as_object(event.get("error")).get("type")) or "error"
        return f"an event of the session's state ({kind})"

    def _system(self) -> list[Message]:
        return [
            msgspec.structs.replace(message, producer=Producer("script"))
            for message in system_messages(self._agent.get("system") or None)
        ]

    def _open(self, time: str | None) -> _Turn:
        if self._turn is None:
            self._turn = _Turn(None)
        self._turn.timestamp = self._turn.timestamp if self._turn.blocks or self._turn.thoughts else time
        self._error = None
        return self._turn

    def close(self, usage: object = None, error: MessageError | None = None) -> None:
        """End the turn of the model that is going on, if there is one."""
        turn, self._turn = self._turn, None
        if turn is None or not (turn.blocks or turn.thoughts):
            return
        thoughts = [ReasoningPart("", encrypted=True)] * turn.thoughts
        counts, rest = convert_usage(usage)
        for message in convert_message({"role": "assistant", "content": turn.blocks}, "event"):
            self._stretches[-1].messages.append(
                msgspec.structs.replace(
                    message,
                    content=[*thoughts, *(message.content or ())] or message.content,
                    id=turn.request_id,
                    timestamp=turn.timestamp,
                    producer=Producer("model", self._model),
                    usage=counts,
                    error=error,
                    metadata=message.metadata if rest is None else {**message.metadata, "usage": rest},
                )
            )

    @property
    def _model(self) -> str | None:
        model = self._agent.get("model")
        return as_text(as_object(model).get("id")) or as_text(model)

    def _end_request(self, event: dict[str, Any]) -> None:
        failed = event.get("is_error") is True
        if failed and self._turn is not None and not self._turn.blocks:
            self._error = "model_request_failed"
        self.close(event.get("model_usage"), MessageError("model_request_failed") if failed else None)

    def _append(self, role: str, content: object, event: dict[str, Any]) -> None:
        self.close()
        self._error = None
        metadata = {key: value for key, value in event.items() if key in ("rubric", "max_iterations", "outcome_id")}
        for message in convert_message({"role": role, "content": content}, "event"):
            producer = message.producer if message.role == "tool" else Producer("human" if role == "user" else "script")
            self._stretches[-1].messages.append(
                msgspec.structs.replace(
                    message,
                    id=as_text(event.get("id")),
                    timestamp=as_text(event.get("processed_at")),
                    producer=producer,
                    metadata={**message.metadata, **metadata},
                )
            )

    def _evaluate(self, event: dict[str, Any]) -> None:
        self.close()
        label = as_text(event.get("result"))
        verdict = _VERDICTS.get(label or "")
        self._stretches[-1].scores.append(
            Score(
                _EVALUATION,
                value=None if verdict is None else float(verdict),
                label=label,
                scorer=_EVALUATION,
                scorer_kind="model",
                direction="higher_is_better",
                message_index=self._last_answer(),
                comment=as_text(event.get("explanation")),
                timestamp=as_text(event.get("processed_at")),
                metadata={key: event[key] for key in ("iteration", "outcome_id") if key in event},
            )
        )
        if verdict is not None:
            self._outcome = Outcome("scored", success=verdict, scorer=_EVALUATION)

    def _judge(self, name: str, event: dict[str, Any], call_id: str | None, comment: str | None) -> None:
        self.close()
        messages = self._stretches[-1].messages
        made = {call.id: index for index, message in enumerate(messages) for call in message.tool_calls}
        self._stretches[-1].scores.append(
            Score(
                name,
                value=1.0,
                scorer="user",
                scorer_kind="human",
                direction="lower_is_better",
                message_index=self._last_answer() if call_id is None else made.get(call_id),
                comment=comment,
                timestamp=as_text(event.get("processed_at")),
            )
        )

    def _last_answer(self) -> int | None:
        messages = self._stretches[-1].messages
        return next((i for i in range(len(messages) - 1, -1, -1) if messages[i].role == "assistant"), None)

    def _trajectory(self, number: int) -> Trajectory:
        stretch, session = self._stretches[number], self._fields
        is_last = number == len(self._stretches) - 1
        outcome = self._outcome if is_last else Outcome()
        if self._error is not None and is_last and outcome.status == "unscored":
            outcome = Outcome("infrastructure_error")
        known = ("id", "type", "agent", "usage", "stats", "status")
        metadata = {key: value for key, value in session.items() if key not in known and value not in (None, [], {})}
        if number:
            metadata["relation"] = "compaction"
        if self._error is not None and is_last:
            metadata["error"] = self._error
        times = [message.timestamp for message in stretch.messages if message.timestamp is not None]
        return Trajectory(
            trajectory_id=self._group.trajectory_id(number),
            messages=name_results(stretch.messages),
            source=self._group.source(sorted(set(stretch.pieces)) or None),
            episode_id=as_text(session.get("id")),
            parent_trajectory_id=self._group.trajectory_id(number - 1) if number else None,
            agent=as_text(self._agent.get("name")),
            model=self._model,
            started_at=times[0] if times else as_text(session.get("created_at")),
            ended_at=times[-1] if times else None,
            contexts=[] if self._tools is None else [Context(0, self._tools)],
            stop_reason=stretch.stop_reason,
            outcome=outcome,
            metadata=metadata,
            session_id=as_text(session.get("id")),
            scores=stretch.scores,
        )


def _without_nulls(tool: object) -> object:
    return tool if not isinstance(tool, dict) else {key: value for key, value in tool.items() if value is not None}
