"""Cassettes of recorded HTTP: how files are cut, what their bodies hold, and the real ones."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from offline_arl.logs.providers.cassettes import MAX_BODY_BYTES, CassetteAdapter
from offline_arl.logs.reading import LogContents, read_logs
from offline_arl.logs.records import LogFile, read_records
from offline_arl.trajectories.schema import Branch, ReasoningPart, TextPart, Trajectory, Usage

REAL_LOGS = Path(__file__).resolve().parents[5] / "shared/real_logs"
REQUEST = {"model": "m", "messages": [{"role": "user", "content": "q"}]}
RESPONSE = {
    "object": "chat.completion",
    "id": "chatcmpl-1",
    "model": "m-1",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}],
}


def interaction(body: Any = None, *, uri: str = "https://host/v1/chat/completions", **headers: str) -> dict[str, Any]:
    return {
        "request": {
            "method": "POST",
            "uri": uri,
            "body": json.dumps(REQUEST),
            "headers": {"Authorization": ["secret"]},
        },
        "response": {
            "status": {"code": 200, "message": "OK"},
            "headers": {
                "Date": ["Thu, 05 Jun 2025 16:11:43 GMT"],
                **{key.replace("_", "-"): [value] for key, value in headers.items()},
            },
            "body": {"string": json.dumps(RESPONSE) if body is None else body},
        },
    }


def cassette(tmp_path: Path, *interactions: Any, name: str = "c.yaml") -> Path:
    path = tmp_path / name
    path.write_text(yaml.safe_dump({"interactions": list(interactions), "version": 1}))
    return path


def problems(path: Path) -> list[str | None]:
    return [record.problem for record in read_records(LogFile(path, str(path), path.name))]


def only(contents: LogContents) -> Trajectory:
    (trajectory,) = contents.trajectories
    return trajectory


@pytest.mark.parametrize("encoding", ["plain", "gzip", "deflate", "raw deflate", "br", "zstd"])
def test_bodies_are_uncompressed(tmp_path: Path, encoding: str) -> None:
    data = json.dumps(RESPONSE).encode()
    if encoding == "br":
        data = pytest.importorskip("brotli").compress(data)
    elif encoding == "zstd":
        data = pytest.importorskip("zstandard").ZstdCompressor().compress(data)
    elif encoding == "gzip":
        data = gzip.compress(data)
    elif encoding == "deflate":
        data = zlib.compress(data)
    elif encoding == "raw deflate":
        compressor = zlib.compressobj(wbits=-15)
        data = compressor.compress(data) + compressor.flush()
    header = {"plain": "gzip", "raw deflate": "deflate"}.get(encoding, encoding)  # a recorder may keep the header
    trajectory = only(read_logs(cassette(tmp_path, interaction(data, Content_Encoding=header))))
    assert [message.text for message in trajectory.messages] == ["q", "a"]
    assert trajectory.started_at == trajectory.ended_at == "2025-06-05T16:11:43Z"
    assert "secret" not in repr(trajectory)


def test_a_body_that_unpacks_without_end_is_refused(tmp_path: Path) -> None:
    bomb = gzip.compress(b" " * (MAX_BODY_BYTES + 1), 1)
    contents = read_logs(cassette(tmp_path, interaction(bomb), interaction()))
    assert [fate.fate for fate in contents.fates] == ["refused", "used"]
    assert contents.fates[0].reason == f"a body unpacks to more than {MAX_BODY_BYTES} bytes"


def test_other_recorders_and_containers(tmp_path: Path) -> None:
    """JSON of vcrpy, gzip, Ruby's VCR and betamax, and recorders that parse bodies."""
    encoded = base64.b64encode(gzip.compress(json.dumps(RESPONSE).encode())).decode()
    ruby = interaction()
    ruby["request"]["body"] = {"encoding": "UTF-8", "string": json.dumps(REQUEST)}
    ruby["response"]["body"] = {"encoding": "UTF-8", "base64_string": encoded}
    ruby["recorded_at"] = "Thu, 05 Jun 2025 16:11:43 GMT"
    parsed = interaction()
    parsed["request"] = {"method": "POST", "uri": parsed["request"]["uri"], "parsed_body": REQUEST}
    parsed["response"] = {"status": {"code": 200}, "headers": {}, "parsed_body": RESPONSE}
    (tmp_path / "a.json").write_text(json.dumps({"version": 1, "interactions": [interaction()]}))
    (tmp_path / "b.json").write_text(json.dumps({"http_interactions": [ruby], "recorded_with": "betamax"}, indent=2))
    (tmp_path / "c.yaml.gz").write_bytes(gzip.compress(yaml.safe_dump({"interactions": [parsed]}).encode()))
    for name in ("a.json", "b.json", "c.yaml.gz"):
        contents = read_logs(tmp_path / name)
        assert set(contents.formats.values()) == {"vcr"}
        assert [message.text for message in only(contents).messages] == ["q", "a"], name


