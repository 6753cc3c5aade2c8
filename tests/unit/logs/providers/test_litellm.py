"""Logs of LiteLLM, shaped like those that version 1.108 writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from offline_arl.logs.reading import LogContents, read_logs
from offline_arl.trajectories.schema import Usage

Fields = dict[str, Any]
MESSAGES = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
NO_ERROR = {"error_code": "", "error_class": "", "error_message": "", "traceback": ""}
TRACE = "5183f62c-b3fc-4b32-9743-f5b0974b0666"


def completion(text: str = "a", **more: Any) -> Fields:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "gpt-4o-mini",
        "choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text, "tool_calls": None}}
        ],
        "usage": {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30},
        **more,
    }


def payload(**more: Any) -> Fields:
    return {
        "id": "chatcmpl-1",
        "trace_id": TRACE,
        "session_id": "",
        "call_type": "acompletion",
        "cache_hit": None,
        "status": "success",
        "startTime": 1700000000.25,
        "endTime": 1700000001.5,
        "model": "gpt-4o-mini",
        "metadata": {"user_api_key_alias": "team", "usage_object": {}, "requester_metadata": None},
        "response_cost": 0.5,
        "request_tags": ["blue"],
        "end_user": None,
        "messages": MESSAGES,
        "response": completion(),
        "model_parameters": {"temperature": 0.5, "tools": TOOLS, "user": "u"},
        "model_map_information": {"model_map_key": "gpt-4o-mini"},
        "hidden_params": {},
        "error_str": None,
        "error_information": NO_ERROR,
        **more,
    }


def spend(**more: Any) -> Fields:
    body = {"model": "gpt-4o-mini", "messages": MESSAGES, "tools": TOOLS}
    return {
        "request_id": "chatcmpl-1",
        "call_type": "acompletion",
        "spend": 0.5,
        "cache_hit": "None",
        "startTime": "2026-11-29 19:57:04.199848+00:00",
        "endTime": "2026-11-29 19:57:04.215094+00:00",
        "model": "gpt-4o-mini",
        "user": "",
        "end_user": "e",
        "metadata": json.dumps({"user_api_key_alias": "team"}),
        "messages": "{}",
        "response": json.dumps(completion()),
        "proxy_server_request": json.dumps(body),
        "session_id": TRACE,
        "status": "success",
        **more,
    }


def read(tmp_path: Path, *records: Fields) -> LogContents:
    path = tmp_path / "litellm.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    contents = read_logs(path)
    assert set(contents.formats.values()) == {"litellm"}
    return contents


def fates(contents: LogContents) -> list[tuple[str, str]]:
    return [(fate.fate, fate.reason) for fate in contents.fates]


def test_a_payload_is_a_call_with_its_tools_cost_and_tags(tmp_path: Path) -> None:
    (trajectory,) = read(tmp_path, payload()).trajectories
    assert [(message.role, message.text) for message in trajectory.messages] == [
        ("system", "s"),
        ("user", "q"),
        ("assistant", "a"),
    ]
    answer = trajectory.messages[2]
    assert (answer.id, answer.usage, answer.producer.kind) == ("chatcmpl-1", Usage(10, 20, 0.5), "model")
    assert trajectory.tools_at(0) == TOOLS
    assert trajectory.identifiers == {"trace": TRACE}
    assert (trajectory.session_id, trajectory.user_id) == (None, "u")
    assert (trajectory.started_at, trajectory.ended_at) == ("2023-11-14T22:13:20.250Z", "2023-11-14T22:13:21.500Z")
    assert answer.metadata["request_tags"] == ["blue"]
    assert answer.metadata["metadata"] == {"user_api_key_alias": "team"}
    assert answer.metadata["request"] == {"temperature": 0.5, "user": "u"}
    assert "model_map_information" not in answer.metadata


def test_a_trace_that_the_caller_named_is_the_session(tmp_path: Path) -> None:
    """LiteLLM puts the session id of the caller in `trace_id`, and makes one up for each call without one."""
    longer = [*MESSAGES, {"role": "assistant", "content": "a"}, {"role": "user", "content": "more"}]
    second = payload(
        id="chatcmpl-2",
        trace_id="my-session",
        startTime=1700000009.0,
        messages=longer,
        response=completion("b", id="chatcmpl-2"),
    )
    contents = read(tmp_path, payload(trace_id="my-session"), second)
    (trajectory,) = contents.trajectories
    assert [message.text for message in trajectory.messages] == ["s", "q", "a", "more", "b"]
    assert trajectory.session_id == "my-session"
    # Made-up traces differ from call to call and must not tear the conversation apart.
    other = TRACE.replace("5", "6")
    (trajectory,) = read(tmp_path, payload(), {**second, "trace_id": other}).trajectories
    assert [message.text for message in trajectory.messages] == ["s", "q", "a", "more", "b"]
    assert trajectory.session_id is None


def test_failures_and_retries_stay_with_the_call_that_succeeded(tmp_path: Path) -> None:
    error = {"error_code": "429", "error_class": "RateLimitError", "error_message": "slow down", "traceback": "..."}
    failed = payload(
        id="x-1", status="failure", response={}, error_str="slow down", error_information=error, startTime=1.0
    )
    contents = read(tmp_path, failed, {**failed}, payload())
    (trajectory,) = contents.trajectories
    (call,) = trajectory.metadata["failed_calls"]
    assert call["error"] == {"type": "RateLimitError", "text": "slow down"}
    assert sorted(fate for fate, _ in fates(contents)) == ["duplicate", "used", "used"]


def test_an_answer_from_the_cache_is_no_new_sample(tmp_path: Path) -> None:
    """Beside the sampled answer it is a duplicate; alone it is a copy, which is not trained."""
    hit = payload(id="chatcmpl-1_cache_hit17", cache_hit=True, startTime=1700000005.0)
    contents = read(tmp_path, payload(), hit)
    assert len(contents.trajectories) == 1
    assert [fate for fate, _ in fates(contents)] == ["used", "duplicate"]
    (trajectory,) = read(tmp_path, hit).trajectories
    assert trajectory.messages[2].producer.kind == "copy"
    assert trajectory.step_indices() == []


def test_what_was_not_stored_is_set_apart_with_the_reason(tmp_path: Path) -> None:
    hidden = [{"role": "user", "content": "redacted-by-litellm"}]
    contents = read(
        tmp_path,
        payload(messages=hidden, response=completion("redacted-by-litellm")),
        spend(proxy_server_request="{}", response="{}"),
        payload(
            call_type="aembedding", messages=[{"role": "user", "content": "x"}], response={"object": "list", "data": []}
        ),
    )
    assert fates(contents) == [
        ("set_apart", "its messages were redacted by LiteLLM"),
        ("set_apart", "its messages were not stored (LiteLLM's store_prompts_in_spend_logs is off)"),
        ("set_apart", "is no call of a chat model: aembedding"),
    ]


def test_a_spend_log_has_its_prompt_in_the_request_of_the_proxy(tmp_path: Path) -> None:
    (trajectory,) = read(tmp_path, spend()).trajectories
    assert [message.text for message in trajectory.messages] == ["s", "q", "a"]
    assert trajectory.tools_at(0) == TOOLS
    assert (trajectory.user_id, trajectory.session_id) == ("e", None)
    assert trajectory.started_at == "2026-11-29T19:57:04.199848+00:00"
    assert trajectory.messages[2].usage == Usage(10, 20, 0.5)
    (older,) = read(tmp_path, spend(messages=json.dumps(MESSAGES), proxy_server_request="{}")).trajectories
    assert [message.text for message in older.messages] == ["s", "q", "a"]


def test_texts_that_a_spend_log_cut_are_marked_and_not_trained(tmp_path: Path) -> None:
    cut = "yyy... (litellm_truncated skipped 953 chars. Truncation is a DB storage safeguard.) ...yyy"
    (trajectory,) = read(tmp_path, spend(response=json.dumps(completion(cut)))).trajectories
    user, answer = trajectory.messages[1:]
    assert (answer.trainable, answer.metadata["cut_by_logger"]) == (False, True)
    assert (user.trainable, user.metadata) == (None, {})


def test_responses_and_anthropic_calls(tmp_path: Path) -> None:
    """The answer of an Anthropic call is logged in the form of chat completions, the prompt in its own."""
    response = {
        "object": "response",
        "id": "resp_1",
        "model": "m",
        "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
    }
    body = {"model": "m", "input": "hi", "instructions": "brief"}
    blocks = [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "r"}]}]
    contents = read(
        tmp_path,
        spend(call_type="aresponses", response=json.dumps(response), proxy_server_request=json.dumps(body)),
        payload(id="chatcmpl-2", call_type="anthropic_messages", messages=blocks, model_parameters={"system": "s"}),
    )
    responses, anthropic = contents.trajectories
    assert [(message.role, message.text) for message in responses.messages] == [
        ("system", "brief"),
        ("user", "hi"),
        ("assistant", "a"),
    ]
    assert responses.messages[2].usage == Usage(3, 4, 0.5)
    assert [message.role for message in anthropic.messages] == ["system", "tool", "assistant"]
