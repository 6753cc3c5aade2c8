"""Vercel AI SDK spans: `ai.generateText` around one `ai.generateText.doGenerate` a step, and `ai.toolCall` spans.

The outer span repeats the first prompt and the last answer of its steps; the steps are the model calls.
"""

from __future__ import annotations

from typing import Any

from offline_arl.logs.platforms.framework_messages import ai_sdk_answer
from offline_arl.logs.platforms.message_shapes import decode_text, read_messages, read_prompt
from offline_arl.logs.platforms.tool_shapes import tools_text
from offline_arl.logs.primitives.values import as_list
from offline_arl.logs.telemetry.genai_semconv import CallContent
from offline_arl.logs.telemetry.span_attributes import json_value
from offline_arl.logs.telemetry.spans import Span
from offline_arl.trajectories.schema import Message

_PROMPTS = ("ai.prompt.messages", "ai.prompt")
_TOOLS = "ai.prompt.tools"
_ANSWER_PARTS = ("text", "object", "toolCalls", "reasoning")


def read(span: Span) -> CallContent | None:
    """The messages of a step; None where it has none.

    Raises:
        RecordRefusedError: A JSON text is cut off, or does not hold messages.
    """
    attributes = span.attributes
    used = {key for key in _PROMPTS if key in attributes}
    messages: list[Message] = []
    for key in _PROMPTS:
        if key in used:
            value = json_value(attributes[key], key)
            prompt = read_prompt({"messages": value} if isinstance(value, list) else value, key)
            messages = [] if prompt is None else prompt.messages
            break
    answer = _answer(attributes, used)
    if not messages and not answer:
        return None
    tools = tools_text([decode_text(tool) for tool in as_list(decode_text(attributes.get(_TOOLS)))])
    if tools is not None:
        used.add(_TOOLS)
    return CallContent(messages, answer, tools, used)


def _answer(attributes: dict[str, Any], used: set[str]) -> list[Message]:
    """The answer as a list of one message, none where nothing of it is there."""
    found: dict[str, Any] = {}
    for part in _ANSWER_PARTS:
        for key in (f"ai.response.{part}", f"ai.result.{part}"):  # `result` before version 4
            if attributes.get(key) not in (None, ""):
                found.setdefault(part, attributes[key])
                used.add(key)
    if not found:
        return []
    calls = json_value(found.get("toolCalls"), "ai.response.toolCalls")
    message = ai_sdk_answer(as_list(calls), found.get("text", found.get("object")), found.get("reasoning"))
    return read_messages([message], "ai.response")
