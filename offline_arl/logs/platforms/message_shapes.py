"""Prompts and answers of model calls in whatever shape an observability platform recorded them.

Platforms record what the instrumented program passed and got, so one log holds the shapes of many libraries: those
of providers (OpenAI chat and Responses, Anthropic, Gemini) and of agent frameworks (`framework_messages`), each
perhaps as JSON text within JSON text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.platforms.framework_messages import chat_messages
from offline_arl.logs.platforms.langchain_messages import is_langchain_message
from offline_arl.logs.platforms.tool_shapes import as_tool_definition, tools_text
from offline_arl.logs.primitives.json_values import decode_json
from offline_arl.logs.primitives.pairing import needs_pairing, pair_by_order
from offline_arl.logs.primitives.values import as_list, as_object, as_text, json_type
from offline_arl.logs.providers import anthropic_messages, gemini_messages
from offline_arl.logs.providers.openai_messages import convert_message
from offline_arl.logs.providers.openai_responses import responses_items_to_messages
from offline_arl.trajectories.schema import Message, text_message

_MAX_DEPTH = 6
_ANTHROPIC_PARTS = frozenset(
    {"tool_use", "tool_result", "thinking", "redacted_thinking", "server_tool_use", "mcp_tool_use", "document"}
)
_RESPONSES_ITEMS = frozenset({"function_call", "function_call_output", "reasoning", "custom_tool_call"})
_SYSTEM_KEYS = ("system", "instructions", "system_instruction", "systemInstruction", "system_prompt")
_TOOL_KEYS = ("tools", "functions")


@dataclass(frozen=True)
class Prompt:
    """What a model was given.

    Attributes:
        messages: In full as recorded; the system prompt first where it was recorded with them.
        tools: JSON text of the tools in OpenAI form; None: not recorded.
        settings: What else the input held: model, temperature and the like.
    """

    messages: list[Message]
    tools: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)


def decode_text(value: object) -> object:
    """The value of JSON text, also where it was encoded more than once; any other value as it is.

    Only text of a list, an object or a string within quotes is decoded: "12" and "null" may be what a model said.
    """
    for _ in range(4):
        if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "[", '"'):
            break
        try:
            value = decode_json(value.encode())
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            break
    return value


def read_prompt(value: object, where: str = "input") -> Prompt | None:
    """The prompt in an input, None where the input holds no messages.

    Args:
        value: Parsed JSON or JSON text; taken apart.
        where: Its path in the record, for error messages.

    Raises:
        RecordRefusedError: It holds messages, and one of them cannot be read.
    """
    return _prompt(decode_text(value), where, 0)


def _prompt(value: object, where: str, depth: int) -> Prompt | None:
    if isinstance(value, str):
        return Prompt([text_message("user", value)]) if value else None
    if isinstance(value, list):
        return _prompt_of_list(value, where)
    if not isinstance(value, dict) or depth > _MAX_DEPTH:
        return None
    if is_message(value):
        return Prompt(read_messages([value], where))
    rest = dict(value)
    key, inner = _take_messages(rest)
    if key is None:
        return None
    prompt = _prompt(decode_text(inner), f"{where}.{key}", depth + 1)
    if prompt is None:
        return None
    tools = prompt.tools
    for tool_key in _TOOL_KEYS:
        found = tools_text(rest.get(tool_key))
        if found is not None:
            tools = found
            del rest[tool_key]
    config = rest.get("config")
    if tools is None and isinstance(config, dict):
        tools = tools_text(config.get("tools"))
    messages = _with_system(prompt.messages, rest, where)
    return Prompt(messages, tools, {**prompt.settings, **rest})


def _take_messages(fields: dict[str, Any]) -> tuple[str | None, object]:
    """Take what holds the messages out of an input."""
    for key in ("messages", "contents", "input", "prompt", "prompts", "chat_history"):
        if fields.get(key):
            return key, fields.pop(key)
    # The arguments of a decorated function.
    for key in ("kwargs", "args"):
        inner = fields.get(key)
        found = inner if isinstance(inner, dict) else inner[0] if isinstance(inner, list) and inner else None
        if found:
            if isinstance(inner, dict) or len(as_list(inner)) == 1:
                del fields[key]
            return key, found
    return None, None


def _prompt_of_list(values: list[Any], where: str) -> Prompt | None:
    if len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    if not values:
        return None
    if all(isinstance(value, str) for value in values):
        return Prompt([text_message("user", value) for value in values])
    # LangChain's callback for Langfuse puts tool definitions among the messages.
    definitions = [as_tool_definition(as_object(value).get("content")) for value in values]
    tools = tools_text([definition for definition in definitions if definition is not None])
    values = [value for value, tool in zip(values, definitions, strict=True) if tool is None]
    if not any(is_message(value) for value in values):
        return None
    return Prompt(read_messages(values, where), tools if any(definitions) else None)


def _with_system(messages: list[Message], rest: dict[str, Any], where: str) -> list[Message]:
    """Put the system prompt that stands beside the messages before them."""
    config = rest.get("config")
    for fields in (rest, *([config] if isinstance(config, dict) else [])):
        for key in _SYSTEM_KEYS:
            system = fields.get(key)
            if system and messages and messages[0].role not in ("system", "developer"):
                found = system_messages(system, f"{where}.{key}")
                if found:
                    del fields[key]
                    return [*found, *messages]
    if messages and isinstance(instructions := messages[0].metadata.get("instructions"), str):
        return [text_message("system", instructions), *messages]
    return messages


def system_messages(system: object, where: str = "system") -> list[Message]:
    """A system prompt as a list of one message, from text, content blocks or a Gemini content; else none."""
    system = decode_text(system)
    if isinstance(system, str):
        return [text_message("system", system)]
    if isinstance(system, dict) and isinstance(system.get("parts"), list):
        system = system["parts"]
    if not isinstance(system, list):
        return []
    blocks = [
        {"type": "text", "text": block}
        if isinstance(block, str)
        else {"type": "text", **block, "text": block.get("text", block.get("content"))}
        for block in system
        if isinstance(block, (str, dict))
    ]
    return anthropic_messages.system_messages(blocks, where)


def is_message(value: object) -> bool:
    """Whether a value looks like a message of any shape."""
    if not isinstance(value, dict):
        return False
    if isinstance(value.get("role"), (str, dict)) or isinstance(value.get("parts"), list):
        return True
    if is_langchain_message(value) or value.get("event.name") == "gen_ai.choice":
        return True
    return as_text(value.get("type")) in _RESPONSES_ITEMS or value.get("kind") in ("request", "response")


def read_messages(values: list[Any], where: str = "messages") -> list[Message]:
    """Messages of any shapes, in order; results without an id are paired with their calls by order.

    Raises:
        RecordRefusedError: One of them cannot be read; the reason names it.
    """
    if any(as_text(as_object(value).get("type")) in _RESPONSES_ITEMS for value in values):
        messages = responses_items_to_messages(values, where)
    else:
        messages = []
        for index, value in enumerate(values):
            messages.extend(_messages_of(value, f"{where}[{index}]"))
        messages = anthropic_messages.name_results(messages)
    return pair_by_order(messages) if any(map(needs_pairing, messages)) else messages


def _messages_of(value: object, where: str) -> list[Message]:
    if isinstance(value, str):
        return [text_message("user", value)]
    if not isinstance(value, dict):
        raise RecordRefusedError(f"{where}: expected a message, got {json_type(value)}")
    content = value.get("content")
    if (
        isinstance(content, list)
        and any(_is_anthropic_part(part) for part in content)
        and not is_langchain_message(value)
    ):
        return anthropic_messages.convert_message(dict(value), where)
    found = chat_messages(value)
    if found is None and isinstance(value.get("parts"), list):
        return gemini_messages.convert_content(value, where, "model" if value.get("role") == "assistant" else None)
    if found is None:
        return [convert_message(dict(value), where)]
    return [convert_message(message, where) for message in found]


def _is_anthropic_part(part: object) -> bool:
    fields = as_object(part)
    kind = as_text(fields.get("type"))
    return kind in _ANTHROPIC_PARTS or (kind == "image" and isinstance(fields.get("source"), dict))
