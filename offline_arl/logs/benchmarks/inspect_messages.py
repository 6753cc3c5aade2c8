"""Messages, tools and attachments of Inspect logs.

A message has `{id, role, content, source, metadata}` and what its role adds; `tool_calls[].function` is a name, its
arguments an object. Long texts and images stand elsewhere and are referred to as `attachment://<hash>`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.primitives.values import as_count, as_list, as_object, as_text, json_text, json_type
from offline_arl.logs.providers.openai_tools import normalize_tools
from offline_arl.trajectories.schema import (
    UNKNOWN_PRODUCER,
    ContentPart,
    FilePart,
    ImagePart,
    Message,
    MessageError,
    Producer,
    ReasoningPart,
    Role,
    TextPart,
    ToolCall,
    Usage,
    tool_call,
)

_ATTACHMENT = "attachment://"
_OLD_ATTACHMENT = "tc://"
_ROLES: dict[str, Role] = {"system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_FILES = {"audio": "audio", "video": "video", "document": "document"}  # type of a content part to its key


def resolve(value: Any, attachments: Mapping[str, str]) -> Any:
    """`value` with attachments in place of references to them; a reference to none stays."""
    if isinstance(value, str):
        if value.startswith((_ATTACHMENT, _OLD_ATTACHMENT)):
            return attachments.get(value.partition("://")[2], value)
        return value
    if isinstance(value, list):
        return [resolve(item, attachments) for item in value]
    if isinstance(value, dict):
        return {key: resolve(item, attachments) for key, item in value.items()}
    return value


def attachments_of(sample: Mapping[str, Any]) -> dict[str, str]:
    """The attachments of a sample by hash."""
    return {key: text for key, text in as_object(sample.get("attachments")).items() if isinstance(text, str)}


def convert_messages(values: object, where: str) -> list[Message]:
    """Convert a list of messages; null and missing are none.

    Raises:
        RecordRefusedError: It is no list of messages; the reason starts with a path.
    """
    if values is None:
        return []
    if not isinstance(values, list):
        raise RecordRefusedError(f"{where}: expected a list, got {json_type(values)}")
    return [convert_message(value, f"{where}[{index}]") for index, value in enumerate(values)]


def convert_message(value: object, where: str) -> Message:
    """Convert one message.

    Raises:
        RecordRefusedError: It is no message; the reason starts with `where`.
    """
    if not isinstance(value, dict):
        raise RecordRefusedError(f"{where}: expected an object, got {json_type(value)}")
    fields = dict(value)
    logged_role = fields.pop("role", None)
    role = _ROLES.get(logged_role) if isinstance(logged_role, str) else None
    if role is None:
        raise RecordRefusedError(f"{where}.role: expected one of {', '.join(_ROLES)}, got {logged_role!r}")
    metadata: dict[str, Any] = {}
    content = _content(fields.pop("content", None), where, metadata)
    calls = _calls(fields.pop("tool_calls", None), where, metadata)
    call_id = fields.get("tool_call_id")
    if role == "tool" and (call_id is None or isinstance(call_id, str)):
        fields.pop("tool_call_id", None)
    else:
        # A user message lists the calls that it answers for.
        call_id = None
    message = Message(
        role=role,
        content=content,
        tool_calls=calls,
        tool_call_id=call_id,
        name=_take(fields, "function") if role == "tool" else None,
        error=_error(fields) if role == "tool" else None,
        producer=_producer(role, fields),
        metadata=metadata,
        id=_take(fields, "id"),
    )
    logged = fields.pop("metadata", None)
    if isinstance(logged, dict):
        metadata.update(logged)
    elif logged is not None:
        metadata["metadata"] = logged
    for key, extra in fields.items():
        if extra is not None:
            metadata.setdefault(key, extra)
    return message


def convert_tools(values: object, where: str) -> str | None:
    """The tools of a model call in OpenAI form; None where they are not logged.

    Raises:
        RecordRefusedError: It is no list of tools.
    """
    if values is None:
        return None
    try:
        return normalize_tools(json_text(values).encode())
    except RecordRefusedError as error:
        raise RecordRefusedError(f"{where}.{error}") from error


def convert_usage(value: object) -> Usage | None:
    """The usage of a model call; input tokens are all that the model read, those from a cache too."""
    if not isinstance(value, dict):
        return None
    counts = [as_count(value.get(key)) for key in ("input_tokens", "input_tokens_cache_read")]
    counts.append(as_count(value.get("input_tokens_cache_write")))
    known = [count for count in counts if count is not None]
    cost = value.get("total_cost")
    return Usage(
        sum(known) if known else None,
        as_count(value.get("output_tokens")),
        float(cost) if isinstance(cost, (int, float)) and not isinstance(cost, bool) else None,
    )


def _take(fields: dict[str, Any], key: str) -> str | None:
    value = fields.get(key)
    return fields.pop(key) if isinstance(value, str) else None


def _producer(role: Role, fields: dict[str, Any]) -> Producer:
    if role == "tool":
        return Producer("environment")
    source = fields.get("source")
    if role == "assistant":
        if source == "generate":
            return Producer("model", as_text(fields.get("model")))
        # What the data set holds is an example, not an answer.
        return Producer("demonstration") if source == "input" else UNKNOWN_PRODUCER
    if as_object(fields.get("metadata")).get("summary") is True:
        return Producer("summary")
    if source == "operator":
        return Producer("human")
    return Producer("script")


def _content(content: object, where: str, metadata: dict[str, Any]) -> list[ContentPart] | None:
    if content is None:
        return None
    if isinstance(content, str):
        return [TextPart(content)]
    if not isinstance(content, list):
        raise RecordRefusedError(f"{where}.content: expected a string or a list, got {json_type(content)}")
    parts: list[ContentPart] = []
    others = []
    for index, value in enumerate(content):
        part = _part(value)
        if part is not None:
            parts.append(part)
        extra = _beyond(value, part)
        if extra:
            others.append({"index": index, "part": extra})
    if others:
        metadata["other_parts"] = others
    return parts


def _part(value: object) -> ContentPart | None:
    """One content part, or None where it has no place in a message (a provider's own data, a tool that it ran)."""
    if isinstance(value, str):
        return TextPart(value)
    if not isinstance(value, dict):
        return None
    kind = value.get("type")
    if kind == "text" and isinstance(value.get("text"), str):
        return TextPart(value["text"])
    if kind == "reasoning" and isinstance(value.get("reasoning"), str):
        if value.get("redacted") is True:
            # What is sealed stays as the signature of an unreadable part; a summary is readable.
            return ReasoningPart(as_text(value.get("summary")) or "", value["reasoning"], encrypted=True)
        return ReasoningPart(value["reasoning"], as_text(value.get("signature")))
    if kind == "image" and isinstance(value.get("image"), str):
        return ImagePart(value["image"], as_text(value.get("detail")))
    if isinstance(kind, str) and kind in _FILES and isinstance(uri := value.get(_FILES[kind]), str):
        return FilePart(uri, _media_type(kind, value))
    return None


def _media_type(kind: str, value: dict[str, Any]) -> str | None:
    if kind == "document":
        return as_text(value.get("mime_type")) or None
    form = as_text(value.get("format"))
    return None if form is None else f"{kind}/{form}"


_CARRIED = {
    "text": {"type", "text"},
    "reasoning": {"type", "reasoning", "signature"},
    "image": {"type", "image", "detail"},
    "audio": {"type", "audio", "format"},
    "video": {"type", "video", "format"},
    "document": {"type", "document", "mime_type"},
}


def _beyond(value: object, part: ContentPart | None) -> object:
    """What of a logged part the converted one does not say."""
    if part is None:
        return value
    if not isinstance(value, dict):
        return None
    carried = _CARRIED[value["type"]]
    return {key: item for key, item in value.items() if key not in carried and item not in (None, False, "")}


def _calls(values: object, where: str, metadata: dict[str, Any]) -> list[ToolCall]:
    if values is None:
        return []
    if not isinstance(values, list):
        raise RecordRefusedError(f"{where}.tool_calls: expected a list, got {json_type(values)}")
    calls, extras = [], {}
    for index, value in enumerate(values):
        call, extra = _call(value, f"{where}.tool_calls[{index}]")
        calls.append(call)
        if extra:
            extras[str(index)] = extra
    if extras:
        metadata["tool_call_extras"] = extras
    return calls


def _call(value: object, where: str) -> tuple[ToolCall, dict[str, Any]]:
    if not isinstance(value, dict):
        raise RecordRefusedError(f"{where}: expected an object, got {json_type(value)}")
    name, arguments = value.get("function"), value.get("arguments")
    if not isinstance(name, str):
        raise RecordRefusedError(f"{where}.function: expected a string, got {json_type(name)}")
    if not isinstance(arguments, (dict, str)):
        arguments = {} if arguments is None else json_text(arguments)
    call = tool_call(name, arguments, id=as_text(value.get("id")))
    problem = as_text(value.get("parse_error"))
    if problem is not None:
        # The model's text was no JSON; Inspect keeps what it could make of it.
        raw = arguments if isinstance(arguments, str) else json_text(arguments)
        call = ToolCall(name, raw, None, call.id, problem)
    known = {"function", "arguments", "id", "parse_error"}
    extra = {key: item for key, item in value.items() if key not in known and item is not None}
    if extra.get("type") == "function":
        del extra["type"]
    return call, extra


def _error(fields: dict[str, Any]) -> MessageError | None:
    error = fields.get("error")
    if isinstance(error, dict):
        del fields["error"]
        text = error.get("message")
        return MessageError(as_text(error.get("type")) or "unknown", text if isinstance(text, str) else json_text(text))
    old = fields.get("tool_error")
    if isinstance(old, str):
        del fields["tool_error"]
        return MessageError("unknown", old)
    return None


def tool_result(event: Mapping[str, Any], where: str) -> Message:
    """The message that a tool event stands for, where no message holds its result."""
    result = event.get("result")
    if isinstance(result, dict) or (result is not None and not isinstance(result, (str, list))):
        result = [result] if isinstance(result, dict) else json_text(result)
    value = {
        "role": "tool",
        "content": "" if result is None else as_list(result) or result,
        "tool_call_id": event.get("id"),
        "function": event.get("function"),
        "error": event.get("error"),
        "id": event.get("message_id"),
    }
    return convert_message(value, where)
