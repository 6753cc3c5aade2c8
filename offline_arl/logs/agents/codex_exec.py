"""The event stream of `codex exec --json`: what the agent did, as the command line prints it.

It holds less than a rollout of the same session: neither the prompt nor the calls as the model made them. Commands,
file changes, MCP calls and searches become calls with the arguments that the stream tells.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from offline_arl.logs.adapter import Assembly, Fragment, Group, RawRecord, RecordRefusedError
from offline_arl.logs.primitives.values import as_count, as_object, as_text, decode_object, json_text, json_type
from offline_arl.trajectories.schema import (
    ContentPart,
    Message,
    MessageError,
    Outcome,
    Producer,
    ReasoningPart,
    TextPart,
    ToolCall,
    Trajectory,
    Usage,
    tool_call,
)

_THREAD_EVENTS = frozenset({"thread.started", "turn.started", "turn.completed", "turn.failed"})
_ITEM_EVENTS = frozenset({"item.started", "item.updated", "item.completed"})
_MODEL = Producer("model")
_ENVIRONMENT = Producer("environment")
_FAILED: frozenset[str | None] = frozenset({"failed", "declined"})


class CodexExecAdapter:
    """Assembles streams, each from its file; a file may hold several threads after one another."""

    name = "codex_exec"
    title = "Event streams of `codex exec --json`"
    keeps = "commands with exit codes, file changes, MCP calls, usage a turn"
    lacks = (
        "prompts, model, times and tool schemas are not in the stream; ingest the rollout instead where there is one"
    )

    def recognizes(self, record: Any) -> bool:
        """Whether the record is an event of a thread, a turn or an item."""
        if not isinstance(record, dict):
            return False
        kind = record.get("type")
        if kind == "thread.started":
            return isinstance(record.get("thread_id"), str)
        if kind in ("item.started", "item.updated", "item.completed"):
            item = record.get("item")
            return isinstance(item, dict) and isinstance(item.get("type", item.get("item_type")), str)
        return False

    def fragments(self, record: RawRecord) -> list[Fragment]:
        """One fragment, for the file."""
        fields = decode_object(record.raw)
        kind = fields.get("type")
        if not isinstance(kind, str) or (kind not in _THREAD_EVENTS | _ITEM_EVENTS and kind != "error"):
            raise RecordRefusedError(f"type: expected an event of a thread, turn or item, got {kind!r}")
        if kind in _ITEM_EVENTS:
            item = fields.get("item")
            if not isinstance(item, dict):
                raise RecordRefusedError(f"item: expected an object, got {json_type(item)}")
            _Thread(0).add_item(dict(item))
        return [Fragment(None, record.raw)]

    def assemble(self, group: Group) -> Assembly:
        """One trajectory for each thread of the file."""
        assembly = Assembly()
        threads: list[_Thread] = []
        finished = _finished_items(group)
        for index, piece in enumerate(group.pieces):
            event = decode_object(piece.payload)
            kind = event.get("type")
            if not threads or (kind == "thread.started" and threads[-1].has_begun(as_text(event.get("thread_id")))):
                threads.append(_Thread(len(threads)))
            thread = threads[-1]
            item = as_object(event.get("item"))
            if kind in _ITEM_EVENTS and kind != "item.completed" and as_text(item.get("id")) in finished:
                assembly.duplicates[index] = "an earlier state of an item"
                continue
            thread.pieces.append(index)
            if kind in _ITEM_EVENTS:
                thread.add_item(dict(item))
            else:
                thread.add_event(kind, event)
        for thread in threads:
            if any(message.role == "assistant" for message in thread.messages):
                assembly.trajectories.append(thread.trajectory(group))
            else:
                assembly.set_apart.update((index, "the model never answered") for index in thread.pieces)
        return assembly


class _Thread:
    """A thread in the making."""

    def __init__(self, number: int) -> None:
        self.messages: list[Message] = []
        self.pieces: list[int] = []
        self._number = number
        self._thread_id: str | None = None
        self._is_new_turn = True
        self._stop_reason: str | None = None
        self._metadata: dict[str, Any] = {}
        self._failed = False

    def has_begun(self, thread_id: str | None) -> bool:
        """Whether another thread's events are in it already (a resumed thread starts again under its own id)."""
        return (self._thread_id is not None and self._thread_id != thread_id) or bool(self.messages)

    def add_event(self, kind: object, event: dict[str, Any]) -> None:
        """Take what an event says about the thread or its last turn."""
        match kind:
            case "thread.started":
                self._thread_id = as_text(event.get("thread_id"))
            case "turn.started":
                self._is_new_turn, self._stop_reason = True, None
            case "turn.completed":
                self._stop_reason = "turn_completed"
                self._set_usage(as_object(event.get("usage")))
            case "turn.failed" | "error":
                error = as_object(event.get("error")) if kind == "turn.failed" else event
                self._failed, self._stop_reason = True, "error"
                self._metadata.setdefault("errors", []).append(as_text(error.get("message")) or "")

    def add_item(self, item: dict[str, Any]) -> None:
        """Add what the model said or did."""
        item_id, kind = as_text(item.pop("id", None)), item.pop("type", None) or item.pop("item_type", None)
        if kind in ("agent_message", "assistant_message", "plan"):
            self._say(
                TextPart(as_text(item.pop("text", None)) or ""), {**item, "plan": True} if kind == "plan" else item
            )
        elif kind == "reasoning":
            self._say(ReasoningPart(as_text(item.pop("text", None)) or ""), {"reasoning_is_summary": True})
        elif kind == "error":
            self._metadata.setdefault("errors", []).append(as_text(item.get("message")) or "")
        elif isinstance(kind, str) and kind in _CALLS:
            call, result = _CALLS[kind](item_id, item)
            self._call(call)
            self.messages.append(result)
            self._is_new_turn = True
        else:
            # An item of a newer version: its own keys are all that is known of the call.
            self._call(tool_call(str(kind), item, id=item_id))
            self.messages.append(_result(item_id, str(kind), None, item))
            self._is_new_turn = True

    def trajectory(self, group: Group) -> Trajectory:
        """The finished trajectory."""
        return Trajectory(
            trajectory_id=group.trajectory_id(self._number),
            messages=self.messages,
            source=group.source(self.pieces),
            episode_id=self._thread_id,
            agent="codex",
            terminated=self._stop_reason == "turn_completed",
            stop_reason=self._stop_reason,
            outcome=Outcome("infrastructure_error") if self._failed else Outcome(),
            metadata=self._metadata,
            session_id=self._thread_id,
        )

    def _open(self) -> Message:
        if self._is_new_turn or not self.messages:
            self.messages.append(Message("assistant", producer=_MODEL))
            self._is_new_turn = False
        return self.messages[-1]

    def _say(self, part: ContentPart, metadata: dict[str, Any]) -> None:
        message = self._open()
        self.messages[-1] = msgspec.structs.replace(
            message, content=[*(message.content or ()), part], metadata={**message.metadata, **metadata}
        )

    def _call(self, call: ToolCall) -> None:
        message = self._open()
        self.messages[-1] = msgspec.structs.replace(message, tool_calls=[*message.tool_calls, call])

    def _set_usage(self, usage: dict[str, Any]) -> None:
        place = next((i for i in range(len(self.messages) - 1, -1, -1) if self.messages[i].role == "assistant"), None)
        if place is None or not usage:
            return
        counts = Usage(as_count(usage.get("input_tokens")), as_count(usage.get("output_tokens")))
        # The stream counts a turn of the user, which may hold several answers.
        metadata = {**self.messages[place].metadata, "usage": usage, "usage_is_of_turn": True}
        self.messages[place] = msgspec.structs.replace(self.messages[place], usage=counts, metadata=metadata)


