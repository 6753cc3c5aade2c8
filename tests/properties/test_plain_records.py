"""The fast way through plain chat records gives the trajectory that the thorough way gives."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from offline_arl.logs.adapter import RawRecord, RecordRefusedError
from offline_arl.logs.providers.openai_chat import OpenAIChatAdapter, convert_thoroughly
from offline_arl.logs.providers.plain_records import PlainRecords

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
values = st.none() | st.booleans() | st.integers(-1, 2) | st.sampled_from([0.5, 10**20, -0.0]) | texts
calls = st.fixed_dictionaries(
    {"function": st.fixed_dictionaries({"name": texts, "arguments": st.sampled_from(['{"a": 1}', "", "[1]"])})},
    optional={"id": texts | st.none(), "type": st.sampled_from(["function", "custom"])},
)
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"])},
    optional={
        "content": texts | st.none() | st.just([{"type": "text", "text": "part"}]),
        "tool_calls": st.none() | st.lists(calls, max_size=2),
        "tool_call_id": texts | st.none(),
        "weight": st.sampled_from([0, 1]),
    },
)
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
KNOWN = (
    "task_id", "group_id", "episode_id", "session_id", "user_id", "task_type", "agent", "model", "started_at",
    "timestamp", "created_at", "ended_at", "stop_reason", "terminated", "truncated", "success", "score", "reward",
    "outcome", "system", "id", "temperature", "trajectory_id", "identifiers", "scores",
)  # fmt: skip
known_records = st.fixed_dictionaries(
    {"messages": st.lists(messages, max_size=3) | values},
    optional={
        "tools": st.sampled_from([[TOOL], [], None, "[]", [TOOL["function"]], [1], {}]),
        "functions": st.just([TOOL["function"]]),
        "metadata": values | st.dictionaries(st.sampled_from(["id", "temperature", "x"]), values, max_size=2),
        "outcome": st.sampled_from([{"success": True, "score": 0.5}, "success", None, {"strange": 1}]),
        **dict.fromkeys(KNOWN, values),
    },
)
# Other keys may be any text: quotes, control characters, the names that the reader gives to what it learns.
other_keys = texts | st.sampled_from(["learned_0", "learned_1", "__class__", "raw", 'a"b', "a\\b", "\x1b", ""])
records = st.builds(
    lambda others, known: {**others, **known}, st.dictionaries(other_keys, values, max_size=2), known_records
)


def raw(value: object) -> RawRecord:
    return RawRecord("log.jsonl", "log.jsonl", 0, json.dumps(value).encode())


@settings(max_examples=600, deadline=None)
@given(st.lists(records | values, min_size=1, max_size=4))
def test_plain_records_are_those_of_the_thorough_reader(log: list[Any]) -> None:
    reader = PlainRecords()
    for value in log:
        plain = reader.read(raw(value), "openai_chat")
        try:
            thorough, keys = convert_thoroughly(raw(value), "openai_chat")
        except RecordRefusedError:
            assert plain is None
            continue
        assert plain is None or plain == thorough
        reader.learn(keys)


def test_the_fast_way_is_taken_by_what_is_plain() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"id": "A1"}'}}
    value = {
        "request": {"temperature": 0.5},
        "messages": [
            {"role": "user", "content": "Where?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
        ],
        "tools": [TOOL],
        "task_id": 7,
        "score": 1,
        "reward": 0.5,
        "terminated": True,
        "metadata": {"source": "web"},
    }
    reader = PlainRecords()
    assert reader.read(raw(value), "openai_chat") is None  # it has not seen the key `request` yet
    thorough, keys = convert_thoroughly(raw(value), "openai_chat")
    reader.learn(keys)
    assert reader.read(raw(value), "openai_chat") == thorough
    assert thorough.metadata == {"source": "web", "request": {"temperature": 0.5}}


def test_what_the_adapter_has_learned_changes_nothing() -> None:
    value = {"run": 3, "messages": [{"role": "user", "content": "hi"}]}
    adapter = OpenAIChatAdapter()
    first, second = adapter.convert(raw(value)), adapter.convert(raw(value))
    assert first == second
    assert adapter.convert(raw({**value, "run": None}))[0].metadata == {"run": None}
    assert adapter.convert(raw({"messages": value["messages"]}))[0].metadata == {}


def test_learning_ends() -> None:
    """A log whose keys are data (an id a key, say) must not make the reader slower and slower."""
    reader = PlainRecords()
    for number in range(100):
        reader.learn([f"key {number}"])
    reader.learn(["one more"])
    assert reader.read(raw({"messages": [{"role": "user"}], "key 3": 1}), "openai_chat") is not None
    assert reader.read(raw({"messages": [{"role": "user"}], "one more": 1}), "openai_chat") is None
