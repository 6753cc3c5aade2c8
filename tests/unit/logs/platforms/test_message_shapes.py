"""Prompts, answers and tools in the shapes of many libraries."""

from __future__ import annotations

import json
from typing import Any

import pytest

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.platforms.answer_shapes import read_answer
from offline_arl.logs.platforms.message_shapes import decode_text, read_prompt
from offline_arl.logs.platforms.tool_shapes import tools_text
from offline_arl.trajectories.schema import ImagePart, Message, TokenRecord, Usage

Row = tuple[str, str, list[tuple[str, str, str | None]], str | None]
LC = ["langchain", "schema", "messages"]


def rows(messages: list[Message]) -> list[Row]:
    """Role, text, calls as (name, raw arguments, id), and the call that is answered."""
    return [
        (
            message.role,
            message.text,
            [(call.name, call.arguments_raw, call.id) for call in message.tool_calls],
            message.tool_call_id,
        )
        for message in messages
    ]


def prompt_rows(value: Any) -> list[Row]:
    prompt = read_prompt(value)
    assert prompt is not None
    return rows(prompt.messages)


def answer_rows(value: Any) -> list[Row]:
    answer = read_answer(value)
    assert answer is not None
    return rows([*answer.before, *answer.choices])


# One conversation (question, call, result) in the shape of each library; the expected rows are the same for all.
QUESTION: Row = ("user", "Weather in Rome?", [], None)
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "openai": [
        {"role": "user", "content": "Weather in Rome?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "w", "arguments": '{"city":"Rome"}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ],
    "responses": [
        {"role": "user", "content": "Weather in Rome?"},
        {"type": "function_call", "call_id": "c1", "name": "w", "arguments": '{"city":"Rome"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
    ],
    "anthropic": [
        {"role": "user", "content": "Weather in Rome?"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "w", "input": {"city": "Rome"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "rain"}]},
    ],
    "opentelemetry": [
        {"role": "user", "parts": [{"type": "text", "content": "Weather in Rome?"}]},
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "c1", "name": "w", "arguments": {"city": "Rome"}}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "rain"}]},
    ],
    "opentelemetry events": [
        {"event.name": "gen_ai.user.message", "role": "user", "content": "Weather in Rome?"},
        {
            "event.name": "gen_ai.assistant.message",
            "role": "assistant",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "w", "arguments": '{"city":"Rome"}'}}],
        },
        {"event.name": "gen_ai.tool.message", "role": "tool", "id": "c1", "content": "rain", "name": "w"},
    ],
    "langchain fields": [
        {"type": "human", "content": "Weather in Rome?", "additional_kwargs": {}, "example": False},
        {
            "type": "ai",
            "content": "",
            "tool_calls": [{"name": "w", "args": {"city": "Rome"}, "id": "c1", "type": "tool_call"}],
            "invalid_tool_calls": [],
        },
        {"type": "tool", "content": "rain", "tool_call_id": "c1", "status": "success"},
    ],
    "langchain constructors": [
        {"lc": 1, "type": "constructor", "id": [*LC, "HumanMessage"], "kwargs": {"content": "Weather in Rome?"}},
        {
            "lc": 1,
            "type": "constructor",
            "id": [*LC, "AIMessageChunk"],
            "kwargs": {
                "content": [{"type": "tool_use", "id": "c1", "name": "w", "input": {"city": "Rome"}}],
                "tool_calls": [{"name": "w", "args": {"city": "Rome"}, "id": "c1", "type": "tool_call"}],
            },
        },
        {
            "lc": 1,
            "type": "constructor",
            "id": [*LC, "ToolMessage"],
            "kwargs": {"content": "rain", "tool_call_id": "c1"},
        },
    ],
    "langchain data": [
        {"type": "human", "data": {"content": "Weather in Rome?"}},
        {"type": "ai", "data": {"content": "", "tool_calls": [{"name": "w", "args": {"city": "Rome"}, "id": "c1"}]}},
        {"type": "tool", "data": {"content": "rain", "tool_call_id": "c1"}},
    ],
    "ai sdk": [
        {"role": "user", "content": [{"type": "text", "text": "Weather in Rome?"}]},
        {
            "role": "assistant",
            "content": [{"type": "tool-call", "toolCallId": "c1", "toolName": "w", "input": {"city": "Rome"}}],
        },
        {
            "role": "tool",
            "content": [
                {
                    "type": "tool-result",
                    "toolCallId": "c1",
                    "toolName": "w",
                    "output": {"type": "text", "value": "rain"},
                }
            ],
        },
    ],
    "pydantic-ai": [
        {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "Weather in Rome?"}]},
        {
            "kind": "response",
            "parts": [{"part_kind": "tool-call", "tool_name": "w", "args": {"city": "Rome"}, "tool_call_id": "c1"}],
        },
        {
            "kind": "request",
            "parts": [{"part_kind": "tool-return", "tool_name": "w", "content": "rain", "tool_call_id": "c1"}],
        },
    ],
    "llama-index": [
        {"role": "user", "blocks": [{"block_type": "text", "text": "Weather in Rome?"}], "additional_kwargs": {}},
        {
            "role": "assistant",
            "blocks": [],
            "additional_kwargs": {
                "tool_calls": [{"id": "c1", "function": {"name": "w", "arguments": {"city": "Rome"}}}]
            },
        },
        {
            "role": "tool",
            "blocks": [{"block_type": "text", "text": "rain"}],
            "additional_kwargs": {"tool_call_id": "c1", "name": "w"},
        },
    ],
    "agent framework": [
        {"role": {"type": "role", "value": "user"}, "contents": [{"type": "text", "text": "Weather in Rome?"}]},
        {
            "role": {"type": "role", "value": "assistant"},
            "contents": [{"type": "function_call", "call_id": "c1", "name": "w", "arguments": '{"city":"Rome"}'}],
        },
        {
            "role": {"type": "role", "value": "tool"},
            "contents": [{"type": "function_result", "call_id": "c1", "result": "rain"}],
        },
    ],
    "koog": [
        {"role": "user", "content": "Weather in Rome?"},
        {
            "role": "tool",  # as Koog logs it
            "content": json.dumps(
                [{"function": {"name": "w", "arguments": '{"city":"Rome"}'}, "id": "c1", "type": "function"}]
            ),
        },
        {"role": "tool", "content": "rain"},
    ],
}


