"""LangChain's messages, put into the OpenAI chat form.

LangChain serializes a message in three ways: as a constructor (`{"lc": 1, "type": "constructor", "id": [...,
"AIMessage"], "kwargs": {...}}`), as its fields (`{"type": "ai", "content": ...}`), and as type and data
(`{"type": "ai", "data": {...}}`). A call is there up to three times: parsed in `tool_calls` or, where its arguments
are no JSON, in `invalid_tool_calls`; as the provider sent it in `additional_kwargs`; and as a part of the content.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from offline_arl.logs.primitives.values import as_list, as_object, as_text, json_text

_ROLES = {
    "human": "user",
    "ai": "assistant",
    "system": "system",
    "developer": "developer",
    "tool": "tool",
    "function": "function",
}
_CALL_PARTS = frozenset({"tool_use", "tool_call", "function_call", "tool_call_chunk", "input_json_delta"})
# What every message has, and says nothing by having it.
_EMPTY: tuple[Any, ...] = (None, False, {}, [])


class _Unwrapped(NamedTuple):
    role: str
    fields: dict[str, Any]


def langchain_message(value: dict[str, Any]) -> dict[str, Any] | None:
    """A message of LangChain's as a message in the OpenAI chat form, None where it is none."""
    unwrapped = _unwrap(value)
    if unwrapped is None:
        return None
    fields = unwrapped.fields
    extra = dict(as_object(fields.pop("additional_kwargs", None)))
    content, calls_in_content = _content(fields.pop("content", None))
    calls = _calls(fields, extra) or calls_in_content
    message: dict[str, Any] = {"role": unwrapped.role, "content": content}
    if calls:
        message["tool_calls"] = calls
    if fields.pop("status", None) == "error":
        message["error"] = {"type": "tool_error"}
    if (usage := fields.pop("usage_metadata", None)) is not None:
        message["usage"] = usage
    response = as_object(fields.get("response_metadata"))
    reason = response.get("finish_reason", response.get("stop_reason"))
    if isinstance(reason, str):
        message["finish_reason"] = reason
    for key, item in (*fields.items(), *extra.items()):
        if not any(item is empty or item == empty for empty in _EMPTY):
            message.setdefault(key, item)
    return message


def is_langchain_message(value: object) -> bool:
    """Whether a value is a message that LangChain serialized."""
    return isinstance(value, dict) and _unwrap(value) is not None


def _unwrap(value: dict[str, Any]) -> _Unwrapped | None:
    fields: object = value
    kind: object = value.get("type")
    if kind == "constructor" and "lc" in value:
        names = as_list(value.get("id"))
        kind = names[-1] if names else None
        fields = value.get("kwargs")
    elif "role" in value and kind != "chat":
        # The callback of an observability platform has put the type into a role.
        if not isinstance(value.get("additional_kwargs"), dict) or "content" not in value or "blocks" in value:
            return None
        kind = value["role"]
        fields = {**value, "role": _ROLES.get(kind, kind) if isinstance(kind, str) else None}
        kind = "chat"
    elif isinstance(value.get("data"), dict):
        fields = value["data"]
    if not isinstance(kind, str) or not isinstance(fields, dict) or "content" not in fields:
        return None
    # "AIMessageChunk", "AIMessage" and "ai" are one.
    kind = kind.removesuffix("Chunk").removesuffix("Message").lower()
    role = as_text(fields.get("role")) if kind == "chat" else _ROLES.get(kind)
    if role is None:
        return None
    return _Unwrapped(role, {key: item for key, item in fields.items() if key not in ("type", "role")})


def _calls(fields: dict[str, Any], extra: dict[str, Any]) -> list[dict[str, Any]]:
    """The calls, with their arguments as the provider sent them where LangChain kept that."""
    parsed, invalid = as_list(fields.pop("tool_calls", None)), as_list(fields.pop("invalid_tool_calls", None))
    fields.pop("tool_call_chunks", None)
    raw = extra.get("tool_calls")
    if isinstance(raw, list) and raw and all(isinstance(as_object(call).get("function"), dict) for call in raw):
        del extra["tool_calls"]
        return raw
    if parsed or invalid:
        extra.pop("function_call", None)
    calls = []
    for value in (*parsed, *invalid):
        call = as_object(value)
        arguments = call.get("args")
        calls.append({"id": call.get("id"), "function": {"name": call.get("name"), "arguments": _arguments(arguments)}})
    return calls


def _arguments(value: object) -> object:
    return "" if value is None else value if isinstance(value, (str, dict)) else json_text(value)


def _content(content: object) -> tuple[object, list[dict[str, Any]]]:
    """The content without the calls in it, and those calls."""
    if not isinstance(content, list):
        return content, []
    parts: list[Any] = []
    calls: list[dict[str, Any]] = []
    for item in content:
        part = as_object(item)
        kind = as_text(part.get("type"))
        if kind in _CALL_PARTS:
            if isinstance(part.get("name"), str):
                arguments = part.get("input", part.get("args", part.get("arguments")))
                call_id = part.get("call_id", part.get("id"))
                calls.append({"id": call_id, "function": {"name": part["name"], "arguments": _arguments(arguments)}})
        elif kind in ("reasoning", "reasoning_content"):
            parts.append(_reasoning(part))
        elif kind == "image" and isinstance(part.get("url"), str):
            parts.append({"type": "image_url", "image_url": {"url": part["url"]}})
        else:
            parts.append(item)
    return parts if parts or not calls else None, calls


def _reasoning(part: dict[str, Any]) -> dict[str, Any]:
    """Reasoning as LangChain, OpenAI (a summary) and Bedrock write it."""
    inner = as_object(part.get("reasoning_content"))
    text = part.get("reasoning", part.get("text", inner.get("text")))
    summary = part.get("summary")
    if not isinstance(text, str) and isinstance(summary, list):
        text = "\n\n".join(as_text(as_object(item).get("text")) or "" for item in summary)
    if not isinstance(text, str):
        return part
    signature = part.get("signature", inner.get("signature"))
    return {"type": "reasoning", "text": text, **({} if signature is None else {"signature": signature})}
