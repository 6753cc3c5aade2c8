"""Messages, tools, responses and streams in the Anthropic form."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.providers.anthropic_messages import (
    convert_answer,
    convert_messages,
    error_of,
    normalize_tools,
    system_messages,
)
from offline_arl.logs.providers.anthropic_stream import response_of_stream
from offline_arl.trajectories.schema import (
    FilePart,
    ImagePart,
    MessageError,
    Producer,
    ReasoningPart,
    TextPart,
    ToolCall,
    Usage,
)


def test_results_in_user_messages_become_tool_messages_before_the_text() -> None:
    messages = convert_messages(
        [
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Look it up.", "signature": "c2ln"},
                    {"type": "text", "text": "Checking."},
                    {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}},
                    {"type": "tool_use", "id": "t2", "name": "now", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t2", "content": "12:00"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "t1",
                        "content": [{"type": "text", "text": "no such city"}],
                        "is_error": True,
                    },
                    {"type": "text", "text": "Be quick."},
                ],
            },
        ]
    )
    assert [message.role for message in messages] == ["user", "assistant", "tool", "tool", "user"]
    assert messages[1].content == [ReasoningPart("Look it up.", "c2ln"), TextPart("Checking.")]
    assert messages[1].tool_calls == [
        ToolCall("weather", '{"city":"Oslo"}', {"city": "Oslo"}, "t1"),
        ToolCall("now", "{}", {}, "t2"),
    ]
    assert [(m.tool_call_id, m.name, m.text, m.error) for m in messages[2:4]] == [
        ("t2", "now", "12:00", None),
        ("t1", "weather", "no such city", MessageError("tool_error")),
    ]
    assert messages[4].text == "Be quick."


def test_every_kind_of_block_is_kept() -> None:
    (user,) = convert_messages(
        [
            {
                "role": "user",
                "content": [
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
                    {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
                    {
                        "type": "document",
                        "title": "Notes",
                        "source": {"type": "text", "media_type": "text/plain", "data": "a b"},
                    },
                    {"type": "hologram", "data": 1},
                ],
            }
        ]
    )
    assert user.content == [
        ImagePart("data:image/png;base64,aGk="),
        ImagePart("https://example.com/a.png"),
        FilePart("data:text/plain,a%20b", "text/plain"),
    ]
    assert user.metadata == {
        "part_extras": {"2": {"title": "Notes"}},
        "other_parts": [{"index": 3, "part": {"type": "hologram", "data": 1}}],
    }
    (answer,) = convert_messages([{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "eA=="}]}])
    assert answer.content == [ReasoningPart("", "eA==", encrypted=True)]
    assert answer.reasoning == ""


def test_a_tool_of_the_provider_cuts_the_response_where_the_model_read_its_result() -> None:
    answer = convert_answer(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude",
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 5, "output_tokens": 7, "cache_read_input_tokens": 11},
            "content": [
                {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}},
                {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"type": "web_search_result"}]},
                {"type": "text", "text": "Found.", "citations": [{"url": "https://example.com"}]},
            ],
        }
    )
    first, result, last = answer.messages
    assert (first.tool_calls[0].name, first.usage, first.producer) == ("web_search", None, Producer("model", "claude"))
    assert first.metadata == {"tool_call_extras": {"0": {"kind": "server_tool_use"}}}
    assert (result.role, result.name, result.text) == ("tool", "web_search", '[{"type":"web_search_result"}]')
    assert (last.text, last.id, last.usage) == ("Found.", "msg_1", Usage(5, 7))
    assert last.metadata == {
        "stop_reason": "end_turn",
        "usage": {"cache_read_input_tokens": 11},
        "part_extras": {"0": {"citations": [{"url": "https://example.com"}]}},
    }
    assert answer.stop_reason == "end_turn"
    assert not answer.truncated


def stream(*events: Mapping[str, object]) -> str:
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}  \n\n" for event in events)


START = {
    "type": "message_start",
    "message": {"id": "m", "role": "assistant", "model": "c", "content": [], "usage": {"input_tokens": 3}},
}


def test_a_stream_gives_the_response_and_keeps_the_streamed_arguments() -> None:
    text = stream(
        START,
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "So\u2028"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "S"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "ping"},
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "tool_use", "id": "t", "name": "f", "input": {}},
        },
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"a":'}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": " 1}"}},
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    )
    answer = convert_answer(response_of_stream(text))
    (message,) = answer.messages
    assert message.content == [ReasoningPart("So\u2028", "S")]
    assert message.tool_calls == [ToolCall("f", '{"a": 1}', {"a": 1}, "t")]
    assert (message.usage, answer.stop_reason) == (Usage(3, 9), "tool_use")
    assert "incomplete" not in message.metadata


def test_a_stream_that_was_cut_off_says_so() -> None:
    text = stream(
        START,
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Half"}},
    )
    answer = convert_answer(response_of_stream(text + 'data: {"type": "content_bl'))
    assert answer.messages[0].text == "Half"
    assert answer.messages[0].metadata["incomplete"] is True
    assert answer.stop_reason is None


def test_an_overloaded_stream_is_an_error_and_no_answer() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    response = response_of_stream(stream(error))
    assert error_of(response) == MessageError("overloaded_error", "Overloaded")
    with pytest.raises(RecordRefusedError, match="content: expected a list"):
        convert_answer(response)


def test_tools_take_the_openai_form() -> None:
    tools = normalize_tools(
        [
            {
                "name": "f",
                "description": "d",
                "input_schema": {"type": "object"},
                "cache_control": {"type": "ephemeral"},
            },
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
        ]
    )
    assert tools is not None
    assert json.loads(tools) == [
        {
            "type": "function",
            "function": {"name": "f", "description": "d", "parameters": {"type": "object"}},
            "cache_control": {"type": "ephemeral"},
        },
        {
            "type": "function",
            "function": {"name": "web_search"},
            "max_uses": 3,
            "provider_type": "web_search_20250305",
        },
    ]
    assert normalize_tools(None) is None


def test_system_prompts_are_strings_or_blocks() -> None:
    assert system_messages("Be brief.")[0].text == "Be brief."
    assert system_messages([{"type": "text", "text": "A"}, {"type": "text", "text": "B"}])[0].text == "AB"
    assert system_messages(None) == system_messages([]) == []


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("error", r"messages\[0\]: expected an object, got a string"),
        ({"role": "tool", "content": "x"}, r"messages\[0\]\.role"),
        ({"role": "user", "content": [7]}, r"messages\[0\]\.content\[0\]: expected an object, got a number"),
        ({"role": "user", "content": {"text": "x"}}, r"messages\[0\]\.content: expected a string or a list"),
        ({"role": "assistant", "content": [{"type": "tool_use", "id": "t"}]}, r"content\[0\]\.name"),
    ],
)
def test_what_is_no_message_is_refused_with_its_place(value: object, reason: str) -> None:
    with pytest.raises(RecordRefusedError, match=reason):
        convert_messages([value])
