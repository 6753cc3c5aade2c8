"""Contexts as JSON that names tools instead of repeating them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.slots.slot import SlotContext
from offline_arl.trajectories.schema import Context

Tool = dict[str, Any]


def all_tools(contexts: Sequence[Context]) -> list[Tool] | None:
    """Every tool that was in force at some message, for formats with one list a conversation; None: not logged.

    Of two definitions of one name the first counts.
    """
    lists = [msgspec.json.decode(context.tools) for context in contexts if context.tools is not None]
    if not lists:
        return None
    if len(lists) == 1:
        return list(lists[0])
    found: dict[Any, Tool] = {}
    for tools in lists:
        for tool in tools:
            found.setdefault(tool["function"]["name"], tool)
    return list(found.values())


def write_contexts(contexts: Sequence[Context], tools: Sequence[Tool]) -> list[SlotContext]:
    """Contexts with tools named that stand in `tools`, those of the record."""
    known = {name: tool for tool in reversed(tools) if isinstance(name := _name(tool), str)}
    return [_written(context, known) for context in contexts]


def read_contexts(values: Sequence[SlotContext], tools: Sequence[Tool], where: str) -> list[Context]:
    """The exact inverse of `write_contexts`.

    Raises:
        RecordRefusedError: A tool is named that the record does not have.
    """
    known = {name: tool for tool in reversed(tools) if isinstance(name := _name(tool), str)}
    found = []
    for index, value in enumerate(values):
        text = value.text
        if value.tools is not None:
            listed = []
            for tool in value.tools:
                if isinstance(tool, str) and tool not in known:
                    raise RecordRefusedError(f"{where}[{index}].tools: the record has no tool {tool!r}")
                listed.append(known[tool] if isinstance(tool, str) else tool)
            text = _text(listed)
        found.append(Context(value.start, text, value.tools_id, value.system_id))
    return found


def _written(context: Context, known: dict[str, Tool]) -> SlotContext:
    tools: list[str | dict[str, Any]] | None = None
    text = context.tools
    if text is not None:
        values = msgspec.json.decode(text)
        # Lists that were not written by this library may be spelled in another way.
        if _text(values) == text:
            tools = [_named(tool, known) for tool in values]
            text = None
    return SlotContext(context.start, tools, text, context.tools_id, context.system_id)


def _named(tool: Tool, known: dict[str, Tool]) -> str | Tool:
    name = _name(tool)
    is_known = isinstance(name, str) and name in known and _text([known[name]]) == _text([tool])
    return name if is_known and isinstance(name, str) else tool


def _name(tool: Tool) -> object:
    function = tool.get("function")
    return function.get("name") if isinstance(function, dict) else None


def _text(tools: Sequence[Tool]) -> str:
    return msgspec.json.encode(list(tools)).decode()
