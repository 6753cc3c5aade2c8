"""OpenLLMetry before it followed the conventions of 1.37: `gen_ai.prompt.{i}.role`, `gen_ai.completion.{i}.content`.

Tool calls are `gen_ai.completion.{i}.tool_calls.{j}.name`, tools `llm.request.functions.{i}.name`; workflow spans have
`traceloop.span.kind` and JSON in `traceloop.entity.input`. With capture off, roles and finish reasons remain.
"""

from __future__ import annotations

from typing import Any

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.platforms.message_shapes import decode_text, read_messages
from offline_arl.logs.platforms.tool_shapes import tools_text
from offline_arl.logs.primitives.values import as_list, as_object
from offline_arl.logs.telemetry.genai_semconv import CallContent
from offline_arl.logs.telemetry.span_attributes import keys_below, subtree
from offline_arl.logs.telemetry.spans import Span
from offline_arl.trajectories.schema import Message

_PROMPT, _ANSWER, _TOOLS = "gen_ai.prompt", "gen_ai.completion", "llm.request.functions"


def read(span: Span) -> CallContent | None:
    """The messages of a span; None where it has none of this convention, or none with content.

    Raises:
        RecordRefusedError: Some attributes of the messages were dropped.
    """
    indexed = {key: value for key, value in span.attributes.items() if key.startswith((_PROMPT + ".", _ANSWER + "."))}
    if not indexed:
        return None
    if span.dropped:
        raise RecordRefusedError(f"{span.dropped} attributes were dropped by the SDK's limit")
    prompt, choices = _messages(indexed, _PROMPT, "user"), _messages(indexed, _ANSWER, "assistant")
    if not any(message.content or message.tool_calls for message in (*prompt, *choices)):
        return None
    functions = [
        {**as_object(item), "parameters": decode_text(as_object(item).get("parameters"))}
        for item in as_list(subtree(span.attributes, _TOOLS))
    ]
    tools = tools_text(functions)
    used = set(indexed) if tools is None else indexed.keys() | keys_below(span.attributes, _TOOLS)
    return CallContent(prompt, choices, tools, used)


def _messages(attributes: dict[str, Any], prefix: str, default_role: str) -> list[Message]:
    messages = []
    for value in as_list(subtree(attributes, prefix)):
        fields = {**as_object(value)}
        role = fields.get("role", "unknown")
        fields["role"] = default_role if role == "unknown" else role
        fields["content"] = _content(fields.get("content"))
        messages.append(fields)
    return read_messages(messages, prefix)


def _content(value: object) -> object:
    """A text, or the parts whose JSON text it is."""
    parts = decode_text(value)
    is_parts = isinstance(parts, list) and bool(parts) and all("type" in as_object(part) for part in parts)
    return parts if is_parts else value
