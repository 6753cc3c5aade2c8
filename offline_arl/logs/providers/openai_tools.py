"""Lists of tools, as several log formats carry them, in the OpenAI chat form."""

from __future__ import annotations

from typing import Any

import msgspec

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.primitives.values import json_type
from offline_arl.trajectories.text_cache import cached_by_text


@cached_by_text(entries=1024)
def normalize_tools(raw: bytes) -> str | None:
    """The JSON text of a tool list in OpenAI form from what a record has under `tools` or `functions`.

    Accepts the list, the list as a JSON string, bare functions (`[{"name": ..., "parameters": ...}]`) and null
    (None: not logged). Cached by the raw bytes: most records of a log repeat one list.

    Raises:
        RecordRefusedError: It is none of these.
    """
    value = msgspec.json.decode(raw)
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value) if value.strip() else None
        except msgspec.DecodeError as error:
            raise RecordRefusedError(f"tools: the string is not JSON: {error}") from error
    if value is None:
        return None
    if not isinstance(value, list):
        raise RecordRefusedError(f"tools: expected a list, got {json_type(value)}")
    return msgspec.json.encode([_tool(tool, index) for index, tool in enumerate(value)]).decode()


def _tool(value: object, index: int) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RecordRefusedError(f"tools[{index}]: expected an object, got {json_type(value)}")
    tool: dict[str, Any] = value
    custom = value.get("custom")
    if "function" not in value and isinstance(value.get("name"), str):
        tool = {"type": "function", "function": {key: item for key, item in value.items() if key != "type"}}
    elif "function" not in value and isinstance(custom, dict):
        tool = {**value, "function": {"name": custom.get("name")}}
    inner = tool.get("function")
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        raise RecordRefusedError(f"tools[{index}]: has no function name")
    return {**tool, "function": _with_parsed(inner)} if isinstance(inner.get("parameters"), str) else tool


def _with_parsed(function: dict[str, Any]) -> dict[str, Any]:
    """A function whose parameters are JSON text, as tables have them, with all its keys and null for the missing."""
    try:
        parameters = msgspec.json.decode(function["parameters"])
    except (msgspec.DecodeError, RecursionError):
        return function
    if not isinstance(parameters, dict):
        return function
    return {key: item for key, item in {**function, "parameters": parameters}.items() if item is not None}
