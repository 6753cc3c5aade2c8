"""The fast checker gives the same verdict as JSON Schema validation."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_arl.trajectories.acceptance import CallChecker
from offline_arl.trajectories.calls import call_problem
from offline_arl.trajectories.schema import tool_call

names = st.sampled_from(["a", "b", "c"])
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-2, 3)
    | st.sampled_from([0.5, 1.0, -2.0])
    | st.sampled_from(["", "a", "xyz"])
)
values = scalars | st.lists(scalars, max_size=3) | st.dictionaries(names, scalars, max_size=2)
kinds = st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object", "int"])
value_schemas = st.fixed_dictionaries(
    {},
    optional={
        "type": kinds | st.just(["string", "null"]),
        "enum": st.lists(scalars, min_size=1, max_size=3),
        "minLength": st.integers(0, 2),
        "minimum": st.integers(0, 2),
        "items": st.fixed_dictionaries({"type": kinds}) | st.just({}),
        "description": st.just("text"),
    },
)
parameter_schemas = st.fixed_dictionaries(
    {"type": st.just("object")},
    optional={
        "properties": st.dictionaries(names, value_schemas, max_size=3),
        "required": st.lists(names, max_size=2, unique=True),
        "additionalProperties": st.booleans() | st.just({"type": "string"}),
        "minProperties": st.integers(0, 1),
    },
)


@settings(max_examples=400, deadline=None)
@given(schema=parameter_schemas, arguments=st.dictionaries(names, values, max_size=3), name=st.sampled_from("fg"))
def test_same_verdict(schema: dict[str, object], arguments: dict[str, object], name: str) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    call = tool_call(name, arguments)
    assert CallChecker(msgspec.json.encode(tools).decode()).problem(call) == call_problem(call, tools)
