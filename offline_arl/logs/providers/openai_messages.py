"""Messages in the OpenAI chat form, as several log formats carry them.

Every function keeps what it does not understand: unknown keys go to the message's metadata, unknown content parts
to `metadata["other_parts"]`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.primitives.pairing import needs_pairing, pair_by_order
from offline_arl.logs.primitives.values import json_type
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
    TokenRecord,
    ToolCall,
    Usage,
    tool_call,
)

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
# Content parts of other providers' formats: reading them as OpenAI chat would lose calls and results.
_FOREIGN_PARTS = frozenset({"tool_use", "tool_result", "tool_call", "tool_call_response", "functionCall"})
_TOOL_PRODUCER = Producer("environment")


def convert_messages(values: object, where: str = "messages") -> list[Message]:
    """Convert a list of chat messages and pair tool results with their calls.

    Args:
        values: The parsed JSON value of the list; it is taken apart.
        where: Path of the list in the record, for error messages.

    Raises:
        RecordRefusedError: The value is not a list of chat messages; the reason names the message.
    """
    if not isinstance(values, list):
        raise RecordRefusedError(f"{where}: expected a list, got {json_type(values)}")
    if not values:
        raise RecordRefusedError(f"{where}: there are none")
    messages: list[Message] = []
    try:
        for value in values:
            messages.append(_message(value))  # noqa: PERF401 (the error below names the index)
    except RecordRefusedError as error:
        raise RecordRefusedError(f"{where}[{len(messages)}]{error}") from error
    return pair_by_order(messages) if any(map(needs_pairing, messages)) else messages


def convert_message(value: object, where: str = "message") -> Message:
    """Convert one chat message, taking `value` apart; calls and results without ids stay so (`pair_by_order`).

    Raises:
        RecordRefusedError: It is no chat message; the reason starts with `where`.
    """
    try:
        return _message(value)
    except RecordRefusedError as error:
        raise RecordRefusedError(f"{where}{error}") from error


def _message(fields: object) -> Message:
    """Convert one chat message, taking `fields` apart; the reason of a refusal starts with a path below it."""
    if not isinstance(fields, dict):
        raise RecordRefusedError(f": expected an object, got {json_type(fields)}")
    logged_role = fields.pop("role", None)
    role = _ROLES.get(logged_role) if isinstance(logged_role, str) else None
    if role is None:
        raise RecordRefusedError(f".role: expected one of {', '.join(_ROLES)}, got {logged_role!r}")
    producer = _TOOL_PRODUCER if role == "tool" else UNKNOWN_PRODUCER
    content = fields.pop("content", None)
    if isinstance(content, str) and not fields:
        return Message(role, [TextPart(content)], producer=producer)

    metadata: dict[str, Any] = {}
    logged_metadata = fields.pop("metadata", None)
    if isinstance(logged_metadata, dict):
        metadata = logged_metadata
    elif logged_metadata is not None:
        metadata["metadata"] = logged_metadata
    parts = None if content is None else _content(content, role, metadata)
    calls = _tool_calls(fields.pop("tool_calls", None), metadata)
    call_id, name = _string(fields.pop("tool_call_id", None)), _string(fields.pop("name", None))
    if logged_role == "function":
        metadata["legacy_function_role"] = True
    if not fields:
        return Message(role, parts, calls, call_id, name, producer=producer, metadata=metadata)

    legacy_call = fields.pop("function_call", None)
    if legacy_call is not None:
        calls.append(_call_of(legacy_call, None, ".function_call"))
        metadata["legacy_function_call"] = True
    refusal = fields.pop("refusal", None)
    if isinstance(refusal, str):
        metadata["refusal"] = refusal
        parts = [TextPart(refusal)] if parts is None else parts
    reasoning = _reasoning(fields)
    message = Message(
        role=role,
        content=[*reasoning, *(parts or ())] if reasoning else parts,
        tool_calls=calls,
        tool_call_id=call_id,
        name=name,
        error=_error(fields),
        producer=_producer(fields) or producer,
        tokens=_tokens(fields),
        timestamp=_string(fields.pop("timestamp", None)),
        usage=_usage(fields, metadata),
        trainable=_trainable(fields),
        metadata=metadata,
        id=fields.pop("id") if isinstance(fields.get("id"), str) else None,
    )
    for key, extra in fields.items():
        metadata.setdefault(key, extra)
    return message


def _string(value: object) -> str | None:
    return value if isinstance(value, str) else None if value is None else str(value)


def _content(content: object, role: Role, metadata: dict[str, Any]) -> list[ContentPart]:
    if isinstance(content, str):
        return [TextPart(content)]
    if isinstance(content, list):
        parts: list[ContentPart] = []
        others: list[dict[str, Any]] = []
        for index, value in enumerate(content):
            part = content_part(value, index)
            if part is None:
                others.append({"index": index, "part": value})
            else:
                parts.append(part)
        if others:
            metadata["other_parts"] = others
        return parts
    if role == "tool":
        # Some agents log the tool's result as the object it was; the model saw its JSON.
        metadata["content_was_json"] = True
        return [TextPart(msgspec.json.encode(content).decode())]
    raise RecordRefusedError(f".content: expected a string, a list or null, got {json_type(content)}")


def content_part(value: object, index: int) -> ContentPart | None:
    """One content part, or None where the type is unknown and has to be kept as it is."""
    if isinstance(value, str):
        return TextPart(value)
    if not isinstance(value, dict):
        raise RecordRefusedError(f".content[{index}]: expected an object or a string, got {json_type(value)}")
    kind = value.get("type")
    if isinstance(kind, str) and kind in _FOREIGN_PARTS:
        raise RecordRefusedError(f".content[{index}]: part {kind!r} is not of the OpenAI chat format")
    if kind in ("text", "input_text", "output_text") and isinstance(value.get("text"), str):
        return TextPart(value["text"])
    if kind == "refusal" and isinstance(value.get("refusal"), str):
        return TextPart(value["refusal"])
    if kind in ("reasoning", "thinking"):
        text = value.get("text", value.get("thinking"))
        if isinstance(text, str):
            return ReasoningPart(text, _string(value.get("signature")))
    if kind in ("image_url", "input_image"):
        image = value.get("image_url")
        uri = image.get("url") if isinstance(image, dict) else image
        detail = image.get("detail") if isinstance(image, dict) else value.get("detail")
        if isinstance(uri, str):
            return ImagePart(uri, _string(detail))
    if kind == "file" and isinstance(file := value.get("file"), dict):
        uri = file.get("file_id") or file.get("file_data") or file.get("filename")
        if isinstance(uri, str) and len(file) == 1:
            return FilePart(uri)
    if kind == "input_file" and value.keys() <= {"type", "file_id", "file_url", "file_data"}:
        uri = value.get("file_id") or value.get("file_url") or value.get("file_data")
        if isinstance(uri, str):
            return FilePart(uri)
    if kind == "input_audio" and isinstance(audio := value.get("input_audio"), dict):
        media_type = f"audio/{audio.get('format', 'wav')}"
        return FilePart(f"data:{media_type};base64,{audio.get('data', '')}", media_type)
    return None


def _reasoning(fields: dict[str, Any]) -> list[ContentPart]:
    """The reasoning that third-party servers put beside the content; two spellings of one text count once."""
    texts: list[str] = []
    for key in ("reasoning_content", "reasoning"):
        value = fields.get(key)
        if value is None:
            fields.pop(key, None)
        elif isinstance(value, str):
            del fields[key]
            if value and value not in texts:
                texts.append(value)
    return [ReasoningPart(text) for text in texts]


def _tool_calls(values: object, metadata: dict[str, Any]) -> list[ToolCall]:
    if values is None:
        return []
    if not isinstance(values, list):
        raise RecordRefusedError(f".tool_calls: expected a list, got {json_type(values)}")
    calls = []
    extras: dict[str, dict[str, Any]] = {}
    for index, value in enumerate(values):
        try:
            call, extra = _tool_call(value)
        except RecordRefusedError as error:
            raise RecordRefusedError(f".tool_calls[{index}]{error}") from error
        calls.append(call)
        if extra:
            extras[str(index)] = extra
    if extras:
        metadata["tool_call_extras"] = extras
    return calls


def _tool_call(value: object) -> tuple[ToolCall, dict[str, Any]]:
    """One entry of `tool_calls`, nested as OpenAI has it or flat, and the keys that have no place in it."""
    if not isinstance(value, dict):
        raise RecordRefusedError(f": expected an object, got {json_type(value)}")
    call_id = value.pop("id", None)
    kind = value.get("type")
    if kind is None or kind == "function":
        value.pop("type", None)
    if isinstance(value.get("function"), dict):
        return _call_of(value.pop("function"), call_id, ".function"), value
    if isinstance(custom := value.get("custom"), dict):
        # A custom tool takes free text, so there is no JSON to parse.
        del value["custom"]
        problem = "a custom tool takes free text, not JSON"
        raw = _string(custom.get("input")) or ""
        return ToolCall(_name(custom, ".custom"), raw, None, _string(call_id), problem), value
    call = _call_of(value, call_id, "")
    return call, {key: item for key, item in value.items() if key not in ("name", "arguments")}


def _call_of(value: object, call_id: object, where: str) -> ToolCall:
    if not isinstance(value, dict):
        raise RecordRefusedError(f"{where}: expected an object, got {json_type(value)}")
    arguments = value.get("arguments")
    if arguments is None:
        arguments = ""
    elif not isinstance(arguments, (str, dict)):
        arguments = msgspec.json.encode(arguments).decode()
    return tool_call(_name(value, where), arguments, id=_string(call_id))


def _name(value: dict[str, Any], where: str) -> str:
    name = value.get("name")
    if not isinstance(name, str):
        raise RecordRefusedError(f"{where}.name: expected a string, got {json_type(name)}")
    return name


def _error(fields: dict[str, Any]) -> MessageError | None:
    error = fields.get("error")
    if isinstance(error, str):
        del fields["error"]
        return MessageError("error", error) if error else None
    if isinstance(error, dict) and error.keys() <= {"type", "text", "message"}:
        del fields["error"]
        return MessageError(
            _string(error.get("type")) or "error", _string(error.get("text", error.get("message"))) or ""
        )
    if fields.get("is_error") is True:
        del fields["is_error"]
        return MessageError("error")
    return None


def _producer(fields: dict[str, Any]) -> Producer | None:
    producer = fields.get("producer")
    if isinstance(producer, str):
        producer = {"kind": producer}
    if isinstance(producer, dict):
        try:
            converted = msgspec.convert(producer, Producer)
        except msgspec.ValidationError:
            pass
        else:
            del fields["producer"]
            return converted
    return None


def _tokens(fields: dict[str, Any]) -> TokenRecord | None:
    tokens = fields.pop("tokens", None)
    if tokens is None:
        return None
    try:
        return msgspec.convert(tokens, TokenRecord)
    except msgspec.ValidationError as error:
        raise RecordRefusedError(f".tokens: {error}") from error


def _usage(fields: dict[str, Any], metadata: dict[str, Any]) -> Usage | None:
    usage = fields.pop("usage", None)
    if not isinstance(usage, dict):
        if usage is not None:
            metadata["usage"] = usage
        return None
    rest = dict(usage)
    counts = [rest.pop("input_tokens", None), rest.pop("output_tokens", None)]
    for position, key in enumerate(("prompt_tokens", "completion_tokens")):
        value = rest.pop(key, None)
        counts[position] = value if counts[position] is None else counts[position]
    cost = rest.pop("cost", None)
    numbers = [*counts, cost]
    if any(isinstance(number, bool) or not isinstance(number, (int, float, type(None))) for number in numbers):
        metadata["usage"] = usage
        return None
    if rest:
        metadata["usage"] = rest
    input_tokens, output_tokens = (None if count is None else int(count) for count in counts)
    return Usage(input_tokens, output_tokens, None if cost is None else float(cost))


def _trainable(fields: dict[str, Any]) -> bool | None:
    """`trainable`, or OpenAI's fine-tuning `weight` of 0 or 1; another weight is kept in the metadata too."""
    trainable = fields.get("trainable")
    if isinstance(trainable, bool):
        del fields["trainable"]
        return trainable
    weight = fields.get("weight")
    if isinstance(weight, (int, float)) and not isinstance(weight, bool):
        if weight in (0, 1):
            del fields["weight"]
        return weight > 0
    return None