@pytest.mark.parametrize("shape", CONVERSATIONS)
def test_every_shape_says_the_same(shape: str) -> None:
    found = prompt_rows({"messages": json.loads(json.dumps(CONVERSATIONS[shape]))})
    assert found[0] == QUESTION
    assert found[1] == ("assistant", "", [("w", '{"city":"Rome"}', "c1")], None)
    assert found[2] == ("tool", "rain", [], "c1")
    assert len(found) == 3


def test_gemini_calls_without_ids_are_paired_by_order() -> None:
    contents = [
        {"role": "user", "parts": [{"text": "Two cities"}]},
        {
            "role": "model",
            "parts": [
                {"text": "thinking", "thought": True},
                {"functionCall": {"name": "w", "args": {"city": "Rome"}}},
                {"function_call": {"name": "w", "args": {"city": "Oslo"}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "w", "response": {"r": 1}}},
                {"functionResponse": {"name": "w", "response": {"r": 2}}},
            ],
        },
    ]
    prompt = read_prompt({"contents": contents, "config": {"system_instruction": "Be brief."}})
    assert prompt is not None
    system, user, answer, first, second = prompt.messages
    assert (system.role, system.text, user.text) == ("system", "Be brief.", "Two cities")
    assert answer.reasoning == "thinking"
    assert [call.arguments for call in answer.tool_calls] == [{"city": "Rome"}, {"city": "Oslo"}]
    ids = [call.id for call in answer.tool_calls]
    assert len(set(ids)) == 2
    assert [(first.tool_call_id, first.text), (second.tool_call_id, second.text)] == list(
        zip(ids, ['{"r":1}', '{"r":2}'], strict=True)
    )


def test_json_text_within_json_text() -> None:
    inner = json.dumps({"messages": [{"role": "user", "content": "hi"}], "model": "m"})
    prompt = read_prompt(json.dumps(inner))
    assert prompt is not None
    assert (rows(prompt.messages), prompt.settings) == ([("user", "hi", [], None)], {"model": "m"})
    assert decode_text("12") == "12"
    assert decode_text("{broken") == "{broken"


def test_a_list_of_a_list_as_langchain_passes_it() -> None:
    assert prompt_rows({"messages": [CONVERSATIONS["langchain fields"]]})[0] == QUESTION


