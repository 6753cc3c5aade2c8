"""Is a tool call one that the tools in force would accept? Shared by environments and reward components."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple

import msgspec

from offline_arl.trajectories.bounded_validation import NotJudgedError, first_error
from offline_arl.trajectories.schema import ToolCall

CallProblemKind = Literal["invalid_json", "unknown_tool", "invalid_arguments"]


# Tools that a problem names, and characters that it may take: logs have lists of thousands, and values of megabytes.
_TOOLS_TOLD = 50
_TEXT_LIMIT = 4_000


class CallProblem(NamedTuple):
    """Why a call is not acceptable."""

    kind: CallProblemKind
    text: str


def call_problem(call: ToolCall, tools: Sequence[dict[str, Any]] | None) -> CallProblem | None:
    """What is wrong with `call`, or None.

    Args:
        call: The call, with its raw and parsed arguments.
        tools: The tools in force, in OpenAI form; None where the log has none (then only JSON is checked).

    A tool accepts any object if its own parameter schema is not valid JSON Schema, refers to what is not in it, or
    takes too long to check (see `bounded_validation`).
    """
    if call.parse_error is not None or call.arguments is None:
        return CallProblem("invalid_json", call.parse_error or "arguments are missing")
    if tools is None:
        return None
    for tool in tools:
        function = tool.get("function", tool)
        if function.get("name") == call.name:
            return _misfit(call, function.get("parameters"))
    return unknown_tool(call, tools)


def unknown_tool(call: ToolCall, tools: Sequence[dict[str, Any]]) -> CallProblem:
    """The problem of a call whose tool is not among `tools`."""
    known = ", ".join(str(tool.get("function", tool).get("name")) for tool in islice(tools, _TOOLS_TOLD))
    more = f" and {len(tools) - _TOOLS_TOLD} more" if len(tools) > _TOOLS_TOLD else ""
    return CallProblem("unknown_tool", f"no tool named {call.name!r}; available: {known}{more}"[:_TEXT_LIMIT])


def _misfit(call: ToolCall, schema: object) -> CallProblem | None:
    if not isinstance(schema, dict):
        return None
    try:
        error = first_error(msgspec.json.encode(schema), call.arguments, len(call.arguments_raw))
    except (NotJudgedError, RecursionError):
        return None
    if error is None:
        return None
    where = "/".join(str(part) for part in error.absolute_path)
    return CallProblem("invalid_arguments", (f"{where}: {error.message}" if where else error.message)[:_TEXT_LIMIT])
