"""Messages as agent frameworks write them, put into the OpenAI chat form.

Each reader takes one message of its framework and gives what it says as chat messages: several where the framework
keeps tool results inside another message, none of its keys lost. A value that is not of the framework gives None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from offline_arl.logs.platforms.langchain_messages import langchain_message
from offline_arl.logs.primitives.values import as_list, as_object, as_text, json_text

ChatMessages = list[dict[str, Any]]

_ASSISTANT_ROLES = frozenset({"assistant", "model", "ai", "chatbot"})


def chat_messages(value: dict[str, Any]) -> ChatMessages | None:
    """A framework's message as messages in the OpenAI chat form, None where it is of none of the frameworks."""
    for reader in _READERS:
        messages = reader(value)
        if messages is not None:
            return messages
    return None


def _langchain(value: dict[str, Any]) -> ChatMessages | None:
    message = langchain_message(value)
    return None if message is None else [message]


def _event(value: dict[str, Any]) -> ChatMessages | None:
    """An event of the older OpenTelemetry conventions, as pydantic-ai logs it."""
    name = value.get("event.name")
    if not isinstance(name, str) or not name.startswith("gen_ai."):
        return None
    rest = dict(value)
    if name == "gen_ai.choice" and isinstance(message := rest.pop("message", None), dict):
        return [{"role": "assistant", **message, **rest}]
    if rest.get("role") == "tool" and "tool_call_id" not in rest:
        rest["tool_call_id"] = rest.pop("id", None)
    return [rest]


def _koog(value: dict[str, Any]) -> ChatMessages | None:
    """Koog writes calls as the JSON text of their list, also under the role "tool"."""
    content = value.get("content")
    if value.get("role") not in ("assistant", "tool") or not isinstance(content, str) or content[:1] != "[":
        return None
    try:
        calls = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):
        return None
    is_calls = isinstance(calls, list) and all(
        isinstance(call, dict) and call.keys() >= {"function", "id"} and isinstance(call["function"], dict)
        for call in calls
    )
    return [{**value, "role": "assistant", "content": None, "tool_calls": calls}] if calls and is_calls else None


def is_koog_calls(value: object) -> bool:
    """Whether a value is a message of Koog's that holds calls: such messages in a row are one turn."""
    return isinstance(value, dict) and _koog(value) is not None


class _Turn:
    """Chat messages of one logged message, cut where tool results stand."""

    def __init__(self, role: object, rest: dict[str, Any]) -> None:
        self._role = "assistant" if as_text(role) in _ASSISTANT_ROLES else role
        self._rest = rest
        self._parts: list[Any] = []
        self._calls: list[dict[str, Any]] = []
        self._messages: ChatMessages = []

    def part(self, part: Any) -> None:
        self._parts.append(part)

    def text(self, text: object) -> None:
        self._parts.append({"type": "text", "text": text if isinstance(text, str) else json_text(text)})

    def reasoning(self, text: object, signature: object = None) -> None:
        part: dict[str, Any] = {"type": "reasoning", "text": as_text(text) or ""}
        self._parts.append(part if signature is None else {**part, "signature": signature})

    def call(self, call_id: object, name: object, arguments: object, **extra: Any) -> None:
        arguments = {} if arguments is None else arguments
        self._calls.append({"id": call_id, "function": {"name": name, "arguments": arguments}, **extra})

    def result(self, call_id: object, content: object, *, name: object = None, error: bool = False) -> None:
        self._flush()
        text = content if content is None or isinstance(content, (str, list, dict)) else json_text(content)
        if isinstance(text, list) and not all(isinstance(part, dict) and "type" in part for part in text):
            text = json_text(text)
        message: dict[str, Any] = {"role": "tool", "tool_call_id": call_id, "name": name, "content": text}
        if error:
            message["error"] = {"type": "tool_error"}
        self._messages.append(message)

    def say(self, role: str, content: object, **rest: Any) -> None:
        """A message of its own, of another role than the turn's."""
        self._flush()
        self._messages.append({"role": role, "content": content, **rest})

    def finish(self) -> ChatMessages:
        self._flush()
        if not self._messages:
            self._messages.append({"role": self._role, "content": None})
        self._messages[-1].update({key: item for key, item in self._rest.items() if item is not None})
        return self._messages

    def _flush(self) -> None:
        parts, calls = self._parts, self._calls
        self._parts, self._calls = [], []
        if not parts and not calls:
            return
        content: Any = parts or None
        if len(parts) == 1 and as_object(parts[0]).keys() == {"type", "text"} and parts[0]["type"] == "text":
            content = parts[0]["text"]
        message: dict[str, Any] = {"role": self._role, "content": content}
        if calls:
            message["tool_calls"] = calls
        self._messages.append(message)


