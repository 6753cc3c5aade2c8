"""What platforms keep of a span's attributes in the metadata of the operation that they made from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offline_arl.logs.platforms.message_shapes import decode_text
from offline_arl.logs.platforms.tool_shapes import tools_text
from offline_arl.logs.primitives.values import as_list, as_object, as_text

# Attributes that repeat the input and output, or the tools.
_REPEATS = (
    "input.",
    "output.",
    "llm.input_messages",
    "llm.output_messages",
    "llm.tools",
    "gen_ai.prompt",
    "gen_ai.completion",
    "gen_ai.input.messages",
    "gen_ai.output.messages",
    "gen_ai.system_instructions",
    "gen_ai.tool.definitions",
    "ai.prompt",
    "ai.response.text",
    "ai.response.toolCalls",
)
_TOOL_CALL_KEYS = ("gen_ai.tool.call.id", "ai.toolCall.id")
_AGENT_KEYS = ("gen_ai.agent.name", "agent_name", "graph.node.id")
_STOP_KEYS = ("ai.response.finishReason", "gen_ai.response.finish_reason")


def attribute_tools(attributes: Mapping[str, Any]) -> str | None:
    """The tools in span attributes (JSON text in OpenAI form): those of OpenTelemetry, OpenInference or the AI SDK."""
    for key in ("gen_ai.tool.definitions", "ai.prompt.tools"):
        found = tools_text(decode_text(attributes.get(key)))
        if found is not None:
            return found
    schemas: list[Any] = []
    while f"llm.tools.{len(schemas)}.tool.json_schema" in attributes:
        schemas.append(attributes[f"llm.tools.{len(schemas)}.tool.json_schema"])
    return tools_text(schemas)


def attribute_tool_call_id(attributes: Mapping[str, Any]) -> str | None:
    """The id of the call that a tool's span answers."""
    return next((found for key in _TOOL_CALL_KEYS if (found := as_text(attributes.get(key)))), None)


def attribute_agent(attributes: Mapping[str, Any]) -> str | None:
    """The name of the agent."""
    return next((found for key in _AGENT_KEYS if (found := as_text(attributes.get(key)))), None)


def attribute_stop_reason(attributes: Mapping[str, Any]) -> str | None:
    """Why the answer ended."""
    reasons = as_list(decode_text(attributes.get("gen_ai.response.finish_reasons")))
    found = (as_text(value) for value in (*reasons, *(attributes.get(key) for key in _STOP_KEYS)))
    return next((reason for reason in found if reason is not None), None)


def without_repeats(metadata: object) -> dict[str, Any]:
    """The metadata of an operation without the attributes that repeat its input, output and tools."""
    value = decode_text(metadata)
    if not isinstance(value, dict):
        return {} if value is None else {"metadata": value}
    attributes = as_object(decode_text(value.get("attributes")))
    if not attributes:
        return {key: item for key, item in value.items() if item not in (None, {}, [])}
    kept = {
        key: item
        for key, item in attributes.items()
        if not key.startswith(_REPEATS) and key not in ("events", "all_messages_events", "final_result")
    }
    rest = {key: item for key, item in value.items() if key not in ("attributes", "tools") and item not in (None, {})}
    return {**rest, "attributes": kept} if kept else rest
