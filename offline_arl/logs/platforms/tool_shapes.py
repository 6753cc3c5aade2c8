"""Tool definitions of any shape as the JSON text of a list in OpenAI form."""

from __future__ import annotations

from typing import Any

import msgspec

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.primitives.json_values import decode_json
from offline_arl.logs.primitives.values import as_object, json_text

_SCHEMA_KEYS = ("parameters", "input_schema", "inputSchema", "parametersJsonSchema", "parameters_json_schema")
_DECLARATION_KEYS = ("functionDeclarations", "function_declarations")
_FUNCTION_KEYS = ("name", "description", "strict")


def tools_text(value: object) -> str | None:
    """The JSON text of a tool list in OpenAI form; None where the value holds no list of tools.

    Accepts the forms of OpenAI (nested, flat, built-in), Anthropic, Gemini (declarations) and the Vercel AI SDK, a
    mapping of names to definitions, and JSON text of the list or of its items.

    >>> tools_text([{"name": "add", "input_schema": {"type": "object"}}])
    '[{"type":"function","function":{"name":"add","parameters":{"type":"object"}}}]'
    """
    value = _decoded(value)
    if isinstance(value, dict):
        value = [{"name": name, **as_object(_decoded(item))} for name, item in value.items()]
    if not isinstance(value, list):
        return None
    tools: list[dict[str, Any]] = []
    for item in value:
        item = _decoded(item)
        declarations = next((as_object(item)[key] for key in _DECLARATION_KEYS if key in as_object(item)), None)
        for tool in declarations if isinstance(declarations, list) else [item]:
            normal = _normal(tool)
            if normal is None:
                return None
            tools.append(normal)
    try:
        return json_text(tools) if tools else None
    except RecordRefusedError:
        return None


def as_tool_definition(value: object) -> dict[str, Any] | None:
    """A value that is a tool definition in the nested OpenAI form, else None."""
    if not isinstance(value, dict) or value.get("type") != "function":
        return None
    function = value.get("function")
    return value if isinstance(function, dict) and "name" in function and "arguments" not in function else None


def _decoded(value: object) -> object:
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return decode_json(value.encode())
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            return value
    return value


def _normal(tool: object) -> dict[str, Any] | None:
    """One tool in the nested form; what a provider defines itself (web search) is named by its type."""
    if not isinstance(tool, dict):
        return None
    inner = tool.get("function")
    if isinstance(inner, dict):
        return tool if isinstance(inner.get("name"), str) else None
    kind = tool.get("type", "function")
    name = tool.get("name", tool.get("server_label", kind if kind != "function" else None))
    if not isinstance(name, str):
        return None
    function: dict[str, Any] = {"name": name}
    function.update({key: tool[key] for key in _FUNCTION_KEYS[1:] if tool.get(key) is not None})
    schema = next((tool[key] for key in _SCHEMA_KEYS if isinstance(tool.get(key), dict)), None)
    if schema is not None:
        function["parameters"] = _json_schema(schema)
    rest = {key: item for key, item in tool.items() if key not in (*_FUNCTION_KEYS, *_SCHEMA_KEYS, "type")}
    if kind not in ("function", "custom", None):
        rest["provider_type"] = kind
    return {"type": "function", "function": function, **rest}


def _json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema without the wrapper of the Vercel AI SDK (`{"jsonSchema": {...}}`)."""
    inner = schema.get("jsonSchema")
    return inner if isinstance(inner, dict) else schema
