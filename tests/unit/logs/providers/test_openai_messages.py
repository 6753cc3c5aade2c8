"""Chat messages in every shape that logs have them in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.providers.openai_messages import convert_messages
from offline_arl.logs.providers.openai_tools import normalize_tools
from offline_arl.trajectories.schema import (
    FilePart,
    ImagePart,
    Message,
    MessageError,
    Producer,
    ReasoningPart,
    TextPart,
    TokenRecord,
    Usage,
)


def convert(**fields: Any) -> Message:
    (message,) = convert_messages([{"role": "assistant", **fields}])
    return message


@pytest.mark.parametrize(
    ("fields", "content"),
    [
        ({}, None),
        ({"content": None}, None),
        ({"content": ""}, [TextPart("")]),
        ({"content": []}, []),
        ({"content": "Hi"}, [TextPart("Hi")]),
        ({"content": ["Hi", {"type": "text", "text": "there"}]}, [TextPart("Hi"), TextPart("there")]),
        ({"content": [{"type": "output_text", "text": "Hi"}]}, [TextPart("Hi")]),
        ({"content": [{"type": "refusal", "refusal": "No."}]}, [TextPart("No.")]),
        ({"content": None, "refusal": "No."}, [TextPart("No.")]),
        ({"content": "A", "reasoning_content": "B"}, [ReasoningPart("B"), TextPart("A")]),
        ({"reasoning": "B"}, [ReasoningPart("B")]),
        ({"reasoning": "B", "reasoning_content": "B", "content": ""}, [ReasoningPart("B"), TextPart("")]),
        ({"content": [{"type": "thinking", "thinking": "B", "signature": "s"}]}, [ReasoningPart("B", "s")]),
        (
            {"content": [{"type": "image_url", "image_url": {"url": "u", "detail": "low"}}]},
            [ImagePart("u", "low")],
        ),
        ({"content": [{"type": "image_url", "image_url": "u"}]}, [ImagePart("u")]),
        ({"content": [{"type": "file", "file": {"file_id": "f-1"}}]}, [FilePart("f-1")]),
        (
            {"content": [{"type": "input_audio", "input_audio": {"data": "AA==", "format": "mp3"}}]},
            [FilePart("data:audio/mp3;base64,AA==", "audio/mp3")],
        ),
    ],
)
def test_content(fields: dict[str, Any], content: object) -> None:
    assert convert(**fields).content == content


def test_unknown_parts_and_keys_are_kept() -> None:
    message = convert(
        content=["a", {"type": "video", "id": 3}], annotations=[1], metadata={"x": 1}, finish_reason="stop"
    )
    assert message.content == [TextPart("a")]
    assert message.metadata == {
        "x": 1,
        "annotations": [1],
        "finish_reason": "stop",
        "other_parts": [{"index": 1, "part": {"type": "video", "id": 3}}],
    }


@pytest.mark.parametrize(
    ("arguments", "raw", "parsed", "problem"),
    [
        ('{"a": 1}', '{"a": 1}', {"a": 1}, None),
        ({"a": 1}, '{"a":1}', {"a": 1}, None),
        ("", "", {}, None),
        ("null", "null", {}, None),
        (None, "", {}, None),
        ('{"a": 1', '{"a": 1', None, "invalid JSON"),
        ([1], "[1]", None, "not an object"),
        ('"x"', '"x"', None, "not an object"),
    ],
)
def test_arguments_are_kept_raw_and_parsed(arguments: object, raw: str, parsed: object, problem: str | None) -> None:
    function = {"name": "f", "arguments": arguments}
    nested = convert(tool_calls=[{"id": "c", "type": "function", "function": dict(function)}])
    flat = convert(tool_calls=[{"id": "c", **function}])
    assert nested.tool_calls == flat.tool_calls
    assert nested.metadata == flat.metadata == {}
    (call,) = nested.tool_calls
    assert (call.name, call.id, call.arguments_raw, call.arguments) == ("f", "c", raw, parsed)
    assert (problem is None) == (call.parse_error is None)
    assert problem is None or problem in str(call.parse_error)


def test_odd_calls_keep_their_extras() -> None:
    message = convert(
        tool_calls=[
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}, "index": 0},
            {"id": "b", "type": "custom", "custom": {"name": "g", "input": "print(1)"}},
        ]
    )
    assert [call.name for call in message.tool_calls] == ["f", "g"]
    assert message.tool_calls[1].arguments_raw == "print(1)"
    assert message.tool_calls[1].arguments is None
    assert message.metadata["tool_call_extras"] == {"0": {"index": 0}, "1": {"type": "custom"}}


def test_legacy_functions_are_paired_by_order() -> None:
    def call(name: str) -> dict[str, Any]:
        return {"role": "assistant", "content": None, "function_call": {"name": name, "arguments": "{}"}}

    messages = convert_messages(
        [
            call("first"),
            call("second"),
            {"role": "function", "name": "second", "content": "2"},
            {"role": "function", "name": "first", "content": "1"},
            call("first"),
            {"role": "function", "name": "first", "content": "3"},
        ]
    )
    assert [message.tool_calls[0].id for message in messages if message.tool_calls] == [
        "call_0_0",
        "call_1_0",
        "call_4_0",
    ]
    results = [message for message in messages if message.role == "tool"]
    assert [message.tool_call_id for message in results] == ["call_1_0", "call_0_0", "call_4_0"]
    assert results[0].metadata == {"legacy_function_role": True}
    assert messages[0].metadata == {"legacy_function_call": True}


def test_results_without_ids_go_to_open_calls_and_ids_that_are_there_stay() -> None:
    calls = [{"id": name, "function": {"name": name, "arguments": "{}"}} for name in ("a", "b", "c")]
    messages = convert_messages(
        [
            {"role": "assistant", "tool_calls": calls},
            {"role": "tool", "content": "B", "tool_call_id": "b"},
            {"role": "tool", "content": "?"},
            {"role": "tool", "content": "C", "name": "c"},
            {"role": "tool", "content": "nobody asked"},
        ]
    )
    assert [message.tool_call_id for message in messages[1:]] == ["b", "a", "c", None]


def test_results_without_ids_belong_to_the_latest_turn_before_calls_that_stayed_open() -> None:
    def calls(*names: str) -> dict[str, Any]:
        return {"role": "assistant", "tool_calls": [{"function": {"name": name, "arguments": "{}"}} for name in names]}

    def results(count: int) -> list[dict[str, Any]]:
        return [{"role": "tool", "content": "?"} for _ in range(count)]

    messages = convert_messages([calls("a", "b"), *results(1), calls("c"), calls("d"), *results(3)])
    assert [message.tool_call_id for message in messages if message.role == "tool"] == [
        "call_0_0",
        "call_2_0",
        "call_3_0",
        "call_0_1",
    ]


def test_who_made_a_message() -> None:
    messages = convert_messages(
        [
            {"role": "assistant", "content": "a"},
            {"role": "tool", "content": "b", "tool_call_id": "x", "name": "f"},
            {"role": "assistant", "content": "c", "producer": "script"},
            {"role": "assistant", "content": "d", "producer": {"kind": "model", "name": "m"}},
            {"role": "assistant", "content": "e", "producer": {"kind": "robot"}},
        ]
    )
    assert [message.producer for message in messages] == [
        Producer(),
        Producer("environment"),
        Producer("script"),
        Producer("model", "m"),
        Producer(),
    ]
    assert messages[1].name == "f"
    assert messages[4].metadata == {"producer": {"kind": "robot"}}


@pytest.mark.parametrize(
    ("fields", "trainable", "metadata"),
    [
        ({}, None, {}),
        ({"weight": 0}, False, {}),
        ({"weight": 1}, True, {}),
        ({"weight": 0.5}, True, {"weight": 0.5}),
        ({"trainable": False}, False, {}),
        ({"weight": "much"}, None, {"weight": "much"}),
    ],
)
def test_weights(fields: dict[str, Any], trainable: bool | None, metadata: dict[str, Any]) -> None:
    message = convert(content="x", **fields)
    assert (message.trainable, message.metadata) == (trainable, metadata)


def test_the_rest_of_a_message() -> None:
    message = convert(
        content="x",
        timestamp=17.5,
        error={"type": "timeout", "message": "too slow"},
        usage={"prompt_tokens": 3, "completion_tokens": 4, "cost": 0.5, "total_tokens": 7},
        tokens={"token_ids": [1, 2], "fingerprint": "f", "logprobs": [-1, -2.5]},
    )
    assert message.timestamp == "17.5"
    assert message.error == MessageError("timeout", "too slow")
    assert message.usage == Usage(3, 4, 0.5)
    assert message.tokens == TokenRecord([1, 2], "f", [-1.0, -2.5])
    assert message.metadata == {"usage": {"total_tokens": 7}}
    assert convert(content="x", error="broke").error == MessageError("error", "broke")
    assert convert(content="x", is_error=True).error == MessageError("error")


def test_a_tool_result_that_is_an_object_becomes_its_json() -> None:
    (message,) = convert_messages([{"role": "tool", "content": {"a": [1]}, "tool_call_id": "c"}])
    assert message.text == '{"a":[1]}'
    assert message.metadata == {"content_was_json": True}


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ({}, "messages: expected a list, got an object"),
        ([], "messages: there are none"),
        ([1], "messages[0]: expected an object, got a number"),
        ([{"role": "user", "content": "a"}, {"content": "b"}], "messages[1].role: expected one of"),
        ([{"role": "robot"}], "messages[0].role: expected one of"),
        ([{"role": "user", "content": 5}], "messages[0].content: expected a string, a list or null, got a number"),
        ([{"role": "user", "content": [None]}], "messages[0].content[0]: expected an object or a string, got null"),
        ([{"role": "user", "content": [{"type": "tool_result"}]}], "messages[0].content[0]: part 'tool_result' is not"),
        ([{"role": "assistant", "tool_calls": {}}], "messages[0].tool_calls: expected a list, got an object"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].name: expected a string, got null"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": 3}}]}],
            "messages[0].tool_calls[0].function.name: expected a string, got a number",
        ),
        ([{"role": "assistant", "function_call": "f"}], "messages[0].function_call: expected an object, got a string"),
        ([{"role": "assistant", "tokens": {"token_ids": "x"}}], "messages[0].tokens: "),
    ],
)
def test_refusals_name_the_place(messages: object, reason: str) -> None:
    with pytest.raises(RecordRefusedError) as refusal:
        convert_messages(messages)
    assert str(refusal.value).startswith(reason)


FUNCTION = {"name": "f", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": FUNCTION}


@pytest.mark.parametrize(
    ("logged", "tools"),
    [
        (None, None),
        ([], []),
        ("", None),
        ([TOOL], [TOOL]),
        (json.dumps([TOOL]), [TOOL]),
        ([FUNCTION], [TOOL]),
        ([{"type": "function", **FUNCTION}], [TOOL]),
        (
            [{"type": "custom", "custom": {"name": "g"}}],
            [{"type": "custom", "custom": {"name": "g"}, "function": {"name": "g"}}],
        ),
    ],
)
def test_tools_take_one_form(logged: object, tools: object) -> None:
    text = normalize_tools(json.dumps(logged).encode())
    assert (None if text is None else json.loads(text)) == tools


@pytest.mark.parametrize(
    ("logged", "reason"),
    [
        ({}, "tools: expected a list, got an object"),
        ("[", "tools: the string is not JSON"),
        (["f"], "tools[0]: expected an object, got a string"),
        ([{"type": "function"}], "tools[0]: has no function name"),
    ],
)
def test_tools_of_another_form_are_refused(logged: object, reason: str) -> None:
    with pytest.raises(RecordRefusedError) as refusal:
        normalize_tools(json.dumps(logged).encode())
    assert str(refusal.value).startswith(reason)
