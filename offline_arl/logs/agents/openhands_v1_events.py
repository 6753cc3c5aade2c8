"""Events of OpenHands' SDK as messages."""

from __future__ import annotations

from typing import Any

import msgspec

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.agents.openhands_conversation import Conversation, Entry
from offline_arl.logs.primitives.values import as_count, as_list, as_object, as_text, json_text, json_type
from offline_arl.logs.providers.openai_tools import normalize_tools
from offline_arl.trajectories.schema import (
    ContentPart,
    ImagePart,
    Message,
    MessageError,
    Producer,
    ReasoningPart,
    Role,
    TextPart,
    TokenRecord,
    ToolCall,
    tool_call,
)

_ROLES: dict[str, Role] = {"system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_TOLD = frozenset(
    {"kind", "id", "timestamp", "llm_message", "thought", "reasoning_content", "thinking_blocks", "tool_call"}
    | {"tool_call_id", "tool_name", "llm_response_id", "parent_id", "responses_reasoning_item", "error", "source"}
    | {"system_prompt", "tools", "dynamic_context", "extended_content"}
)


def read_event(conversation: Conversation, event: dict[str, Any]) -> str | None:
    """Read one event into a conversation; says why where it is no message.

    Raises:
        RecordRefusedError: The event is broken; the reason starts with its kind.
    """
    kind, name = event["kind"], event["id"]
    if kind == "SystemPromptEvent":
        _system(conversation, event, name)
    elif kind == "MessageEvent":
        conversation.add(_message(event), name)
    elif kind == "ActionEvent":
        _action(conversation, event, name)
    elif kind in ("ObservationEvent", "AgentErrorEvent", "UserRejectObservation"):
        conversation.add(_result(event, kind), name)
    elif kind == "Condensation":
        forgotten = [item for item in as_list(event.get("forgotten_event_ids")) if isinstance(item, str)]
        offset = as_count(event.get("summary_offset"))
        # Without a place the summary was not put into the history.
        summary = None if offset is None else as_text(event.get("summary"))
        conversation.condense(forgotten, summary, offset, name)
    elif kind == "TokenEvent":
        return _tokens(conversation, event)
    else:
        return f"no message: {kind}"
    return None


def _system(conversation: Conversation, event: dict[str, Any], name: str) -> None:
    blocks = [event.get("system_prompt"), event.get("dynamic_context")]
    parts: list[ContentPart] = [TextPart(text) for block in blocks if (text := as_text(as_object(block).get("text")))]
    conversation.add(_stamped(Message("system", parts, producer=Producer("script")), event), name)
    tools = event.get("tools")
    if isinstance(tools, list) and tools:
        conversation.tools = normalize_tools(json_text([_tool(tool) for tool in tools]).encode())


def _tool(value: object) -> object:
    """A tool in OpenAI form; the SDK logs the schema of MCP tools only."""
    if not isinstance(value, dict) or "function" in value:
        return value
    title = as_text(value.get("title"))
    mcp = as_object(value.get("mcp_tool"))
    function = {
        "name": as_text(mcp.get("name")) or title or as_text(value.get("name")) or as_text(value.get("kind")),
        "description": value.get("description"),
        "parameters": mcp.get("inputSchema"),
    }
    return {"type": "function", "function": {key: item for key, item in function.items() if item is not None}}


def _message(event: dict[str, Any]) -> Message:
    logged = event.get("llm_message")
    if not isinstance(logged, dict):
        raise RecordRefusedError(f"MessageEvent.llm_message: expected an object, got {json_type(logged)}")
    role = _ROLES.get(as_text(logged.get("role")) or "")
    if role is None:
        raise RecordRefusedError(f"MessageEvent.llm_message.role: unknown role {logged.get('role')!r}")
    others: list[Any] = []
    parts = _parts(logged.get("content"), others) + _parts(event.get("extended_content"), others)
    if event.get("source") == "agent":
        producer = Producer("model") if role == "assistant" else Producer("script")
    else:
        producer = Producer("human" if event.get("source") == "user" else "script")
    message = Message(
        role,
        [*_reasoning(logged), *parts],
        [_call(call, "MessageEvent.llm_message.tool_calls") for call in as_list(logged.get("tool_calls"))],
        as_text(logged.get("tool_call_id")),
        as_text(logged.get("name")),
        producer=producer,
        id=as_text(event.get("llm_response_id")),
        metadata={"other_parts": others} if others else {},
    )
    return _stamped(message, event)