@pytest.mark.parametrize(
    "value", [None, "", [], {}, {"content": "role"}, {"city": "Rome"}, {"messages": []}, [1, 2], 7]
)
def test_an_input_without_messages_gives_none(value: Any) -> None:
    assert read_prompt(value) is None


def test_a_message_that_cannot_be_read_is_named() -> None:
    with pytest.raises(RecordRefusedError, match=r"^input\.messages\[1\]"):
        read_prompt({"messages": [{"role": "user", "content": "a"}, {"role": "narrator", "content": "b"}]})


@pytest.mark.parametrize("key", ["system", "instructions", "system_instruction"])
def test_a_system_prompt_beside_the_messages(key: str) -> None:
    found = prompt_rows({"messages": [{"role": "user", "content": "hi"}], key: "Be brief."})
    assert found == [("system", "Be brief.", [], None), ("user", "hi", [], None)]


def test_a_tool_definition_among_the_messages_becomes_a_tool() -> None:
    definition = {"type": "function", "function": {"name": "w", "parameters": {"type": "object"}}}
    prompt = read_prompt([{"role": "user", "content": "hi"}, {"role": "tool", "content": definition}])
    assert prompt is not None
    assert rows(prompt.messages) == [("user", "hi", [], None)]
    assert json.loads(prompt.tools or "") == [definition]


def test_raw_arguments_of_langchain_win_over_parsed_ones() -> None:
    message = {
        "type": "ai",
        "content": "",
        "tool_calls": [{"name": "w", "args": {"city": "Rome"}, "id": "c1"}],
        "invalid_tool_calls": [{"name": "w", "args": '{"city": ', "id": "c2", "error": "no JSON"}],
        "additional_kwargs": {
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "w", "arguments": '{"city":  "Rome"}'}},
                {"id": "c2", "type": "function", "function": {"name": "w", "arguments": '{"city": '}},
            ]
        },
    }
    calls = read_prompt([message]).messages[0].tool_calls  # type: ignore[union-attr]
    assert [(call.arguments_raw, call.arguments is None) for call in calls] == [
        ('{"city":  "Rome"}', False),
        ('{"city": ', True),
    ]
    del message["additional_kwargs"]
    calls = read_prompt([message]).messages[0].tool_calls  # type: ignore[union-attr]
    assert [call.id for call in calls] == ["c1", "c2"]
    assert calls[1].arguments_raw == '{"city": '


def test_images_of_the_ai_sdk() -> None:
    content = [{"type": "image", "image": "QUJD", "mediaType": "image/png"}, {"type": "text", "text": "what?"}]
    prompt = read_prompt([{"role": "user", "content": content}])
    assert prompt is not None
    assert prompt.messages[0].content is not None
    assert prompt.messages[0].content[0] == ImagePart("data:image/png;base64,QUJD")


CALL = {"id": "c1", "type": "function", "function": {"name": "w", "arguments": "{}"}}
ANSWERS: dict[str, Any] = {
    "text": "rain",
    "quoted text": '"rain"',
    "message": {"role": "assistant", "content": "rain"},
    "chat completion": {"choices": [{"index": 0, "message": {"role": "assistant", "content": "rain"}}]},
    "choices alone": [{"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "rain"}}],
    "choice event": {"event.name": "gen_ai.choice", "index": 0, "message": {"role": "assistant", "content": "rain"}},
    "responses": {"object": "response", "output": [{"type": "message", "role": "assistant", "content": "rain"}]},
    "anthropic": {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "rain"}]},
    "anthropic blocks": [{"type": "text", "text": "rain"}],
    "gemini": {"candidates": [{"content": {"parts": [{"text": "rain"}]}, "finishReason": "STOP"}]},
    "langchain": {"generations": [[{"text": "rain", "message": {"type": "ai", "content": "rain"}}]]},
    "langchain text": {"generations": [[{"text": "rain"}]]},
    "ai sdk": {"text": "rain", "finishReason": "stop"},
    "wrapped": {"output": {"output": "rain"}},
    "graph node": {"messages": [{"type": "ai", "content": "rain"}]},
}


@pytest.mark.parametrize("shape", ANSWERS)
def test_every_answer_says_the_same(shape: str) -> None:
    assert answer_rows(ANSWERS[shape]) == [("assistant", "rain", [], None)]


