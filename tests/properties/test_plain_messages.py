"""The fast way through plain messages gives what the thorough way gives."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.providers.openai_messages import convert_messages
from offline_arl.logs.providers.plain_messages import decode_plain

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
arguments = st.sampled_from(['{"a": 1}', "", "null", "[1]", '{"a"', '{"b": {"c": [null, 1.5]}}'])
calls = st.fixed_dictionaries(
    {"function": st.fixed_dictionaries({"name": texts, "arguments": arguments | st.none()})},
    optional={"id": texts | st.none(), "type": st.sampled_from(["function", "custom", None]), "index": st.just(0)},
)
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "function"])},
    optional={
        "content": texts | st.none() | st.just([{"type": "text", "text": "part"}]),
        "tool_calls": st.none() | st.lists(calls, max_size=2),
        "tool_call_id": texts | st.none(),
        "name": texts | st.none(),
        "weight": st.sampled_from([0, 1]),
    },
)


@given(st.lists(messages, min_size=1, max_size=4))
def test_plain_messages_are_those_of_the_thorough_reader(values: list[dict[str, Any]]) -> None:
    raw = json.dumps(values).encode()
    plain = decode_plain(raw)
    if plain is None:
        return
    try:
        thorough = convert_messages(msgspec.json.decode(raw))
    except RecordRefusedError as error:
        raise AssertionError(f"the thorough reader refuses: {error}") from error
    assert plain == thorough


def test_the_fast_way_is_taken_by_what_is_plain() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"id": "A1"}'}}
    values = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Where is A1?", "name": "kim"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "gone"},
        {"role": "assistant", "content": "Gone."},
    ]
    assert decode_plain(json.dumps(values).encode()) == convert_messages(values)


def test_calls_that_must_be_paired_are_left_to_the_thorough_reader() -> None:
    assert decode_plain(b'[{"role": "tool", "content": "x"}]') is None
    assert (
        decode_plain(b'[{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": ""}}]}]') is None
    )
    assert decode_plain(b"[]") is None
    assert decode_plain(b'{"role": "user"}') is None
