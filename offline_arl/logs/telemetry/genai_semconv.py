"""OpenTelemetry's semantic conventions for generative AI, in all the forms in which they carry messages.

- Attributes since 1.37: `gen_ai.system_instructions`, `gen_ai.input.messages`, `gen_ai.output.messages` and
  `gen_ai.tool.definitions`, JSON texts on spans and structured on events (and on spans that can hold structures).
- Log events from 1.28 to 1.36, one a message: `gen_ai.system.message`, `gen_ai.user.message`,
  `gen_ai.assistant.message`, `gen_ai.tool.message`, and `gen_ai.choice` for each answer. Some libraries write them
  as events of the span, with the body as JSON text in the attribute `gen_ai.event.content`, or as one JSON list in
  the attribute `events` of the span.
- Before 1.28: the span events `gen_ai.content.prompt` and `gen_ai.content.completion`, or the attributes
  `gen_ai.prompt` and `gen_ai.completion`, each with one JSON text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.platforms.message_shapes import decode_text, read_messages, system_messages
from offline_arl.logs.platforms.tool_shapes import tools_text
from offline_arl.logs.primitives.values import as_list, as_object, json_type
from offline_arl.logs.telemetry.span_attributes import json_value
from offline_arl.logs.telemetry.spans import Span, SpanEvent
from offline_arl.trajectories.schema import Message

# All content of one call in one log event, in the attributes of 1.37; and a judgement of a call.
DETAILS_EVENT = "gen_ai.client.inference.operation.details"
EVALUATION_EVENT = "gen_ai.evaluation.result"
_MESSAGE_EVENTS = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
_CHOICE_EVENT = "gen_ai.choice"
_PROMPT, _ANSWER, _SYSTEM = "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions"
_TOOLS = "gen_ai.tool.definitions"
_ROLES = {"human": "user", "ai": "assistant", "model": "assistant"}


@dataclass
class CallContent:
    """What a span says of one model call beyond names, times and counts.

    Attributes:
        used: The attributes whose content is here; the others of the span go to the metadata.
        metadata: What the content held that is neither a message nor a tool.
    """

    messages: list[Message]
    choices: list[Message]
    tools: str | None = None
    used: set[str] = field(default_factory=set)
    metadata: dict[str, Any] = field(default_factory=dict)


def is_message_event(event: SpanEvent) -> bool:
    """Whether an event is one message, or one answer, of a model call."""
    return event.name in _MESSAGE_EVENTS or event.name == _CHOICE_EVENT


def is_choice_event(event: SpanEvent) -> bool:
    """Whether an event is an answer."""
    return event.name == _CHOICE_EVENT


def read_attributes(span: Span) -> CallContent | None:
    """The messages in the attributes of 1.37 and later; None where there are none.

    Raises:
        RecordRefusedError: A JSON text is cut off, or does not hold messages.
    """
    attributes = span.attributes
    used = {key for key in (_PROMPT, _ANSWER, _SYSTEM) if key in attributes}
    if not used:
        return None
    prompt = _messages(attributes.get(_PROMPT), _PROMPT, "user")
    system = _instructions(attributes.get(_SYSTEM))
    if system and not (prompt and prompt[0].role in ("system", "developer") and prompt[0].text == system[0].text):
        prompt = [*system, *prompt]
    choices = _messages(attributes.get(_ANSWER), _ANSWER, "assistant")
    tools = tools_text(attributes.get(_TOOLS))
    return CallContent(prompt, choices, tools, used if tools is None else used | {_TOOLS})


def read_events(events: Sequence[SpanEvent]) -> CallContent | None:
    """The messages in events of one message each (1.28 to 1.36), in order; None where none has content.

    Raises:
        RecordRefusedError: A body is cut off, or is no message.
    """
    prompt: list[dict[str, Any]] = []
    choices: list[tuple[int, dict[str, Any]]] = []
    for event in events:
        if event.name in _MESSAGE_EVENTS:
            prompt.append({"event.name": event.name, "role": _MESSAGE_EVENTS[event.name], **_body(event)})
        elif event.name == _CHOICE_EVENT:
            choices.append(_choice(_body(event), len(choices)))
    answers = [choice for _, choice in sorted(choices, key=lambda item: item[0])]
    if not any(map(_has_content, [*prompt, *answers])):
        return None
    content = CallContent(read_messages(prompt, "events"), read_messages(answers, _CHOICE_EVENT))
    for message in (*content.messages, *content.choices):
        message.metadata.pop("event.name", None)
    return content


def read_events_attribute(span: Span) -> CallContent | None:
    """Message events that were written as one JSON list into the attribute `events` of the span."""
    values = [as_object(value) for value in as_list(decode_text(span.attributes.get("events")))]
    events = [SpanEvent(str(value.get("event.name")), body=_without_index(value)) for value in values]
    content = read_events(events)
    if content is not None:
        content.used.add("events")
    return content


def read_deprecated(span: Span) -> CallContent | None:
    """Prompt and completion as one JSON text each: attributes, or the span events of before 1.28.

    Raises:
        RecordRefusedError: A JSON text is cut off, or does not hold messages.
    """
    prompt, completion = span.attributes.get("gen_ai.prompt"), span.attributes.get("gen_ai.completion")
    used = {str(key) for key in ("gen_ai.prompt", "gen_ai.completion") if key in span.attributes}
    for event in span.events:
        if event.name == "gen_ai.content.prompt":
            prompt = event.attributes.get("gen_ai.prompt", prompt)
        elif event.name == "gen_ai.content.completion":
            completion = event.attributes.get("gen_ai.completion", completion)
    if prompt is None and completion is None:
        return None
    messages = _loose_messages(prompt, "gen_ai.prompt", "user")
    return CallContent(messages, _loose_messages(completion, "gen_ai.completion", "assistant"), used=used)


def _loose_messages(value: object, where: str, role: str) -> list[Message]:
    """Messages from a list of them, one of them, `{"text", "finish_reason"}`, or a plain text."""
    if isinstance(value, str) and value.lstrip()[:1] not in ("{", "["):
        value = [{"content": value}] if value else []
    value = json_value(value, where)
    if isinstance(value, dict):
        value = value["messages"] if isinstance(value.get("messages"), list) else [value]
    return _messages(value, where, role)


def _messages(value: object, where: str, role: str) -> list[Message]:
    """Messages of any shape from a list or its JSON text; `role` is that of a message that does not say."""
    values = json_value(value, where)
    if values is None:
        return []
    if not isinstance(values, list):
        raise RecordRefusedError(f"{where}: expected a list, got {json_type(values)}")
    return read_messages([_with_role(item, role) for item in values], where)


def _with_role(item: object, role: str) -> object:
    if isinstance(item, str):
        return {"role": role, "content": item}
    if not isinstance(item, dict) or "type" in item:
        return item
    logged = item.get("role")
    fields = {
        **item,
        "role": role if logged is None else _ROLES.get(logged, logged) if isinstance(logged, str) else logged,
    }
    if "content" not in fields and "parts" not in fields and isinstance(fields.get("text"), str):
        fields["content"] = fields.pop("text")
    return {key: value for key, value in fields.items() if key != "name" or value is not None}


def _instructions(value: object) -> list[Message]:
    """The system prompt: parts, a text or, from some writers, messages."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        value = json_value(value, _SYSTEM)
    if isinstance(value, list) and any("role" in as_object(part) for part in value):
        return _messages(value, _SYSTEM, "system")
    return system_messages(value, _SYSTEM) if value else []