def test_calls_of_no_chat_model_are_set_apart_without_their_query(tmp_path: Path) -> None:
    listing = interaction("{}", uri="https://host/v1/models?key=secret")
    listing["request"] |= {"method": "GET", "body": None}
    embedding = interaction("{}", uri="https://host/v1/embeddings")
    embedding["request"]["body"] = json.dumps({"model": "e", "input": "x"})
    contents = read_logs(cassette(tmp_path, listing, embedding))
    assert [(fate.fate, fate.reason) for fate in contents.fates] == [
        ("set_apart", "is no call of a chat model: GET host/v1/models"),
        ("set_apart", "is no call of a chat model: POST host/v1/embeddings"),
    ]


def test_gemini_calls_are_read_streamed_or_not(tmp_path: Path) -> None:
    asked = {
        "systemInstruction": {"parts": [{"text": "s"}]},
        "contents": [{"role": "user", "parts": [{"text": "q"}]}],
        "tools": [{"functionDeclarations": [{"name": "f"}]}],
    }
    called = {
        "content": {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {"x": 1}}}]},
        "finishReason": "STOP",
    }
    answered = {"candidates": [called], "modelVersion": "gemini-x", "responseId": "r-1"}
    streams = {
        "generateContent": json.dumps(answered),
        "streamGenerateContent?alt=sse": f"data: {json.dumps(answered)}\r\n\r\n",
        "streamGenerateContent": json.dumps([answered]),
    }
    for verb, body in streams.items():
        call = interaction(body, uri=f"https://host/v1beta/models/gemini-x:{verb}")
        call["request"]["body"] = json.dumps(asked)
        trajectory = only(read_logs(cassette(tmp_path, call)))
        assert [message.role for message in trajectory.messages] == ["system", "user", "assistant"], verb
        assert [(found.name, found.arguments) for found in trajectory.messages[2].tool_calls] == [("f", {"x": 1})]
        assert (trajectory.model, trajectory.messages[2].id) == ("gemini-x", "r-1")
        assert [tool["function"]["name"] for tool in trajectory.tools_at(0) or []] == ["f"]


def test_a_failed_call_has_its_status(tmp_path: Path) -> None:
    failed = interaction('{"error": {"message": "no", "type": "auth_error"}}')
    failed["response"]["status"] = {"code": 401, "message": "Unauthorized"}
    page = interaction("<!doctype html>")
    page["response"]["status"] = {"code": 502, "message": "Bad Gateway"}
    contents = read_logs(cassette(tmp_path, failed, page))
    assert [fate.reason for fate in contents.fates] == [
        "failed call: auth_error: no",
        "failed call: http_502: <!doctype html>",
    ]


def test_yaml_is_cut_like_the_full_loader_does(tmp_path: Path) -> None:
    text = (
        "# comment\ninteractions:\n- request: &r\n    method: POST\n    n: 12\n    s: '12'\n    t: true\n    e: ~\n"
        "    b: !!binary |\n      aGVs\n      bG8=\n  again: *r\nversion: 1\n"
    )
    (tmp_path / "c.yaml").write_text(text)
    (record,) = read_records(LogFile(tmp_path / "c.yaml", "c.yaml", "c.yaml"))
    request = {"method": "POST", "n": 12, "s": "12", "t": True, "e": None, "b": {"base64_string": "aGVsbG8="}}
    assert json.loads(record.raw) == {"request": request, "again": request}
    assert record.line == 3


