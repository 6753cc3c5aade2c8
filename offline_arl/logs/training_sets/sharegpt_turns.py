"""Turns of ShareGPT and its relatives as messages: `{"from": "human", "value": ...}`, `{"role", "content"}`.

Calls are turns of their own (`function_call`, `tool_call`) whose value is the JSON text of one call or of several.
A model's text with the calls right after it, and calls one after another, are one turn of the model.
"""

from __future__ import annotations

import ast
import re
from typing import Any

import msgspec

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.platforms.message_shapes import decode_text
from offline_arl.logs.primitives.values import as_object, json_text, json_type
from offline_arl.logs.providers.openai_messages import convert_message
from offline_arl.trajectories.schema import (
    ContentPart,
    Message,
    Producer,
    ReasoningPart,
    Role,
    TextPart,
    ToolCall,
    tool_call,
)

_ROLES: dict[str, Role] = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "observation": "tool",
    "tool": "tool",
    "tool_response": "tool",
    "function_response": "tool",
    "ipython": "tool",
}
CALL_ROLES = frozenset({"function_call", "tool_call"})
# Names of roles that only these formats have; the others are those of OpenAI chat too.
OWN_ROLES = frozenset(_ROLES) - {"system", "user", "assistant", "tool"}
_CALL_TAG = re.compile(r"\s*<tool_call>\s*(.*?)\s*</tool_call>\s*", re.DOTALL)
_THOUGHT = re.compile(r"\s*<think>\n?(.*?)\n?</think>\s*", re.DOTALL)
_MAX_LITERAL = 100_000
_LOSS_KEYS = ("loss", "loss_weight", "loss_scale", "weight")


def is_turn(value: object) -> bool:
    """Whether a value looks like a turn of a conversation."""
    fields = as_object(value)
    role = fields.get("from", fields.get("role"))
    return isinstance(role, str) and role.lower() in _ROLES


def read_turns(values: object, where: str) -> list[Message]:
    """Convert a list of turns.

    Raises:
        RecordRefusedError: It is no list of turns; the reason names the turn.
    """
    values = decode_text(values)
    if not isinstance(values, list):
        raise RecordRefusedError(f"{where}: expected a list of turns, got {json_type(values)}")
    messages: list[Message] = []
    for index, value in enumerate(values):
        message, is_call = _turn(value, f"{where}[{index}]")
        if is_call and messages and messages[-1].role == "assistant":
            messages[-1] = _joined(messages[-1], message)
        else:
            messages.append(message)
    return messages


def read_turn(value: object, where: str) -> list[Message]:
    """One answer: a turn, a list of turns, or the text of the model."""
    decoded = value
    if isinstance(decoded, str):
        return [Message("assistant", [TextPart(decoded)])]
    return read_turns(decoded if isinstance(decoded, list) else [decoded], where)


def _turn(value: object, where: str) -> tuple[Message, bool]:
    if not isinstance(value, dict):
        raise RecordRefusedError(f"{where}: expected an object, got {json_type(value)}")
    fields = dict(value)
    key = "from" if "from" in fields else "role"
    logged = fields.pop(key, None)
    role = _ROLES.get(logged.lower()) if isinstance(logged, str) else None
    if role is None:
        raise RecordRefusedError(f"{where}.{key}: expected one of {', '.join(_ROLES)}, got {logged!r}")
    content = next((fields.pop(key) for key in ("value", "content", "text") if key in fields), None)
    trainable = _trainable(fields)
    if logged.lower() in CALL_ROLES:
        content, reasoning = _without_thought(content)
        message = Message("assistant", reasoning, tool_calls=read_calls(content, f"{where}.value"))
        return _with(message, trainable, fields), True
    if role == "tool" and not isinstance(content, (str, list)) and content is not None:
        content = json_text(content)
    message = convert_message({**fields, "role": role, "content": content}, where)
    return _with(message, trainable, {}), False


def _without_thought(content: object) -> tuple[object, list[ContentPart] | None]:
    """The calls of a turn without the reasoning that LLaMA-Factory lets stand before them."""
    found = _THOUGHT.match(content) if isinstance(content, str) else None
    if found is None or not isinstance(content, str):
        return content, None
    return content[found.end() :], [ReasoningPart(found[1])]


def _with(message: Message, trainable: bool | None, rest: dict[str, Any]) -> Message:
    return msgspec.structs.replace(
        message,
        trainable=message.trainable if trainable is None else trainable,
        producer=Producer("environment") if message.role == "tool" else message.producer,
        metadata={**message.metadata, **rest},
    )


def _trainable(fields: dict[str, Any]) -> bool | None:
    for key in _LOSS_KEYS:
        weight = fields.get(key)
        if isinstance(weight, (bool, int, float)):
            if weight in (0, 1):
                del fields[key]
            return weight > 0
    return None


def read_calls(content: object, where: str) -> list[ToolCall]:
    """The calls in a turn: JSON (or a literal of Python) of one call or of a list, perhaps each within tags.

    Raises:
        RecordRefusedError: It is not that.
    """
    value = _decoded(content)
    if isinstance(value, str):  # arguments of a call may hold the tags too
        value = _CALL_TAG.findall(value) or value
    calls = []
    for item in value if isinstance(value, list) else [value]:
        fields = as_object(_decoded(item))
        fields = as_object(fields.get("function")) or fields
        name = fields.get("name")
        if not isinstance(name, str):
            raise RecordRefusedError(f"{where}: expected the JSON of a call with a name, got {json_type(item)}")
        arguments = fields.get("arguments", fields.get("parameters", {}))
        calls.append(tool_call(name, arguments if isinstance(arguments, (str, dict)) else json_text(arguments)))
    return calls


def _decoded(value: object) -> object:
    """The value of JSON text; of a literal of Python where it is one (`{'name': ...}`)."""
    decoded = decode_text(value)
    if isinstance(decoded, str) and decoded.lstrip()[:1] in ("{", "[") and len(decoded) <= _MAX_LITERAL:
        try:
            return decode_text(json_text(ast.literal_eval(decoded)))
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError, RecordRefusedError):
            return decoded
    return decoded


def _joined(first: Message, second: Message) -> Message:
    return msgspec.structs.replace(
        first,
        content=[*(first.content or ()), *(second.content or ())] or first.content,
        tool_calls=[*first.tool_calls, *second.tool_calls],
        trainable=first.trainable if second.trainable is None else second.trainable,
        metadata={**first.metadata, **second.metadata},
    )
