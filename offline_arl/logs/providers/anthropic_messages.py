"""Messages, tools and responses in the Anthropic form, as several log formats carry them.

What the form hides is set right: tool results, which sit in user messages, become messages of their own; where the
provider ran a tool itself in the middle of a response, the response becomes several messages, because the model
read the result before it went on. Unknown keys and blocks are kept in the metadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.primitives.values import as_count, as_object, as_text, json_text, json_type, take_text
from offline_arl.trajectories.schema import (
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

_ENVIRONMENT = Producer("environment")
_CALL_BLOCKS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}
# Keys of a block that its message holds in full, by type of block; any other key is kept as an extra.
_HELD_KEYS = {
    "text": {"type", "text"},
    "thinking": {"type", "thinking", "signature"},
    "redacted_thinking": {"type", "data"},
    "image": {"type", "source"},
    "document": {"type", "source"},
}
_CUT_REASONS = frozenset({"max_tokens", "model_context_window_exceeded"})


class Answer(NamedTuple):
    """A response as messages: one, or several where the provider ran tools in between; the model made the last."""

    messages: list[Message]
    stop_reason: str | None
    truncated: bool  # cut by a limit of tokens
    model: str | None


def convert_messages(values: object, where: str = "messages") -> list[Message]:
    """Convert a list of messages; tool results become messages of role "tool" that name their calls.

    Args:
        values: The parsed JSON value of the list; it is taken apart.
        where: Path of the list in the record, for error messages.

    Raises:
        RecordRefusedError: The value is not a list of such messages; the reason names the message.
    """
    if not isinstance(values, list):
        raise RecordRefusedError(f"{where}: expected a list, got {json_type(values)}")
    if not values:
        raise RecordRefusedError(f"{where}: there are none")
    messages: list[Message] = []
    for index, value in enumerate(values):
        messages.extend(convert_message(value, f"{where}[{index}]"))
    return name_results(messages)


def convert_message(fields: object, where: str = "message") -> list[Message]:
    """Convert one message, taking `fields` apart; several messages where it holds tool results.

    Raises:
        RecordRefusedError: It is no message of this form; the reason starts with `where`.
    """
    if not isinstance(fields, dict):
        raise RecordRefusedError(f"{where}: expected an object, got {json_type(fields)}")
    logged_role = fields.pop("role", None)
    role = _ROLES.get(logged_role) if isinstance(logged_role, str) else None
    if role is None:
        raise RecordRefusedError(f"{where}.role: expected one of {', '.join(_ROLES)}, got {logged_role!r}")
    content = fields.pop("content", None)
    if fields.get("type") == "message":
        del fields["type"]
    turn = _Turn(role)
    if isinstance(content, str):
        turn.parts.append(TextPart(content))
    elif isinstance(content, list):
        for index, block in enumerate(content):
            turn.add(block, index, f"{where}.content[{index}]")
    elif content is not None:
        raise RecordRefusedError(f"{where}.content: expected a string or a list, got {json_type(content)}")
    return _with_envelope(turn.finish(is_empty=content is None), fields)


def system_messages(system: object, where: str = "system") -> list[Message]:
    """The system prompt, a string or blocks, as a list of one message; none where there is no prompt."""
    if system is None or system == []:
        return []
    return convert_message({"role": "system", "content": system}, where)


def convert_answer(response: object, where: str = "response") -> Answer:
    """Convert a response object (`anthropic_stream.response_of_stream` makes one from a stream).

    Raises:
        RecordRefusedError: It is not a response with content.
    """
    if not isinstance(response, dict):
        raise RecordRefusedError(f"{where}: expected an object, got {json_type(response)}")
    fields = {"role": "assistant", **response}
    model, stop_reason = as_text(fields.get("model")), as_text(fields.get("stop_reason"))
    if not isinstance(fields.get("content"), list):
        raise RecordRefusedError(f"{where}.content: expected a list, got {json_type(fields.get('content'))}")
    messages = convert_message(fields, where)
    if messages[-1].role == "tool":
        # The response ended (pause_turn) after a tool of the provider's.
        messages.append(Message("assistant", [], id=messages[-1].id, producer=Producer("model", model)))
    messages = [
        msgspec.structs.replace(message, producer=Producer("model", model)) if message.role == "assistant" else message
        for message in messages
    ]
    return Answer(name_results(messages), stop_reason, stop_reason in _CUT_REASONS, model)


def error_of(response: object) -> MessageError | None:
    """The error of a response `{"type": "error", "error": {"type", "message"}}`, None for any other value."""
    fields = as_object(response)
    error = fields.get("error")
    if fields.get("type") != "error" or not isinstance(error, dict):
        return None
    return MessageError(as_text(error.get("type")) or "error", as_text(error.get("message")) or "")


def normalize_tools(values: object, where: str = "tools") -> str | None:
    """The JSON text of a tool list in OpenAI form; None where there is no list.

    The schema moves from `input_schema` to `parameters`. Tools that the provider defines (`{"type":
    "web_search_20250305", "name": ...}`) have no schema and keep their settings beside the function.

    Raises:
        RecordRefusedError: It is not a list of tools.
    """
    if values is None:
        return None
    if not isinstance(values, list):
        raise RecordRefusedError(f"{where}: expected a list, got {json_type(values)}")
    tools = []
    for index, value in enumerate(values):
        name = value.get("name") if isinstance(value, dict) else None
        if not isinstance(value, dict):
            raise RecordRefusedError(f"{where}[{index}]: expected an object, got {json_type(value)}")
        rest = {key: item for key, item in value.items() if key not in ("name", "description", "input_schema")}
        kind = rest.pop("type", None)
        if not isinstance(name, str):
            # A set of tools that the provider defines is named by its type only.
            name = value.get("mcp_server_name", kind)
        if not isinstance(name, str):
            raise RecordRefusedError(f"{where}[{index}].name: expected a string, got {json_type(name)}")
        function: dict[str, Any] = {"name": name}
        if "description" in value:
            function["description"] = value["description"]
        if "input_schema" in value:
            function["parameters"] = value["input_schema"]
        if kind not in (None, "custom", "function"):
            rest["provider_type"] = kind
        tools.append({"type": "function", "function": function, **rest})
    return json_text(tools)


def convert_usage(usage: object) -> tuple[Usage | None, Any]:
    """The token counts as logged (`input_tokens` leaves out what came from a cache), and what else was there."""
    if not isinstance(usage, dict):
        return None, usage
    rest = dict(usage)
    counts = [as_count(rest.get(key)) for key in ("input_tokens", "output_tokens")]
    for key, count in zip(("input_tokens", "output_tokens"), counts, strict=True):
        if count is not None:
            del rest[key]
    rest = {key: value for key, value in rest.items() if value is not None}
    return (None if counts == [None, None] else Usage(*counts)), rest or None


def name_results(messages: Sequence[Message]) -> list[Message]:
    """Give tool results the name of the tool that they answer for."""
    names: dict[str, str] = {}
    named = []
    for message in messages:
        names.update((call.id, call.name) for call in message.tool_calls if call.id is not None)
        if message.role == "tool" and message.name is None and message.tool_call_id in names:
            message = msgspec.structs.replace(message, name=names[message.tool_call_id])
        named.append(message)
    return named


@dataclass
class _Turn:
    """The blocks of one logged message, cut into messages wherever a tool result stands."""

    role: Role
    messages: list[Message] = field(default_factory=list)
    parts: list[ContentPart] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)

    def add(self, block: object, index: int, where: str) -> None:
        if not isinstance(block, dict):
            raise RecordRefusedError(f"{where}: expected an object, got {json_type(block)}")
        kind = block.get("type")
        if not isinstance(kind, str):
            raise RecordRefusedError(f"{where}.type: expected a string, got {json_type(kind)}")
        if kind in _CALL_BLOCKS and self.role == "assistant":
            self._add_call(_without_nulls(block), where)
        elif kind.endswith("tool_result") and isinstance(block.get("tool_use_id"), str):
            self._flush()
            self.messages.append(_tool_message(_without_nulls(block), where))
        elif (part := _part(block)) is not None:
            if extras := {key: block[key] for key in block.keys() - _HELD_KEYS[kind] if block[key] is not None}:
                self.metadata.setdefault("part_extras", {})[str(len(self.parts))] = extras
            self.parts.append(part)
        else:
            self.metadata.setdefault("other_parts", []).append({"index": index, "part": block})

    def finish(self, *, is_empty: bool) -> list[Message]:
        """All messages; one without content for a message that had null."""
        if not self.messages and not self.parts and not self.calls:
            self.messages.append(Message(self.role, None if is_empty else [], metadata=self.metadata))
        else:
            self._flush()
        return self.messages

    def _add_call(self, block: dict[str, Any], where: str) -> None:
        kind, call_id, name = block.pop("type"), block.pop("id", None), block.pop("name", None)
        if not isinstance(name, str):
            raise RecordRefusedError(f"{where}.name: expected a string, got {json_type(name)}")
        arguments = block.pop("input", None)
        if not isinstance(arguments, (str, dict)):
            # No input at all is a call cut short; a list is what the model made of it.
            arguments = "" if arguments is None else json_text(arguments)
        if isinstance(arguments, dict):
            json_text(arguments)
        self.calls.append(tool_call(name, arguments, id=as_text(call_id)))
        if kind != "tool_use":
            block["kind"] = kind
        if block:
            self.metadata.setdefault("tool_call_extras", {})[str(len(self.calls) - 1)] = block

    def _flush(self) -> None:
        if self.parts or self.calls or self.metadata:
            content = self.parts if self.parts or not self.calls else None
            self.messages.append(Message(self.role, content, self.calls, metadata=self.metadata))
        self.parts, self.calls, self.metadata = [], [], {}


def _without_nulls(block: dict[str, Any]) -> dict[str, Any]:
    """A copy of a block; clients write null for every key that a block could have."""
    return {key: value for key, value in block.items() if value is not None}


def _tool_message(block: dict[str, Any], where: str) -> Message:
    call_id, content, is_error = block.pop("tool_use_id"), block.pop("content", None), block.pop("is_error", None)
    kind = block.pop("type")
    metadata: dict[str, Any] = {}
    parts: list[ContentPart] | None = None
    if isinstance(content, str):
        parts = [TextPart(content)]
    elif isinstance(content, list) and kind in ("tool_result", "mcp_tool_result"):
        turn = _Turn("tool")
        for index, item in enumerate(content):
            turn.add(item, index, f"{where}.content[{index}]")
        parts, metadata = turn.parts, turn.metadata
    elif content is not None:
        metadata["content_was_json"] = True
        parts = [TextPart(json_text(content))]
    error = MessageError("tool_error") if is_error is True else None
    if isinstance(content, dict) and isinstance(code := content.get("error_code"), str):
        error = MessageError(code)
    if kind != "tool_result":
        metadata["kind"] = kind
    return Message(
        "tool", parts, tool_call_id=call_id, error=error, producer=_ENVIRONMENT, metadata={**block, **metadata}
    )


def _part(block: dict[str, Any]) -> ContentPart | None:
    """One content part, or None where the type is unknown and the block has to be kept as it is."""
    kind = block["type"]
    if kind == "text" and isinstance(text := block.get("text"), str):
        return TextPart(text)
    if kind == "thinking" and isinstance(text := block.get("thinking"), str):
        signature = as_text(block.get("signature")) or None
        return ReasoningPart(text, signature, encrypted=not text and signature is not None)
    if kind == "redacted_thinking" and isinstance(data := block.get("data"), str):
        return ReasoningPart("", data, encrypted=True)
    source = block.get("source")
    if kind not in ("image", "document") or not isinstance(source, dict):
        return None
    uri, media_type = _source_uri(source), as_text(source.get("media_type"))
    if uri is None:
        return None
    return ImagePart(uri) if kind == "image" else FilePart(uri, media_type)


def _source_uri(source: dict[str, Any]) -> str | None:
    data, media_type = as_text(source.get("data")), as_text(source.get("media_type"))
    match source.get("type"):
        case "base64" if data is not None:
            return f"data:{media_type or ''};base64,{data}"
        case "text" if data is not None:
            return f"data:{media_type or 'text/plain'},{quote(data)}"
        case "url":
            return as_text(source.get("url"))
        case "file":
            return as_text(source.get("file_id"))
    return None


def _with_envelope(messages: list[Message], fields: dict[str, Any]) -> list[Message]:
    """Put id and model on the messages of one logged message, and usage and all other keys on the last of them."""
    if not fields:
        return messages
    message_id, model = take_text(fields, "id"), take_text(fields, "model")
    usage, rest = convert_usage(fields.pop("usage", None))
    if rest is not None:
        fields["usage"] = rest
    last = len(messages) - 1
    kept = {key: value for key, value in fields.items() if value is not None}
    return [
        msgspec.structs.replace(
            message,
            id=message_id,
            producer=Producer("model", model) if model and message.role == "assistant" else message.producer,
            usage=usage if index == last else None,
            metadata={**kept, **message.metadata} if index == last else message.metadata,
        )
        for index, message in enumerate(messages)
    ]