def test_a_damaged_cassette_gives_what_stands_before_the_damage(tmp_path: Path) -> None:
    path = cassette(tmp_path, interaction(), interaction())
    path.write_bytes(path.read_bytes()[:-200])
    contents = read_logs(path)
    assert [fate.fate for fate in contents.fates] == ["used", "refused"]
    assert contents.fates[1].record.raw.startswith(b"- request:")
    assert contents.fates[1].reason.startswith("the cassette cannot be read further: ")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- " + "[" * 100_000, "exceeded maximum nesting depth"),
        ("- " + "[" * 250 + "]" * 250, "it is nested more than 200 deep"),
        ("- &a [*a]", "the alias *a means nothing, or a value that holds itself"),
        ("- ? {a: b}\n  : 1", "a key is not text"),
        ("- !!python/object/apply:os.system [id]\n- *x", "the alias *x means nothing"),
    ],
)
def test_hostile_yaml_is_told(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(f"interactions:\n{text}\n")
    assert problem in (problems(path)[-1] or "")


def test_aliases_may_not_stand_for_far_more_than_the_file_has(tmp_path: Path) -> None:
    lines = [f"  b{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    path = tmp_path / "c.yaml"
    path.write_text("\n".join(["interactions:", f"- b: &a0 [{'x' * 1000}]", *lines]))
    assert problems(path) == [
        "the cassette cannot be read further: its aliases stand for far more text than the file has"
    ]


@pytest.mark.parametrize(
    "value", [None, 1, "x", [], {"request": 1, "response": {}}, {"request": {"uri": 1}, "response": []}]
)
def test_other_records_are_not_claimed(value: Any) -> None:
    assert not CassetteAdapter().recognizes(value)


def real(name: str) -> LogContents:
    path = REAL_LOGS / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return read_logs(path)


# Of each file: trajectories as (texts of the messages as roles, tool calls), and the records that are set apart.
REAL = {
    "vcr-openai-chat/test_chat_history_message_dict.yaml": ([("uaua", 0)] * 3, 6, 0),
    "vcr-openai-chat/test_chat_streaming_partial_consumption.yaml": ([("ua", 0)] * 3, 3, 0),
    "vcr-openai-chat/test_chat_tool_calls.yaml": ([("ata", 1)] * 3, 3, 0),
    "vcr-openai-responses/test_recipe_workflow_agent_handoffs_with_function_tools.yaml": ([("suatata", 2)], 3, 1),
    "vcr-openai-responses/test_responses_streaming_with_content.yaml": ([("ua", 0)] * 2, 2, 0),
    "vcr-openai-responses/test_responses_with_input_history.yaml": ([("uaua", 0)] * 2, 4, 0),
    "vcr-openai-responses/test_tool_call_and_result_attributes.yaml": ([("suata", 1)] * 2, 4, 1),
    "vcr-anthropic/test_anthropic_thinking_streaming_legacy.yaml": ([("ua", 0)], 1, 0),
    "vcr-anthropic/test_anthropic_tools_history_legacy.yaml": ([("uata", 2)], 1, 0),
    "vcr-anthropic/test_anthropic_tools_streaming_legacy.yaml": ([("ua", 2)], 1, 0),
}


@pytest.mark.parametrize("name", REAL)
def test_real_cassettes(name: str) -> None:
    expected, used, set_apart = REAL[name]
    contents = real(name)
    found = [
        (
            "".join(message.role[0] for message in item.messages),
            sum(len(message.tool_calls) for message in item.messages),
        )
        for item in contents.trajectories
    ]
    assert found == expected
    assert (contents.count("used"), contents.count("set_apart"), len(contents.fates)) == (
        used,
        set_apart,
        used + set_apart,
    )


def test_a_real_conversation_that_was_recorded_three_times() -> None:
    first, second, third = real("vcr-openai-chat/test_chat_history_message_dict.yaml").trajectories
    assert [message.text for message in first.messages[1::2]] == ["바다", "나는 바다를 좋아해요."]
    assert [message.text for message in second.messages[1::2]] == ["나무", "나는 공원에서 아름다운 나무를 봤어요."]
    assert [message.text for message in third.messages[1::2]] == ["바다", "나는 바다를 좋아해요."]
    assert [message.usage for message in second.messages[1::2]] == [Usage(20, 2), Usage(43, 13)]
    assert first.branch is None
    assert second.branch == third.branch == Branch(first.trajectory_id, 1)
    assert first.messages[1].id == "chatcmpl-Bf7TrRvxt3O6teTe3G5AT1bLbMpYX"
    assert first.started_at == "2025-06-05T16:11:43Z"


def test_a_real_stream_of_each_provider() -> None:
    joke = real("vcr-openai-chat/test_chat_streaming_partial_consumption.yaml").trajectories[1]
    assert joke.messages[1].text == "1, 2, 3, 4, 5"
    sum_of_two = real("vcr-openai-responses/test_responses_streaming_with_content.yaml").trajectories[0]
    assert (sum_of_two.messages[1].text, sum_of_two.messages[1].usage) == ("2 + 2 equals 4.", Usage(14, 9))
    thinking = only(real("vcr-anthropic/test_anthropic_thinking_streaming_legacy.yaml")).messages[1].content
    assert thinking is not None
    assert isinstance(thinking[0], ReasoningPart)
    assert thinking[0].signature
    assert thinking[1] == TextPart("The letter 'r' appears 3 times in the word \"strawberry\".")
    weather = only(real("vcr-anthropic/test_anthropic_tools_streaming_legacy.yaml")).messages[1]
    assert [call.name for call in weather.tool_calls] == ["get_weather", "get_time"]
    assert weather.tool_calls[1].arguments == {"timezone": "America/Los_Angeles"}


def test_the_uploads_of_traces_in_a_real_cassette_are_set_apart() -> None:
    contents = real("vcr-openai-responses/test_recipe_workflow_agent_handoffs_with_function_tools.yaml")
    assert [(fate.record.position, fate.reason) for fate in contents.fates if fate.fate == "set_apart"] == [
        (1, "is no call of a chat model: POST api.openai.com/v1/traces/ingest")
    ]
    trajectory = only(contents)
    assert [tool["function"]["name"] for tool in trajectory.tools_at(0) or []] == [
        "search_recipes",
        "plan_and_apply_recipe_modifications",
    ]
    assert [message.usage for message in trajectory.messages if message.role == "assistant"] == [
        Usage(188, 17),
        Usage(321, 97),
        Usage(612, 115),
    ]
