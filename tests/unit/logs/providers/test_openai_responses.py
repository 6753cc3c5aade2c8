"""Items, tools, streams and chains of the Responses interface."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.providers.openai_responses import responses_items_to_messages, responses_tools
from offline_arl.logs.providers.openai_stream import join_response_events
from offline_arl.logs.reading import LogContents, read_logs
from offline_arl.trajectories.schema import Message, MessageError, Producer, ReasoningPart, TextPart, TokenRecord, Usage

Item = dict[str, Any]
MODEL = Producer("model", "m")


def said(text: str, **more: Any) -> Item:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}], **more}


def called(call_id: str, name: str = "f", arguments: str = "{}") -> Item:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def gave(call_id: str, output: Any) -> Item:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def read(tmp_path: Path, *records: Any) -> LogContents:
    path = tmp_path / "calls.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return read_logs(path)


def response(number: int, output: list[Item], **more: Any) -> Item:
    return {
        "object": "response",
        "id": f"resp_{number}",
        "model": "m",
        "created_at": 1700000000 + number,
        "output": output,
        **more,
    }


def test_a_turn_of_several_items_is_one_message() -> None:
    messages = responses_items_to_messages(
        [
            {"role": "user", "content": "hi"},
            {
                "type": "reasoning",
                "id": "rs",
                "summary": [{"type": "summary_text", "text": "short"}],
                "encrypted_content": "xx",
            },
            said("I look", id="msg", status="completed"),
            called("c1", arguments='{"a": 1}'),
            called("c2", "g", ""),
            gave("c2", "two"),
            gave("c1", "one"),
            said("done"),
        ],
        assistant=MODEL,
    )
    assert [message.role for message in messages] == ["user", "assistant", "tool", "tool", "assistant"]
    turn = messages[1]
    assert turn.content == [ReasoningPart("short"), ReasoningPart("", "xx", encrypted=True), TextPart("I look")]
    assert [(call.id, call.name, call.arguments) for call in turn.tool_calls] == [
        ("c1", "f", {"a": 1}),
        ("c2", "g", {}),
    ]
    assert turn.producer == MODEL
    assert turn.metadata == {
        "reasoning_is_summary": True,
        "items": [{"type": "reasoning", "id": "rs"}, {"type": "message", "id": "msg"}],
    }
    assert [(message.tool_call_id, message.text) for message in messages[2:4]] == [("c2", "two"), ("c1", "one")]
    assert messages[2].producer == Producer("environment")


def test_raw_reasoning_is_preferred_and_a_reference_to_reasoning_is_unreadable() -> None:
    (message,) = responses_items_to_messages(
        [
            {
                "type": "reasoning",
                "content": [{"type": "reasoning_text", "text": "raw"}],
                "summary": [{"type": "summary_text", "text": "short"}],
            },
            {"type": "reasoning", "id": "rs_2", "summary": []},
            said("a"),
        ]
    )
    assert message.content == [ReasoningPart("raw"), ReasoningPart("", encrypted=True), TextPart("a")]
    assert message.metadata["items"][0] == {"type": "reasoning", "summary": ["short"]}


def test_a_tool_of_the_provider_is_a_call_and_a_result_within_the_turn() -> None:
    messages = responses_items_to_messages(
        [
            {
                "type": "mcp_call",
                "id": "mcp_1",
                "name": "find",
                "server_label": "s",
                "arguments": '{"q": 1}',
                "output": "found",
            },
            {
                "type": "web_search_call",
                "id": "ws_1",
                "status": "completed",
                "action": {"type": "search", "query": "x"},
            },
            {
                "type": "mcp_call",
                "id": "mcp_2",
                "name": "find",
                "arguments": "{}",
                "error": {"type": "http", "message": "no"},
            },
            said("answer"),
        ]
    )
    assert [message.role for message in messages] == ["assistant", "tool"] * 3 + ["assistant"]
    assert [call.name for message in messages for call in message.tool_calls] == ["find", "web_search", "find"]
    assert messages[1] == Message(
        "tool", [TextPart("found")], tool_call_id="mcp_1", name="find", producer=Producer("environment")
    )
    assert messages[3].metadata == {"result_not_logged": True}
    assert messages[2].tool_calls[0].arguments == {"action": {"type": "search", "query": "x"}}
    assert messages[5].error == MessageError("http", "no")


def test_custom_and_shell_calls_keep_their_arguments() -> None:
    (message,) = responses_items_to_messages(
        [
            {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "*** Begin"},
            {"type": "local_shell_call", "call_id": "d", "action": {"type": "exec", "command": ["ls"]}},
            {"type": "computer_call", "call_id": "e", "action": {"type": "click", "x": 1}},
        ]
    )
    patch, shell, computer = message.tool_calls
    assert (patch.arguments_raw, patch.arguments) == ("*** Begin", None)
    assert (shell.name, shell.arguments) == ("local_shell", {"type": "exec", "command": ["ls"]})
    assert (computer.name, computer.arguments) == ("computer", {"action": {"type": "click", "x": 1}})


def test_token_ids_are_kept_and_part_turns_that_nothing_else_parts() -> None:
    first = {"generation_token_ids": [1, 2], "generation_log_probs": [-0.5, -0.1], "prompt_token_ids": [9]}
    messages = responses_items_to_messages([said("a", **first), said("b", generation_token_ids=[3])])
    assert [message.tokens for message in messages] == [
        TokenRecord([1, 2], "unknown", [-0.5, -0.1], [9]),
        TokenRecord([3], "unknown"),
    ]


def test_unknown_items_stay_with_the_message_they_stand_by() -> None:
    messages = responses_items_to_messages(
        [{"type": "mcp_list_tools", "tools": []}, said("a"), {"type": "program", "code": "x"}]
    )
    assert messages[0].metadata == {
        "items": [{"type": "mcp_list_tools", "tools": []}, {"type": "program", "code": "x"}]
    }


@pytest.mark.parametrize(
    ("items", "reason"),
    [
        (7, "input: expected a list of items or a string, got a number"),
        ([7], "input[0]: expected an object, got a number"),
        ([{"content": "x"}], "input[0].type: expected a string, got null"),
        (
            [{"role": "king", "content": "x"}],
            "input[0].role: expected one of system, developer, user, assistant, got 'king'",
        ),
        ([{"role": "user", "content": 3}], "input[0].content: expected a string, a list or null, got a number"),
        ([{"type": "function_call", "call_id": "c"}], "input[0].name: expected a string, got null"),
    ],
)
def test_refusals_name_the_item(items: Any, reason: str) -> None:
    with pytest.raises(RecordRefusedError) as error:
        responses_items_to_messages(items)
    assert str(error.value) == reason


def test_tools_take_the_nested_form() -> None:
    text = responses_tools(
        [
            {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True},
            {"type": "web_search"},
            {"type": "mcp", "server_label": "docs", "server_url": "https://x"},
        ]
    )
    assert text is not None
    assert json.loads(text) == [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}},
        {"type": "web_search", "function": {"name": "web_search"}},
        {"type": "mcp", "server_label": "docs", "server_url": "https://x", "function": {"name": "docs"}},
    ]


def test_a_chain_of_previous_responses_is_one_trajectory(tmp_path: Path) -> None:
    """Instructions are not handed on: each call has its own in front."""
    calls = [
        {
            "request": {"input": text, "instructions": "brief", **previous},
            "response": response(number, [said(f"a{number}")]),
        }
        for number, (text, previous) in enumerate(
            [("q0", {}), ("q1", {"previous_response_id": "resp_0"}), ("q2", {"previous_response_id": "resp_1"})]
        )
    ]
    contents = read(tmp_path, *calls[::-1])
    (trajectory,) = contents.trajectories
    assert [message.text for message in trajectory.messages] == ["brief", "q0", "a0", "q1", "a1", "q2", "a2"]
    assert [message.id for message in trajectory.messages if message.role == "assistant"] == [
        "resp_0",
        "resp_1",
        "resp_2",
    ]
    assert contents.count("used") == 3


def test_history_that_is_not_logged_is_told(tmp_path: Path) -> None:
    call = {"request": {"input": "q", "previous_response_id": "resp_9"}, "response": response(1, [said("a")])}
    (trajectory,) = read(tmp_path, call).trajectories
    assert [message.text for message in trajectory.messages] == ["q", "a"]
    assert trajectory.messages[1].metadata["history_not_logged"] == "resp_9"


def test_references_to_items_and_conversations_are_resolved(tmp_path: Path) -> None:
    first = {"request": {"input": "q0", "conversation": "conv"}, "response": response(0, [said("a0", id="msg_0")])}
    second = {"request": {"input": "q1", "conversation": {"id": "conv"}}, "response": response(1, [said("a1")])}
    third = {
        "request": {
            "input": [
                {"role": "user", "content": "q0"},
                {"type": "item_reference", "id": "msg_0"},
                {"role": "user", "content": "q2"},
            ],
            "conversation": None,
            "user": "u",
        },
        "response": response(2, [said("a2")]),
    }
    other = {"request": {"input": "q0", "user": "u"}, "response": response(3, [said("a0", id="msg_0")])}
    contents = read(tmp_path, first, second, other, third)
    texts = sorted([message.text for message in trajectory.messages] for trajectory in contents.trajectories)
    assert texts == [["q0", "a0", "q1", "a1"], ["q0", "a0", "q2", "a2"]]
    assert {trajectory.session_id for trajectory in contents.trajectories} == {"conv", None}


def test_what_a_response_says_of_its_end_is_kept(tmp_path: Path) -> None:
    cut = response(
        1,
        [said("half")],
        status="incomplete",
        incomplete_details={"reason": "max_output_tokens"},
        usage={"input_tokens": 5, "output_tokens": 7, "output_tokens_details": {"reasoning_tokens": 2}},
    )
    (trajectory,) = read(tmp_path, {"request": {"input": "q"}, "response": cut}).trajectories
    assert trajectory.truncated
    assert not trajectory.terminated
    assert trajectory.stop_reason == "max_output_tokens"
    assert trajectory.messages[1].usage == Usage(5, 7)
    assert trajectory.messages[1].metadata["usage"] == {"output_tokens_details": {"reasoning_tokens": 2}}
    failed = response(1, [], status="failed", error={"code": "server_error", "message": "boom"})
    contents = read(tmp_path, {"request": {"input": "q"}, "response": failed})
    assert contents.trajectories == []
    assert [(fate.fate, fate.reason) for fate in contents.fates] == [("set_apart", "failed call: server_error: boom")]


def test_a_stream_ends_with_the_response_or_gives_the_items_it_finished() -> None:
    created = {"type": "response.created", "response": response(1, [], status="in_progress")}
    done = {"type": "response.output_item.done", "output_index": 0, "item": said("a")}
    completed = {"type": "response.completed", "response": response(1, [said("a")], status="completed")}
    assert join_response_events([created, done, completed])["status"] == "completed"
    cut = join_response_events([created, done])
    assert (cut["output"], cut["incomplete"], cut["status"]) == ([said("a")], True, "in_progress")
    empty = {**completed, "response": response(1, [], status="completed")}
    assert join_response_events([created, done, empty])["output"] == [said("a")]
    failed = join_response_events([{"type": "error", "code": "rate", "message": "slow"}])
    assert failed["error"] == {"code": "rate", "message": "slow"}
