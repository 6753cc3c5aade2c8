"""Validation of calls against hostile and huge schemas, and that it agrees with jsonschema on ordinary ones."""

from __future__ import annotations

import time
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_arl.trajectories.acceptance import CallChecker, checker_for
from offline_arl.trajectories.bounded_validation import NotJudgedError, first_error
from offline_arl.trajectories.calls import call_problem
from offline_arl.trajectories.schema import tool_call
from offline_arl.trajectories.text_cache import cached_by_text

ITSELF = {"$ref": "#/$defs/a"}


def nested(depth: int, innermost: Any, key: str = "x") -> Any:
    value = innermost
    for _ in range(depth):
        value = {key: value}
    return value


def deep_schema(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"x": schema}}
    return schema


def property_a(**schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}}


UNJUDGED = {
    "exponential": (
        {**ITSELF, "$defs": {"a": {"anyOf": [{"properties": {"x": ITSELF}, "required": [name]} for name in "pqr"]}}},
        nested(25, 1),
    ),
    "circle": ({"$ref": "#"}, {}),
    "circle of two": ({**property_a(**ITSELF), "$defs": {"a": {"$ref": "#/properties/a"}}}, {"a": 1}),
    "remote": (property_a(**{"$ref": "http://127.0.0.1:9/schema.json"}), {"a": 1}),
    "file": (property_a(**{"$ref": "file:///etc/hostname"}), {"a": 1}),
    "deep": (deep_schema(400), nested(400, 1)),
    "backreference": (property_a(pattern="(a)\\1"), {"a": "b"}),
    "large pattern": (property_a(pattern="(x{1,1000}){1,1000}y"), {"a": "x" * 1000}),
    "integer that no float holds": (property_a(multipleOf=0.1), {"a": 10**400}),
    "unevaluated": ({"patternProperties": {"(a+)+$": {}}, "unevaluatedProperties": False}, {"a" * 40 + "!": 1}),
}


@pytest.mark.parametrize("name", UNJUDGED)
def test_what_cannot_be_judged_within_bounds_is_accepted(name: str) -> None:
    schema, arguments = UNJUDGED[name]
    started = time.perf_counter()
    with pytest.raises(NotJudgedError):
        first_error(msgspec.json.encode(schema), arguments, 1000)
    call = msgspec.structs.replace(tool_call("f", {}), arguments=arguments)
    assert call_problem(call, [{"type": "function", "function": {"name": "f", "parameters": schema}}]) is None
    assert time.perf_counter() - started < 10


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (property_a(type="string", pattern="^(a+)+$"), {"a": "a" * 10_000 + "!"}),
        ({"patternProperties": {"^(a+)+$": {}}, "additionalProperties": False}, {"a" * 10_000 + "!": 1}),
        (property_a(uniqueItems=True), {"a": [*({"i": i} if i % 2 else i for i in range(20_000)), {"i": 1.0}]}),
        (property_a(enum=["value" * 100] * 20_000), {"a": "other"}),
    ],
)
def test_what_takes_python_forever_is_judged(schema: dict[str, Any], value: Any) -> None:
    started = time.perf_counter()
    assert first_error(msgspec.json.encode(schema), value, len(msgspec.json.encode(value))) is not None
    assert time.perf_counter() - started < 10


texts = st.text(alphabet="ab1", max_size=4)
leaves = st.none() | st.booleans() | st.integers(-1, 2) | st.sampled_from([1.0, 0.5]) | texts
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=8
)
patterns = st.sampled_from(["^a", "b$", "^[ab]+$", "1{2}", "", "a|1"])
schemas = st.recursive(
    st.fixed_dictionaries({}, optional={"pattern": patterns, "uniqueItems": st.booleans(), "type": st.just("string")}),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(texts, inner, max_size=2),
            # No empty pattern: jsonschema does not see that it matches every name.
            "patternProperties": st.dictionaries(patterns.filter(bool), inner, max_size=2),
            "additionalProperties": st.booleans() | inner,
            "items": inner,
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
        },
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(schema=schemas, value=values)
def test_it_agrees_with_jsonschema(schema: dict[str, Any], value: Any) -> None:
    """As long as nothing is huge; `$` before a last line feed, where the two differ, is in no text here."""
    usual = jsonschema.Draft202012Validator(schema).is_valid(value)
    assert (first_error(msgspec.json.encode(schema), value, 1000) is None) == usual


def test_a_call_among_thousands_of_tools() -> None:
    """Ten thousand calls of tools that are not among ten thousand: no problem repeats all names."""
    tools = [{"type": "function", "function": {"name": f"tool_{number}", "parameters": {}}} for number in range(10_000)]
    checker = CallChecker(msgspec.json.encode(tools).decode())
    started = time.perf_counter()
    problems = [checker.problem(tool_call(f"other_{number}", {})) for number in range(10_000)]
    assert time.perf_counter() - started < 5
    text = problems[3].text if problems[3] is not None else ""
    assert text.startswith("no tool named 'other_3'; available: tool_0, tool_1, ")
    assert text.endswith("tool_49 and 9950 more")
    assert checker.problem(tool_call("tool_9999", {})) is None


def test_long_texts_do_not_pile_up_in_caches() -> None:
    calls: list[int] = []

    @cached_by_text(entries=2)
    def size(text: str) -> int:
        calls.append(len(text))
        return len(text)

    long = ["x" * 10**6 + str(number) for number in range(10)]
    assert [size(text) for text in (*long, *long, long[-1])] == [10**6 + 1] * 21
    assert len(calls) == 20  # the last of them was kept, the first ones were not
    huge = "y" * 10**7
    assert size(huge) == size(huge) == 10**7
    assert len(calls) == 21
    assert checker_for(None) is checker_for(None)
