"""Is a tool call one that the tools in force would accept? Shared by environments and reward components."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import jsonschema
import msgspec
from jsonschema.protocols import Validator
from referencing import Registry
from referencing.exceptions import Unresolvable

from offline_arl.trajectories.schema import ToolCall

CallProblemKind = Literal["invalid_json", "unknown_tool", "invalid_arguments"]


class CallProblem(NamedTuple):
    """Why a call is not acceptable."""

    kind: CallProblemKind
    text: str


@lru_cache(maxsize=1024)
def _validator(schema_json: bytes) -> Validator | None:
    schema = msgspec.json.decode(schema_json)
    if not isinstance(schema.get("$schema", ""), str):
        return None
    validator_class = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        validator_class.check_schema(schema)
    except jsonschema.SchemaError:
        return None
    # An empty registry: by default, jsonschema would fetch what a logged schema refers to from the network.
    validator: Validator = validator_class(schema, registry=Registry())
    return validator


def call_problem(call: ToolCall, tools: Sequence[dict[str, Any]] | None) -> CallProblem | None:
    """What is wrong with `call`, or None.

    Args:
        call: The call, with its raw and parsed arguments.
        tools: The tools in force, in OpenAI form; None where the log has none (then only JSON is checked).

    A tool whose own parameter schema is not valid JSON Schema, or refers to what is not in it, accepts any object.
    """
    if call.parse_error is not None or call.arguments is None:
        return CallProblem("invalid_json", call.parse_error or "arguments are missing")
    if tools is None:
        return None
    for tool in tools:
        function = tool.get("function", tool)
        if function.get("name") == call.name:
            break
    else:
        known = ", ".join(str(tool.get("function", tool).get("name")) for tool in tools)
        return CallProblem("unknown_tool", f"no tool named {call.name!r}; available: {known}")
    schema = function.get("parameters")
    if not isinstance(schema, dict):
        return None
    validator = _validator(msgspec.json.encode(schema))
    if validator is None:
        return None
    try:
        error = next(iter(validator.iter_errors(call.arguments)), None)
    except (Unresolvable, RecursionError):
        return None
    if error is None:
        return None
    where = "/".join(str(part) for part in error.absolute_path)
    return CallProblem("invalid_arguments", f"{where}: {error.message}" if where else error.message)