@pytest.mark.parametrize("value", [None, {}, [], {"output": None}, {"messages": []}])
def test_an_output_without_an_answer_gives_none(value: Any) -> None:
    assert read_answer(value) is None


def test_calls_of_the_ai_sdk() -> None:
    expected = [("assistant", "", [("w", '{"a":1}', "c1")], None)]
    call = {"toolCallId": "c1", "toolName": "w", "input": '{"a":1}'}
    assert answer_rows([call]) == expected
    assert answer_rows({"toolCalls": json.dumps([call])}) == expected


def test_several_choices_stay_apart_and_pieces_of_a_turn_do_not() -> None:
    choices = [{"index": index, "message": {"role": "assistant", "content": str(index)}} for index in range(2)]
    answer = read_answer({"choices": choices})
    assert answer is not None
    assert [choice.text for choice in answer.choices] == ["0", "1"]
    koog = [{"role": "assistant", "content": json.dumps([{**CALL, "id": call_id}])} for call_id in ("a", "b")]
    answer = read_answer(koog)
    assert answer is not None
    assert [[call.id for call in choice.tool_calls] for choice in answer.choices] == [["a", "b"]]


def test_why_an_answer_ended_and_what_it_took() -> None:
    answer = read_answer(
        {
            "model": "gpt-1",
            "choices": [{"message": {"content": "ra"}, "finish_reason": "length"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
        }
    )
    assert answer is not None
    assert (answer.stop_reason, answer.truncated) == ("length", True)
    assert (answer.model, answer.usage) == ("gpt-1", Usage(3, 2))
    blocked = read_answer({"candidates": [{"finishReason": "SAFETY"}], "modelVersion": "g-1"})
    assert blocked is not None
    assert (blocked.choices[0].content, blocked.stop_reason, blocked.model) == ([], "SAFETY", "g-1")


def test_token_ids_of_a_server_are_kept() -> None:
    choice = {"message": {"role": "assistant", "content": "hi"}, "token_ids": [5, 6], "finish_reason": "stop"}
    answer = read_answer({"choices": [choice], "prompt_token_ids": [1, 2, 3]})
    assert answer is not None
    assert answer.choices[0].tokens == TokenRecord([5, 6], "unknown", None, [1, 2, 3])


def test_an_object_of_no_known_shape_is_a_structured_answer() -> None:
    answer = read_answer({"city": "Rome", "rain": True})
    assert answer is not None
    assert (answer.choices[0].text, answer.choices[0].metadata) == (
        '{"city":"Rome","rain":true}',
        {"content_was_json": True},
    )


def test_tools_that_a_provider_ran_come_before_the_answer() -> None:
    output = [
        {"type": "web_search_call", "id": "ws1", "action": {"query": "Rome"}, "status": "completed"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "rain"}]},
    ]
    answer = read_answer({"object": "response", "output": output, "instructions": "Be brief."})
    assert answer is not None
    assert [message.role for message in answer.before] == ["assistant", "tool"]
    assert (answer.choices[0].text, answer.system[0].text) == ("rain", "Be brief.")


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS: dict[str, Any] = {
    "nested": [{"type": "function", "function": {"name": "w", "description": "d", "parameters": SCHEMA}}],
    "flat": [{"type": "function", "name": "w", "description": "d", "parameters": SCHEMA}],
    "anthropic": [{"name": "w", "description": "d", "input_schema": SCHEMA}],
    "ai sdk": [json.dumps({"type": "function", "name": "w", "description": "d", "inputSchema": SCHEMA})],
    "gemini": [{"functionDeclarations": [{"name": "w", "description": "d", "parameters": SCHEMA}]}],
    "mapping": {"w": json.dumps({"description": "d", "parameters": SCHEMA})},
    "text": json.dumps([{"name": "w", "description": "d", "input_schema": SCHEMA}]),
}


@pytest.mark.parametrize("shape", TOOLS)
def test_tools_of_every_shape(shape: str) -> None:
    expected = [{"type": "function", "function": {"name": "w", "description": "d", "parameters": SCHEMA}}]
    assert json.loads(tools_text(TOOLS[shape]) or "") == expected


@pytest.mark.parametrize("value", [None, [], {}, "w", 3, [{"description": "nameless"}], [3], ["{"]])
def test_what_is_no_list_of_tools(value: Any) -> None:
    assert tools_text(value) is None