def _action(conversation: Conversation, event: dict[str, Any], name: str) -> None:
    response = as_text(event.get("llm_response_id"))
    call = _call(event.get("tool_call"), "ActionEvent.tool_call")
    if response is not None and conversation.join(response, name, call):
        return
    others: list[Any] = []
    parts = [*_reasoning(event), *_parts(event.get("thought"), others)]
    message = Message("assistant", parts, [call], producer=Producer("model"), id=response)
    conversation.add(_stamped(message, event), name)


def _call(value: object, where: str) -> ToolCall:
    fields = as_object(value)
    named = fields if "name" in fields else as_object(fields.get("function"))
    name, arguments = named.get("name"), named.get("arguments")
    if not isinstance(name, str):
        raise RecordRefusedError(f"{where}.name: expected a string, got {json_type(name)}")
    if not isinstance(arguments, (str, dict)):
        arguments = "" if arguments is None else json_text(arguments)
    return tool_call(name, arguments, id=as_text(fields.get("id")))


def _result(event: dict[str, Any], kind: str) -> Message:
    others: list[Any] = []
    error = None
    if kind == "ObservationEvent":
        observation = as_object(event.get("observation"))
        parts = _parts(observation.get("content"), others) + _parts(event.get("extended_content"), others)
        if observation.get("is_error") is True:
            error = MessageError("error", "".join(part.text for part in parts if isinstance(part, TextPart)))
    else:
        text = as_text(event.get("error")) or as_text(event.get("rejection_reason")) or ""
        parts = [TextPart(text)]
        error = MessageError("rejected" if kind == "UserRejectObservation" else "error", text)
    message = Message(
        "tool",
        parts,
        tool_call_id=as_text(event.get("tool_call_id")),
        name=as_text(event.get("tool_name")),
        error=error,
        producer=Producer("environment"),
        metadata={"other_parts": others} if others else {},
    )
    return _stamped(message, event)


def _stamped(message: Message, event: dict[str, Any]) -> Message:
    """The message with its time, and what else the event says."""
    metadata = {key: value for key, value in event.items() if key not in _TOLD and value not in (None, [], {})}
    observation = metadata.pop("observation", None)
    if isinstance(observation, dict):
        metadata["observation"] = {key: value for key, value in observation.items() if key != "content"}
    return msgspec.structs.replace(
        message,
        timestamp=as_text(event.get("timestamp")),
        metadata={**message.metadata, **metadata, "event": event["id"]},
    )


def _parts(values: object, others: list[Any]) -> list[ContentPart]:
    if isinstance(values, str):
        return [TextPart(values)]
    parts: list[ContentPart] = []
    for value in as_list(values):
        fields = as_object(value)
        text, urls = fields.get("text"), fields.get("image_urls")
        if isinstance(text, str):
            parts.append(TextPart(text))
        elif isinstance(urls, list):
            parts.extend(ImagePart(url) for url in urls if isinstance(url, str))
        else:
            others.append(value)
    return parts


def _reasoning(fields: dict[str, Any]) -> list[ContentPart]:
    """Reasoning as the model gave it: sealed blocks where there are some, else the text."""
    parts: list[ContentPart] = []
    for block in map(as_object, as_list(fields.get("thinking_blocks"))):
        if isinstance(block.get("thinking"), str):
            parts.append(ReasoningPart(block["thinking"], as_text(block.get("signature"))))
        elif isinstance(block.get("data"), str):
            parts.append(ReasoningPart("", block["data"], encrypted=True))
    text = as_text(fields.get("reasoning_content"))
    item = as_object(fields.get("responses_reasoning_item"))
    if not parts and text:
        parts.append(ReasoningPart(text))
    elif not parts and item:
        summary = "\n".join(text for text in as_list(item.get("summary")) if isinstance(text, str))
        sealed = as_text(item.get("encrypted_content"))
        parts.append(ReasoningPart(summary, sealed, encrypted=sealed is not None))
    return parts


def _tokens(conversation: Conversation, event: dict[str, Any]) -> str | None:
    """Add the token ids of a response to its answer, the latest one."""
    prompt, sampled = event.get("prompt_token_ids"), event.get("response_token_ids")
    for index in range(len(conversation.entries) - 1, -1, -1):
        entry = conversation.entries[index]
        if entry.message.role == "assistant" and entry.message.tokens is None:
            record = TokenRecord(_ids(sampled), "unknown", prompt_token_ids=_ids(prompt))
            message = msgspec.structs.replace(entry.message, tokens=record)
            conversation.entries[index] = Entry(message, entry.events)
            return None
    return "token ids without an answer"


def _ids(value: object) -> list[int]:
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise RecordRefusedError("TokenEvent: expected lists of token ids")
    return value
