"""Messages of Pi sessions and of session traces (STS)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.primitives.times import iso_time
from offline_arl.logs.primitives.values import as_count, as_list, as_object, as_text, json_text, json_type, take_text
from offline_arl.logs.providers.openai_messages import convert_messages
from offline_arl.trajectories.schema import (
    ContentPart,
    ImagePart,
    Message,
    MessageError,
    Producer,
    ReasoningPart,
    TextPart,
    ToolCall,
    Usage,
    text_message,
    tool_call,
)

_CAMEL = {"reasoningContent": "reasoning_content", "toolCalls": "tool_calls", "toolCallId": "tool_call_id"}
_ENVELOPE = ("type", "id", "parentId", "timestamp")
_TRACE_ROLES = frozenset({"user", "assistant", "system", "tool"})


def convert_entry(record: dict[str, Any]) -> list[Message]:
    """The message of one record, none where it is not shown to the model.

    Raises:
        RecordRefusedError: It should hold a message and does not.
    """
    kind, time = record.get("type"), iso_time(record.get("timestamp"))
    if kind in ("compaction", "branch_summary"):
        summary = text_message("user", as_text(record.get("summary")) or "", kind="summary")
        found = [
            msgspec.structs.replace(summary, metadata=_rest(record, ("type", "id", "parentId", "timestamp", "summary")))
        ]
    elif kind == "custom_message":
        found = [_user({"role": "custom", **_rest(record, _ENVELOPE)})]
    else:
        message = record.get("message")
        if not isinstance(message, dict):
            raise RecordRefusedError(f"message: expected an object, got {json_type(message)}")
        role = message.get("role")
        handler = _HANDLERS.get(role) if isinstance(role, str) else None
        if handler is not None and not (role == "user" and "toolCallId" in message):
            found = [] if message.get("excludeFromContext") is True else [handler(dict(message))]
        elif isinstance(role, str) and role in _TRACE_ROLES:
            found = _trace_message(message)
        else:
            raise RecordRefusedError(f"message.role: expected a role of a session, got {role!r}")
    record_id = as_text(record.get("id"))
    return [
        msgspec.structs.replace(message, id=message.id or record_id, timestamp=time or message.timestamp)
        for message in found
    ]


def _trace_message(message: dict[str, Any]) -> list[Message]:
    """A message of a session trace: OpenAI chat in camel case."""
    fields = {_CAMEL.get(key, key): value for key, value in message.items()}
    time, model = iso_time(fields.pop("timestamp", None)), take_text(fields, "model")
    return [
        msgspec.structs.replace(
            found,
            timestamp=time,
            producer=_trace_producer(found, model),
        )
        for found in convert_messages([fields], "message")
    ]


def _trace_producer(message: Message, model: str | None) -> Producer:
    if message.role == "assistant":
        return Producer("model", model)
    return Producer("human") if message.role == "user" else message.producer


def _user(message: dict[str, Any]) -> Message:
    role, time = message.pop("role"), iso_time(message.pop("timestamp", None))
    content, metadata = _content(message.pop("content", None))
    producer = Producer("human") if role == "user" else Producer("script", as_text(message.get("customType")))
    rest = {key: value for key, value in message.items() if value is not None}
    return Message("user", content, producer=producer, timestamp=time, metadata={**rest, **metadata})


def _assistant(message: dict[str, Any]) -> Message:
    if "toolCalls" in message or "reasoningContent" in message or isinstance(message.get("content"), str):
        return _trace_message(message)[0]
    del message["role"]
    blocks = message.pop("content", None)
    parts, metadata = _content([block for block in as_list(blocks) if as_object(block).get("type") != "toolCall"])
    calls = [_call(block) for block in as_list(blocks) if as_object(block).get("type") == "toolCall"]
    usage = dict(as_object(message.pop("usage", None)))
    cost = as_object(usage.get("cost")).get("total")
    is_cost = isinstance(cost, (int, float)) and not isinstance(cost, bool)
    counts = Usage(as_count(usage.pop("input", None)), as_count(usage.pop("output", None)), cost if is_cost else None)
    error = as_text(message.pop("errorMessage", None))
    rest = {key: value for key, value in message.items() if key not in ("model", "timestamp") and value is not None}
    if usage:
        rest["usage"] = usage
    return Message(
        "assistant",
        parts if parts or not calls else None,
        calls,
        error=None if error is None else MessageError("error", error),
        producer=Producer("model", as_text(message.get("model"))),
        timestamp=iso_time(message.get("timestamp")),
        usage=None if counts == Usage() else counts,
        metadata={**rest, **metadata},
    )


def _call(block: dict[str, Any]) -> ToolCall:
    name, arguments = block.get("name"), block.get("arguments", block.get("input"))
    if not isinstance(name, str):
        raise RecordRefusedError(f"message.content, a call: name: expected a string, got {json_type(name)}")
    if not isinstance(arguments, (str, dict)):
        arguments = {} if arguments is None else json_text(arguments)
    return tool_call(name, arguments, id=as_text(block.get("id")))


def _tool_result(message: dict[str, Any]) -> Message:
    content, metadata = _content(message.pop("content", None))
    failed = message.pop("isError", None) is True
    call_id, name = as_text(message.pop("toolCallId", None)), as_text(message.pop("toolName", None))
    rest = {key: value for key, value in message.items() if key not in ("role", "timestamp") and value is not None}
    return Message(
        "tool",
        content,
        tool_call_id=call_id,
        name=name,
        error=MessageError("tool_error") if failed else None,
        producer=Producer("environment"),
        timestamp=iso_time(message.get("timestamp")),
        metadata={**rest, **metadata},
    )


def _bash(message: dict[str, Any]) -> Message:
    """A command that the user ran; the model is told of it in the user's name."""
    command, output = as_text(message.get("command")) or "", as_text(message.get("output")) or ""
    rest = {key: value for key, value in message.items() if key not in ("role", "timestamp") and value is not None}
    text = text_message("user", f"Ran `{command}`\n```\n{output}\n```", kind="script", name="bash")
    return msgspec.structs.replace(text, timestamp=iso_time(message.get("timestamp")), metadata=rest)