def _without(value: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: item for key, item in value.items() if key not in keys}


def _genai_parts(value: dict[str, Any]) -> ChatMessages | None:
    """A message of the OpenTelemetry conventions from 1.37 on: `{"role", "parts": [{"type", "content"}]}`."""
    parts = value.get("parts")
    if not isinstance(parts, list) or not all(isinstance(part, dict) and "type" in part for part in parts):
        return None
    turn = _Turn(value.get("role") or "user", _without(value, "role", "parts"))
    for part in parts:
        match part["type"]:
            case "text":
                turn.text(part.get("content", part.get("text")))
            case "reasoning" | "thinking":
                turn.reasoning(part.get("content", part.get("text")))
            case "tool_call":
                turn.call(part.get("id"), part.get("name"), part.get("arguments"))
            case "tool_call_response":
                turn.result(part.get("id"), _function_result(part.get("response", part.get("result"))))
            case "uri" if str(part.get("modality", part.get("mime_type", ""))).startswith("image"):
                turn.part({"type": "image_url", "image_url": {"url": part.get("uri")}})
            case "blob" if str(part.get("mime_type", "")).startswith("image/"):
                url = f"data:{part['mime_type']};base64,{part.get('content', '')}"
                turn.part({"type": "image_url", "image_url": {"url": url}})
            case _:
                turn.part(part)
    return turn.finish()


def _function_result(response: object) -> object:
    """The result itself, where Microsoft's agent framework logs it wrapped as JSON text with its call."""
    if not isinstance(response, str) or not response.startswith('{"type": "function_result"'):
        return response
    try:
        return msgspec.json.decode(response).get("result")
    except (msgspec.DecodeError, RecursionError):
        return response


def _ai_sdk(value: dict[str, Any]) -> ChatMessages | None:
    """A message of the Vercel AI SDK that has parts which the OpenAI form spells otherwise."""
    content = value.get("content")
    if not isinstance(content, list) or "role" not in value or not any(map(_is_ai_sdk_part, content)):
        return None
    turn = _Turn(value["role"], _without(value, "role", "content"))
    for part in content:
        fields = as_object(part)
        media_type = str(fields.get("mediaType", fields.get("mimeType", "")))
        match fields.get("type"):
            case "tool-call":
                turn.call(fields.get("toolCallId"), fields.get("toolName"), fields.get("input", fields.get("args")))
            case "tool-result" | "tool-error":
                output, is_error = _ai_sdk_output(fields)
                turn.result(fields.get("toolCallId"), output, name=fields.get("toolName"), error=is_error)
            case "image" if isinstance(fields.get("image"), str):
                turn.part({"type": "image_url", "image_url": {"url": _data_url(fields["image"], media_type)}})
            case "file" if isinstance(fields.get("data"), str) and media_type.startswith("image/"):
                turn.part({"type": "image_url", "image_url": {"url": _data_url(fields["data"], media_type)}})
            case "file" if isinstance(fields.get("data"), str):
                turn.part({"type": "file", "file": {"file_data": _data_url(fields["data"], media_type)}})
            case _:
                turn.part(part)
    return turn.finish()


def _is_ai_sdk_part(part: object) -> bool:
    fields = as_object(part)
    if fields.get("type") in ("tool-call", "tool-result", "tool-error"):
        return True
    return (fields.get("type") == "image" and "image" in fields) or (fields.get("type") == "file" and "data" in fields)


def _data_url(data: str, media_type: str) -> str:
    return data if data.startswith(("http:", "https:", "data:")) else f"data:{media_type};base64,{data}"


def _ai_sdk_output(part: dict[str, Any]) -> tuple[object, bool]:
    """The result of a tool in versions 4 (`result`) and 5 (`output`, with its type)."""
    is_error = part.get("isError") is True or part["type"] == "tool-error"
    output = part.get("output", part.get("result", part.get("error")))
    if isinstance(output, dict) and output.keys() == {"type", "value"} and isinstance(output["type"], str):
        return output["value"], is_error or output["type"].startswith("error")
    return output, is_error


