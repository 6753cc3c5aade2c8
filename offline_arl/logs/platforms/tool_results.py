"""Results of tools that a trace records as operations of their own, matched with the calls of the model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.platforms.framework_messages import chat_messages
from offline_arl.logs.platforms.message_shapes import decode_text
from offline_arl.logs.platforms.trace_operations import Operation, in_time_order, moment
from offline_arl.logs.primitives.values import as_object, json_text
from offline_arl.logs.providers.openai_messages import convert_message
from offline_arl.trajectories.schema import Message, Producer, ToolCall, text_message

# Where tracers wrap the arguments of a tool.
_WRAPPERS = ("input", "tool_input", "arguments", "args", "kwargs")


class ToolRuns:
    """The tool runs of a trace; each answers one call."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        runs = in_time_order(operation for operation in operations if operation.kind == "tool")
        self._by_call = {run.tool_call_id: run for run in runs if run.tool_call_id is not None}
        self._unclaimed = [run for run in runs if run.tool_call_id is None]
        self._answered: dict[str, Operation] = {}
        self.used: set[int] = set()  # pieces of runs that answer a call

    def result(self, call: ToolCall, since: str | None, until: str | None = None) -> Message | None:
        """The result of a call that a run between two points in time gave, None where there is none.

        A run that does not name its call answers the first open one of its name and arguments, else of its name.
        """
        if call.id is None:
            return None
        run = self._by_call.get(call.id) or self._answered.get(call.id) or self._claim(call, since, until)
        if run is None:
            return None
        self._answered[call.id] = run
        self.used.update(run.pieces)
        return result_message(run, call)

    def call_of(self, run: Operation) -> str | None:
        """The id of the call that a run answers, as far as it is known."""
        if run.tool_call_id is not None:
            return run.tool_call_id
        return next((call_id for call_id, answer in self._answered.items() if answer is run), None)

    def _claim(self, call: ToolCall, since: str | None, until: str | None) -> Operation | None:
        candidates = [
            run
            for run in self._unclaimed
            if _has_name(run, call.name)
            and moment(run.started_at) >= moment(since)
            and (until is None or moment(run.started_at) <= moment(until))
        ]
        exact = [run for run in candidates if call.arguments is not None and call.arguments in _arguments(run)]
        run = next(iter(exact or candidates), None)
        if run is not None:
            self._unclaimed.remove(run)
        return run


def _has_name(run: Operation, name: str) -> bool:
    """Whether a run is of a tool; tracers put a kind before the name ("execute_tool add", "tool.add")."""
    return run.name is not None and (run.name == name or run.name.endswith((f" {name}", f".{name}")))


def _arguments(run: Operation) -> list[Any]:
    """What may be the arguments of a run."""
    value = decode_text(run.input)
    return [value, *(decode_text(as_object(value).get(key)) for key in _WRAPPERS)]


def result_message(run: Operation, call: ToolCall) -> Message:
    """A run as the message with the result of a call."""
    message = _content(run.output)
    return msgspec.structs.replace(
        message,
        tool_call_id=call.id,
        name=call.name,
        id=run.operation_id,
        timestamp=run.ended_at or run.started_at,
        error=run.error or message.error,
        producer=Producer("environment"),
    )


def _content(output: object) -> Message:
    """The result as a message: of a framework's tool message, of content parts, or the text or JSON that it is."""
    value = decode_text(output)
    if output is None:
        return Message("tool", None)
    if isinstance(value, dict):
        for candidate in (value, as_object(value.get("output"))):
            found = chat_messages(candidate) or ([{"role": "tool", **candidate}] if _is_parts(candidate) else [])
            if len(found) == 1 and found[0].get("role") == "tool":
                try:
                    return convert_message(found[0])
                except RecordRefusedError:
                    break
        if value.keys() == {"output"} and isinstance(value["output"], str):
            return text_message("tool", value["output"])
    if isinstance(output, str):
        # Text is what the model read, also where it is JSON; quotes around it are of the log.
        return text_message("tool", value if isinstance(value, str) else output)
    message = text_message("tool", json_text(value))
    return msgspec.structs.replace(message, metadata={"content_was_json": True})


def _is_parts(value: dict[str, Any]) -> bool:
    content = value.get("content")
    return value.keys() <= {"content", "isError", "is_error"} and isinstance(content, list)