def _body(event: SpanEvent) -> dict[str, Any]:
    body = event.body
    if body is None and "gen_ai.event.content" in event.attributes:
        body = json_value(event.attributes["gen_ai.event.content"], f"{event.name}: gen_ai.event.content")
    if body is None:
        # Some libraries put the fields of the body beside the other attributes.
        body = {key: decode_text(value) for key, value in event.attributes.items() if "." not in key}
    return {"content": body} if isinstance(body, str) else dict(as_object(body))


def _without_index(value: dict[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in value.items() if key not in ("event.name", "gen_ai.message.index")}


def _choice(body: dict[str, Any], position: int) -> tuple[int, dict[str, Any]]:
    """The index of an answer, and its message; some writers put `tool_calls` beside the message."""
    index, message = body.pop("index", position), body.pop("message", None)
    fields = {"content": message} if isinstance(message, str) else dict(as_object(message))
    fields = {"role": "assistant", **fields}
    fields.update({key: value for key, value in body.items() if value is not None and key not in fields})
    return (index if isinstance(index, int) else position), fields


def _has_content(message: dict[str, Any]) -> bool:
    """Whether a message holds more than its frame: with capture off, calls keep their names and lose arguments."""
    if message.get("content") not in (None, "", []):
        return True
    functions = [as_object(as_object(call).get("function")) for call in as_list(message.get("tool_calls"))]
    return any("arguments" in function for function in functions)
