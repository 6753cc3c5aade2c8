"""Logs of requests and responses in their spellings, batch files, and streams of chat completions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offline_arl.logs.providers.openai_stream import join_chunks
from offline_arl.logs.reading import LogContents, read_logs
from offline_arl.trajectories.schema import Branch, Producer, ReasoningPart, Score, TokenRecord, Usage

Fields = dict[str, Any]
ASK = {"role": "user", "content": "q"}
SYSTEM = {"role": "system", "content": "s"}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def completion(*choices: Fields, **more: Any) -> Fields:
    indexed = [{"index": index, "finish_reason": "stop", **choice} for index, choice in enumerate(choices)]
    return {
        "object": "chat.completion",
        "id": "chatcmpl-1",
        "model": "m-1",
        "created": 1700000000,
        "choices": indexed,
        **more,
    }


def answer(text: Any = "a", **more: Any) -> Fields:
    return {"message": {"role": "assistant", "content": text, **more}}


def request(*messages: Fields, **more: Any) -> Fields:
    return {"model": "m", "messages": list(messages or (SYSTEM, ASK)), **more}


def write(path: Path, *records: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def read(tmp_path: Path, *records: Any) -> LogContents:
    return read_logs(write(tmp_path / "calls.jsonl", *records))


@pytest.mark.parametrize(
    "record",
    [
        {"request": request(), "response": completion(answer())},
        {"request": json.dumps(request()), "response": json.dumps(completion(answer()))},
        {
            "reqPayload": request(),
            "respPayload": completion(answer()),
            "statusCode": 200,
            "errorMessage": None,
            "tags": {},
        },
        {"kwargs": request(), "response": completion(answer())},
        {
            "request": {"method": "POST", "url": "https://host/v1/chat/completions", "headers": {}, "body": request()},
            "response": {"status_code": 200, "headers": {}, "body": json.dumps(completion(answer()))},
        },
        {**request(), "response": completion(answer())},
        {"request": request(), "response": {"role": "assistant", "content": "a"}},
        {"request": request(), "response": "a"},
    ],
    ids=["pair", "text", "openpipe", "kwargs", "http", "flat", "message", "plain"],
)
def test_every_spelling_gives_the_same_conversation(tmp_path: Path, record: Fields) -> None:
    contents = read(tmp_path, record)
    (trajectory,) = contents.trajectories
    assert set(contents.formats.values()) == {"request_response"}
    assert [(message.role, message.text) for message in trajectory.messages] == [
        ("system", "s"),
        ("user", "q"),
        ("assistant", "a"),
    ]
    assert trajectory.messages[2].producer.kind == "model"
    assert contents.count("used") == 1


def test_everything_around_the_call_is_kept(tmp_path: Path) -> None:
    record = {
        "request": request(tools=TOOLS, temperature=0.5, metadata={"session_id": "s-1"}),
        "response": completion(
            answer(
                None,
                tool_calls=[{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
                refusal=None,
            ),
            usage={"prompt_tokens": 3, "completion_tokens": 4, "completion_tokens_details": {"reasoning_tokens": 1}},
            service_tier="flex",
        ),
        "started_at": 1700000001.5,
        "latency_ms": 12,
        "user_id": "u",
        "rating": 1,
        "scores": {"toxicity": 0.25},
    }
    (trajectory,) = read(tmp_path, record).trajectories
    message = trajectory.messages[2]
    assert (message.id, message.usage, message.content) == ("chatcmpl-1", Usage(3, 4), None)
    assert [(call.id, call.name, call.arguments) for call in message.tool_calls] == [("c", "f", {})]
    assert trajectory.tools_at(0) == TOOLS
    assert (trajectory.session_id, trajectory.user_id, trajectory.model) == ("s-1", "u", "m-1")
    assert trajectory.started_at == "2023-11-14T22:13:21.500Z"
    assert message.metadata["request"] == {"temperature": 0.5, "metadata": {"session_id": "s-1"}}
    assert message.metadata["response"] == {"service_tier": "flex"}
    assert message.metadata["latency_ms"] == 12
    assert trajectory.scores == [
        Score("rating", 1.0, direction="higher_is_better", message_index=2),
        Score("toxicity", 0.25, direction="lower_is_better", message_index=2),
    ]


def test_choices_of_one_request_are_branches_in_one_group(tmp_path: Path) -> None:
    contents = read(tmp_path, {"request": request(n=2), "response": completion(answer("a"), answer("b"))})
    first, second = contents.trajectories
    assert [trajectory.messages[2].text for trajectory in (first, second)] == ["a", "b"]
    assert second.branch == Branch(first.trajectory_id, 2)
    assert first.group_id == second.group_id == first.trajectory_id


def test_calls_that_extend_one_another_are_one_trajectory(tmp_path: Path) -> None:
    first = {"request": request(), "response": completion(answer("a"))}
    longer = request(SYSTEM, ASK, {"role": "assistant", "content": "a"}, {"role": "user", "content": "more"})
    second = {"request": longer, "response": completion(answer("b"), id="chatcmpl-2", created=1700000005)}
    (trajectory,) = read(tmp_path, second, first).trajectories
    assert [message.text for message in trajectory.messages] == ["s", "q", "a", "more", "b"]
    assert [message.id for message in trajectory.messages] == [None, None, "chatcmpl-1", None, "chatcmpl-2"]


def test_legacy_functions_are_paired_by_order(tmp_path: Path) -> None:
    called = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"x": 1}'}}
    records = [
        {"request": request(ASK, functions=[TOOLS[0]["function"]]), "response": completion({"message": called})},
        {
            "request": request(ASK, called, {"role": "function", "name": "f", "content": "1"}),
            "response": completion(answer("done"), created=1700000005),
        },
    ]
    (trajectory,) = read(tmp_path, *records).trajectories
    call, result = trajectory.messages[1].tool_calls[0], trajectory.messages[2]
    assert (call.name, call.arguments, call.id) == ("f", {"x": 1}, "call_1_0")
    assert (result.role, result.tool_call_id, result.text) == ("tool", "call_1_0", "1")
    assert trajectory.messages[3].text == "done"
    assert trajectory.tools_at(0) == TOOLS


def test_token_ids_of_vllm_are_kept_with_their_logprobs(tmp_path: Path) -> None:
    """As vLLM 0.32 answers `return_token_ids` and `return_tokens_as_token_ids`."""
    content = [
        {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []},
        {"token": "", "logprob": -0.25, "bytes": []},
    ]
    named = [{**entry, "token": f"token_id:{index}"} for index, entry in enumerate(content, 7)]
    asked = completion(
        {**answer("a"), "logprobs": {"content": content}, "token_ids": [7, 8], "stop_reason": None},
        prompt_token_ids=[1, 2],
    )
    texts = completion({**answer("a"), "logprobs": {"content": named}}, id="chatcmpl-2")
    contents = read(tmp_path, {"request": request(), "response": asked}, {"request": request(ASK), "response": texts})
    tokens = {message.id: message.tokens for item in contents.trajectories for message in item.messages if message.id}
    assert tokens == {
        "chatcmpl-1": TokenRecord([7, 8], "unknown", [-0.5, -0.25], [1, 2]),
        "chatcmpl-2": TokenRecord([7, 8], "unknown", [-0.5, -0.25]),
    }
    assert contents.trajectories[0].messages[2].metadata["logprobs"] == {"content": content}


def test_reasoning_refusals_and_cut_answers(tmp_path: Path) -> None:
    cut = {**answer("half", reasoning_content="think"), "finish_reason": "length"}
    refused = answer(None, refusal="I cannot")
    first, second = read(
        tmp_path,
        {"request": request(), "response": completion(cut)},
        {"request": request(ASK), "response": completion(refused)},
    ).trajectories
    assert first.messages[2].content is not None
    assert first.messages[2].content[0] == ReasoningPart("think")
    assert (first.truncated, first.terminated, first.stop_reason) == (True, False, "length")
    assert second.messages[1].text == "I cannot"
    assert second.messages[1].metadata["refusal"] == "I cannot"


def test_failed_calls_stay_with_the_call_that_was_tried_again(tmp_path: Path) -> None:
    error = {"error": {"message": "slow down", "type": "rate_limit", "code": 429}}
    contents = read(
        tmp_path,
        {"request": request(), "response": error, "status_code": 429, "started_at": 1},
        {"request": request(), "response": completion(answer()), "status_code": 200, "started_at": 2},
        {"reqPayload": request(ASK), "respPayload": None, "statusCode": 502, "errorMessage": "bad gateway"},
        {"request": request({"role": "user", "content": "z"}), "response": "<!doctype html>", "status_code": 503},
    )
    (trajectory,) = contents.trajectories
    (failed,) = trajectory.metadata["failed_calls"]
    assert failed["error"] == {"type": "rate_limit", "text": "slow down"}
    assert [(fate.fate, fate.reason) for fate in contents.fates] == [
        ("used", ""),
        ("used", ""),
        ("set_apart", "failed call: error: bad gateway"),
        ("set_apart", "failed call: http_503: <!doctype html>"),
    ]


def chunk(delta: Fields, index: int = 0, **more: Any) -> Fields:
    choice = {"index": index, "delta": delta, "finish_reason": None, **more}
    return {"object": "chat.completion.chunk", "id": "chatcmpl-1", "model": "m-1", "created": 1, "choices": [choice]}


CHUNKS = [
    {"object": "chat.completion.chunk", "id": "chatcmpl-1", "choices": [], "prompt_filter_results": []},
    chunk({"role": "assistant", "content": ""}),
    chunk({"content": "Hel"}, token_ids=[1]),
    chunk({"content": "lo"}, token_ids=[2], logprobs={"content": [{"token": "lo", "logprob": -1.0}]}),
    chunk({"tool_calls": [{"index": 1, "id": "c1", "type": "function", "function": {"name": "g", "arguments": ""}}]}),
    chunk(
        {"tool_calls": [{"index": 0, "id": "c0", "type": "function", "function": {"name": "f", "arguments": '{"a"'}}]}
    ),
    chunk(
        {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}, {"index": 0, "function": {"arguments": ": 1}"}}]}
    ),
    chunk({}, finish_reason="tool_calls"),
    {
        "object": "chat.completion.chunk",
        "id": "chatcmpl-1",
        "choices": [],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    },
]


def sse(chunks: list[Fields]) -> str:
    return "".join(f"data: {json.dumps(item)}\n\n" for item in chunks) + "data: [DONE]\n\n"


@pytest.mark.parametrize(
    "stream", [CHUNKS, sse(CHUNKS), [json.dumps(item) for item in CHUNKS]], ids=["list", "sse", "texts"]
)
def test_a_stream_is_joined_by_index(tmp_path: Path, stream: Any) -> None:
    (trajectory,) = read(tmp_path, {"request": request(stream=True), "response": stream}).trajectories
    message = trajectory.messages[2]
    assert message.text == "Hello"
    assert [(call.id, call.name, call.arguments) for call in message.tool_calls] == [
        ("c0", "f", {"a": 1}),
        ("c1", "g", {}),
    ]
    assert message.usage == Usage(1, 2)
    assert message.tokens == TokenRecord([1, 2], "unknown")
    assert (trajectory.stop_reason, message.id) == ("tool_calls", "chatcmpl-1")


def test_a_stream_that_was_cut_off_says_so(tmp_path: Path) -> None:
    text = sse(CHUNKS[:3]).replace("data: [DONE]", 'data: {"id": "chatc')
    (trajectory,) = read(tmp_path, {"request": request(), "response": text}).trajectories
    assert trajectory.messages[2].text == "Hel"
    assert trajectory.messages[2].metadata["incomplete"] is True
    assert not trajectory.truncated


def test_pieces_of_calls_without_an_index_go_on_with_the_last_call() -> None:
    response = join_chunks(
        [
            chunk({"tool_calls": [{"id": "c0", "function": {"name": "f", "arguments": "{"}}]}),
            chunk({"tool_calls": [{"id": "c0", "function": {"name": "f", "arguments": "}"}}]}),
            chunk({"tool_calls": [{"id": "c1", "function": {"name": "g", "arguments": "{}"}}]}, finish_reason="stop"),
        ]
    )
    calls = response["choices"][0]["message"]["tool_calls"]
    assert [(call["id"], call["function"]) for call in calls] == [
        ("c0", {"name": "f", "arguments": "{}"}),
        ("c1", {"name": "g", "arguments": "{}"}),
    ]


def test_anthropic_pairs_are_told_apart(tmp_path: Path) -> None:
    record = {
        "request": {"model": "claude", "system": "s", "max_tokens": 9, "messages": [ASK]},
        "response": {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "model": "claude-1",
            "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}],
            "stop_reason": "tool_use",
        },
    }
    (trajectory,) = read(tmp_path, record).trajectories
    assert [message.role for message in trajectory.messages] == ["system", "user", "assistant"]
    assert trajectory.messages[2].producer == Producer("model", "claude-1")
    assert trajectory.messages[2].tool_calls[0].arguments == {"a": 1}
    assert trajectory.stop_reason == "tool_use"


def test_batch_files_are_joined_by_custom_id(tmp_path: Path) -> None:
    line = {"custom_id": "r-1", "method": "POST", "url": "/v1/chat/completions", "body": request()}
    lost = {**line, "custom_id": "r-2"}
    embedding = {**line, "custom_id": "r-3", "url": "/v1/embeddings", "body": {"model": "e", "input": "x"}}
    done = {
        "id": "b-1",
        "custom_id": "r-1",
        "response": {"status_code": 200, "request_id": "x", "body": completion(answer())},
        "error": None,
    }
    alone = {**done, "custom_id": "r-9"}
    requests = write(tmp_path / "batch" / "in.jsonl", line, lost, embedding)
    responses = write(tmp_path / "batch" / "out.jsonl", done, alone, {**done, "custom_id": "r-3"})
    contents = read_logs([requests, responses])
    (trajectory,) = contents.trajectories
    assert [message.text for message in trajectory.messages] == ["s", "q", "a"]
    assert trajectory.messages[2].metadata["custom_id"] == "r-1"
    assert [(fate.fate, fate.reason) for fate in contents.fates] == [
        ("used", ""),
        ("set_apart", "a request of a batch, without its response"),
        ("set_apart", "is no call of a chat model: /v1/embeddings"),
        ("used", ""),
        ("refused", "custom_id 'r-9': the requests of its batch are not among the files"),
        ("set_apart", "is no call of a chat model: /v1/embeddings"),
    ]


def test_an_error_of_a_batch_is_a_failed_call(tmp_path: Path) -> None:
    line = {"custom_id": "r-1", "method": "POST", "url": "/v1/chat/completions", "body": request()}
    failed = {"id": "b-1", "custom_id": "r-1", "response": None, "error": {"code": "batch_expired", "message": "late"}}
    contents = read_logs([write(tmp_path / "in.jsonl", line), write(tmp_path / "out.jsonl", failed)])
    assert contents.trajectories == []
    assert {(fate.fate, fate.reason) for fate in contents.fates} == {("set_apart", "failed call: batch_expired: late")}


@pytest.mark.parametrize(
    ("asked", "answered", "reason"),
    [
        (request({"role": "king"}), completion(answer()), "request.messages[0].role: expected one of"),
        (request(), completion({"message": 1}), "response.choices[0].message: expected an object, got a number"),
        (request(), completion(answer(7)), "response.choices[0].message.content: expected"),
        (request(tools=[1]), completion(answer()), "tools[0]: expected an object, got a number"),
        (request(), [1], "response[0]: expected an object, got a number"),
    ],
)
def test_refusals_name_the_place(tmp_path: Path, asked: Fields, answered: Any, reason: str) -> None:
    good = {"request": request(), "response": completion(answer())}
    contents = read(tmp_path, good, {"request": asked, "response": answered})
    assert [fate.fate for fate in contents.fates] == ["used", "refused"]
    assert contents.fates[1].reason.startswith(reason)