def ai_sdk_answer(calls: list[Any], text: object = None, reasoning: object = None, **rest: Any) -> dict[str, Any]:
    """An answer of the AI SDK, which spans log as a text and a list of `{toolCallId, toolName, input | args}`."""
    turn = _Turn("assistant", rest)
    if isinstance(reasoning, str) and reasoning:
        turn.reasoning(reasoning)
    if text is not None:
        turn.text(text)
    for value in calls:
        call = as_object(value)
        turn.call(call.get("toolCallId"), call.get("toolName"), call.get("input", call.get("args")))
    return turn.finish()[0]


def _pydantic_ai(value: dict[str, Any]) -> ChatMessages | None:
    """A request or response of pydantic-ai's own message history."""
    kind, parts = value.get("kind"), value.get("parts")
    if kind not in ("request", "response") or not isinstance(parts, list):
        return None
    turn = _Turn("assistant" if kind == "response" else "user", _without(value, "kind", "parts"))
    for item in parts:
        part = as_object(item)
        name, call_id, content = part.get("tool_name"), part.get("tool_call_id"), part.get("content")
        match part.get("part_kind"):
            case "system-prompt":
                turn.say("system", content)
            case "user-prompt":
                turn.say("user", _pydantic_content(content), timestamp=part.get("timestamp"))
            case "tool-return" | "builtin-tool-return":
                turn.result(call_id, content, name=name)
            case "retry-prompt" if name is not None:
                turn.result(call_id, content, name=name, error=True)
            case "retry-prompt":
                turn.say("user", content if isinstance(content, str) else json_text(content), producer="script")
            case "text":
                turn.text(content)
            case "thinking":
                turn.reasoning(content, part.get("signature"))
            case "tool-call" | "builtin-tool-call":
                turn.call(call_id, name, part.get("args"))
            case _:
                turn.part(item)
    return turn.finish()


def _pydantic_content(content: object) -> object:
    if not isinstance(content, list):
        return content
    parts: list[Any] = []
    for part in content:
        fields = as_object(part)
        if fields.get("kind") == "image-url":
            parts.append({"type": "image_url", "image_url": {"url": fields.get("url")}})
        else:
            parts.append(part if isinstance(part, str) else {"type": fields.get("kind"), **fields})
    return parts


def _llama_index(value: dict[str, Any]) -> ChatMessages | None:
    """A chat message of LlamaIndex: `{"role", "blocks": [{"block_type"}], "additional_kwargs"}`."""
    blocks = value.get("blocks")
    if not isinstance(blocks, list) or "role" not in value:
        return None
    extra = as_object(value.get("additional_kwargs"))
    raw_calls = as_list(extra.get("tool_calls"))
    rest = {**_without(value, "role", "blocks", "additional_kwargs"), **_without(extra, "tool_calls")}
    turn = _Turn(value["role"], rest)
    for item in blocks:
        block = as_object(item)
        match block.get("block_type"):
            case "text":
                turn.text(block.get("text"))
            case "thinking":
                turn.reasoning(block.get("content"))
            case "tool_call":
                if not raw_calls:
                    turn.call(block.get("tool_call_id"), block.get("tool_name"), block.get("tool_kwargs"))
            case "image" if isinstance(block.get("url"), str):
                turn.part({"type": "image_url", "image_url": {"url": block["url"]}})
            case _:
                turn.part(item)
    messages = turn.finish()
    if raw_calls:
        messages[-1]["tool_calls"] = raw_calls
    return messages


def _agent_framework(value: dict[str, Any]) -> ChatMessages | None:
    """A chat message of Microsoft's agent framework: `{"role", "contents": [{"type": "function_call"}]}`."""
    contents, role = value.get("contents"), value.get("role")
    if not isinstance(contents, list) or role is None:
        return None
    role = role.get("value") if isinstance(role, dict) else role
    rest = _without(value, "role", "contents", "type")
    turn = _Turn(role, rest)
    for item in contents:
        content = as_object(item)
        match content.get("type"):
            case "text":
                turn.text(content.get("text"))
            case "text_reasoning":
                turn.reasoning(content.get("text"))
            case "function_call":
                turn.call(content.get("call_id"), content.get("name"), content.get("arguments"))
            case "function_result":
                failed = content.get("exception") is not None
                result = content.get("result", content.get("exception"))
                turn.result(content.get("call_id"), result, error=failed)
            case _:
                turn.part(item)
    return turn.finish()


_READERS: tuple[Callable[[dict[str, Any]], ChatMessages | None], ...] = (
    _langchain,
    _event,
    _koog,
    _pydantic_ai,
    _genai_parts,
    _ai_sdk,
    _llama_index,
    _agent_framework,
)