def _finished_items(group: Group) -> set[Any]:
    finished = set()
    for piece in group.pieces:
        event = decode_object(piece.payload)
        if event.get("type") == "item.completed":
            finished.add(as_text(as_object(event.get("item")).get("id")))
    return finished - {None}


def _result(call_id: str | None, name: str, text: str | None, rest: dict[str, Any]) -> Message:
    error = None
    if (status := as_text(rest.get("status"))) in _FAILED:
        error = MessageError(status or "")
    code = rest.get("exit_code")
    if isinstance(code, int) and code != 0:
        error = MessageError("exit_code", str(code))
    if isinstance(message := as_object(rest.get("error")).get("message"), str):
        error = MessageError("error", message)
    content: list[ContentPart] | None = None if text is None else [TextPart(text)]
    return Message("tool", content, tool_call_id=call_id, name=name, error=error, producer=_ENVIRONMENT, metadata=rest)


def _command(item_id: str | None, item: dict[str, Any]) -> tuple[ToolCall, Message]:
    output = as_text(item.pop("aggregated_output", None))
    arguments = {"command": item.pop("command", None)}
    return tool_call("shell", arguments, id=item_id), _result(item_id, "shell", output, item)


def _file_change(item_id: str | None, item: dict[str, Any]) -> tuple[ToolCall, Message]:
    arguments = {"changes": item.pop("changes", None)}
    return tool_call("apply_patch", arguments, id=item_id), _result(item_id, "apply_patch", None, item)


def _mcp_call(item_id: str | None, item: dict[str, Any]) -> tuple[ToolCall, Message]:
    name = f"{item.pop('server', '')}.{item.pop('tool', '')}"
    arguments, result = item.pop("arguments", None), item.pop("result", None)
    arguments = arguments if isinstance(arguments, (dict, str)) else {} if arguments is None else json_text(arguments)
    content = as_object(result).get("content")
    parts = content if isinstance(content, list) else []
    texts = [text for part in parts if isinstance(text := as_object(part).get("text"), str)]
    if texts and len(texts) == len(parts):
        output: str | None = "".join(texts)
    else:
        output = None if result is None else json_text(result)
    return tool_call(name, arguments, id=item_id), _result(item_id, name, output, item)


def _web_search(item_id: str | None, item: dict[str, Any]) -> tuple[ToolCall, Message]:
    arguments: dict[str, Any] = {key: item.pop(key) for key in ("query", "action") if key in item}
    return tool_call("web_search", arguments, id=item_id), _result(item_id, "web_search", None, item)


def _todo_list(item_id: str | None, item: dict[str, Any]) -> tuple[ToolCall, Message]:
    arguments = {"items": item.pop("items", None)}
    return tool_call("update_plan", arguments, id=item_id), _result(item_id, "update_plan", None, item)


_CALLS: dict[str, Callable[[str | None, dict[str, Any]], tuple[ToolCall, Message]]] = {
    "command_execution": _command,
    "file_change": _file_change,
    "mcp_tool_call": _mcp_call,
    "web_search": _web_search,
    "todo_list": _todo_list,
}