def _summary(message: dict[str, Any]) -> Message:
    rest = {key: value for key, value in message.items() if key not in ("role", "summary") and value is not None}
    text = text_message("user", as_text(message.get("summary")) or "", kind="summary")
    return msgspec.structs.replace(text, metadata=rest)


_HANDLERS: dict[str, Callable[[dict[str, Any]], Message]] = {
    "user": _user,
    "custom": _user,
    "hookMessage": _user,
    "assistant": _assistant,
    "toolResult": _tool_result,
    "bashExecution": _bash,
    "branchSummary": _summary,
    "compactionSummary": _summary,
}


def _content(content: object) -> tuple[list[ContentPart] | None, dict[str, Any]]:
    if content is None or isinstance(content, str):
        return (None if content is None else [TextPart(content)]), {}
    if not isinstance(content, list):
        raise RecordRefusedError(f"message.content: expected a string or a list, got {json_type(content)}")
    parts: list[ContentPart] = []
    metadata: dict[str, Any] = {}
    for index, block in enumerate(content):
        if not isinstance(block, dict):
            raise RecordRefusedError(f"message.content[{index}]: expected an object, got {json_type(block)}")
        kind, text = block.get("type"), block.get("text", block.get("thinking"))
        if kind == "text" and isinstance(text, str):
            parts.append(TextPart(text))
        elif kind == "thinking" and isinstance(text, str):
            parts.append(ReasoningPart(text, as_text(block.get("thinkingSignature"))))
        elif kind == "image" and isinstance(data := block.get("data"), str):
            parts.append(ImagePart(f"data:{as_text(block.get('mimeType')) or ''};base64,{data}"))
        else:
            metadata.setdefault("other_parts", []).append({"index": index, "part": block})
    return parts, metadata


def _rest(record: dict[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in known and value is not None}
