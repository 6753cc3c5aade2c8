"""Fast checks of many tool calls against the same tools.

Ingestion checks every call of every log, and a general JSON Schema validator takes tens of microseconds a call.
`CallChecker` compiles the schemas that tools really have (an object of scalars, enumerations and lists) to plain
Python predicates that only ever say "certainly acceptable"; everything else goes to `calls.call_problem`, which
stays the one judge of what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from offline_arl.trajectories.calls import CallProblem, call_problem, unknown_tool
from offline_arl.trajectories.schema import ToolCall
from offline_arl.trajectories.text_cache import cached_by_text

Predicate = Callable[[Any], bool]

_ANNOTATIONS = frozenset({"title", "description", "default", "examples", "deprecated", "format"})
_OBJECT_KEYWORDS = _ANNOTATIONS | {"type", "properties", "required", "additionalProperties"}
_VALUE_KEYWORDS = _ANNOTATIONS | {"type", "enum", "items", "minLength"}
_DEEPEST_LIST = 20
_CLASSES: Mapping[str, type] = {"string": str, "integer": int, "boolean": bool, "number": float, "null": type(None)}


class CallChecker:
    """Checks calls against one list of tools in force.

    Args:
        tools: JSON text of the tools in OpenAI form, or None where the log has none: then only the validity of
            the arguments' JSON is checked.
    """

    def __init__(self, tools: str | None) -> None:
        self._tools: list[dict[str, Any]] | None = None if tools is None else msgspec.json.decode(tools)
        self._accepts: dict[str, Predicate | None] = {}
        self._named: dict[str, dict[str, Any]] = {}
        for tool in self._tools or ():
            function = tool.get("function", tool)
            name = function.get("name")
            if isinstance(name, str) and name not in self._named:
                self._named[name] = tool
                self._accepts[name] = compile_predicate(function.get("parameters"))

    def problem(self, call: ToolCall) -> CallProblem | None:
        """What is wrong with `call`, or None; the same answer as `call_problem`."""
        if self._tools is not None and call.arguments is not None and call.parse_error is None:
            accepts = self._accepts.get(call.name)
            if accepts is not None and accepts(call.arguments):
                return None
            named = self._named.get(call.name)
            return unknown_tool(call, self._tools) if named is None else call_problem(call, [named])
        return call_problem(call, self._tools)


@cached_by_text(entries=512)
def checker_for(tools: str | None) -> CallChecker:
    """The checker of a tool list; kept, since most logs repeat one list in every record."""
    return CallChecker(tools)


def compile_predicate(schema: object) -> Predicate | None:
    """A predicate that is True only for objects that `schema` certainly accepts, or None.

    >>> accepts = compile_predicate(
    ...     {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
    >>> accepts({"n": 3}), accepts({"n": "3"}), accepts({})
    (True, False, False)
    >>> compile_predicate({"type": "object", "minProperties": 1}) is None
    True
    """
    if not isinstance(schema, dict) or schema.get("type") != "object" or not schema.keys() <= _OBJECT_KEYWORDS:
        return None
    properties, required = schema.get("properties", {}), schema.get("required", [])
    additional = schema.get("additionalProperties", True)
    if not isinstance(properties, dict) or not isinstance(required, list) or not isinstance(additional, bool):
        return None
    compiled = {name: _value_predicate(value) for name, value in properties.items()}
    predicates = {name: predicate for name, predicate in compiled.items() if predicate is not None}
    if len(predicates) < len(compiled) or not all(isinstance(name, str) for name in required):
        return None

    def accepts(arguments: Any) -> bool:
        for name in required:
            if name not in arguments:
                return False
        for name, value in arguments.items():
            predicate = predicates.get(name)
            if predicate is None:
                if not additional:
                    return False
            elif not predicate(value):
                return False
        return True

    return accepts


def _value_predicate(schema: object, depth: int = 0) -> Predicate | None:
    if schema is True or schema == {}:
        return lambda value: True
    if not isinstance(schema, dict) or not schema.keys() <= _VALUE_KEYWORDS or depth > _DEEPEST_LIST:
        return None
    kind = schema.get("type")
    if kind == "array" and not schema.keys() & {"enum", "minLength"}:
        element = _value_predicate(schema.get("items", True), depth + 1)
        if element is None:
            return None
        return lambda value: type(value) is list and all(map(element, value))
    if not isinstance(kind, str) or kind not in _CLASSES or "items" in schema:
        return None
    classes = (int, float) if kind == "number" else (_CLASSES[kind],)
    shortest = schema.get("minLength")
    if shortest is not None:
        if kind != "string" or "enum" in schema or type(shortest) is not int:
            return None
        return lambda value: type(value) is str and len(value) >= shortest
    if "enum" not in schema:
        return lambda value: type(value) in classes
    options = schema["enum"]
    # Only strings: JSON Schema compares 1 with 1.0 and with true in ways that Python's `in` does not.
    if kind != "string" or not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        return None
    allowed = frozenset(options)
    return lambda value: type(value) is str and value in allowed
