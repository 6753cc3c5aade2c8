"""Spans one a record: SDK prints, Phoenix exports, Vercel AI SDK, bare attributes; OpenInference's messages.

The Phoenix inputs have the shape of what an arize-phoenix 20.26 server gave for calls that were instrumented with
openinference-instrumentation-openai 0.1.66: its REST API, its OTLP endpoint and a data frame written as JSON.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from offline_arl.logs.adapter import adapters
from offline_arl.logs.reading import LogContents, read_logs
from offline_arl.logs.records import LogFile, parse, read_records
from offline_arl.logs.telemetry.spans import span_identity, time_text
from offline_arl.trajectories.schema import MessageError, Usage
from offline_arl.trajectories.validate import errors_of

REAL_LOGS = Path(__file__).resolve().parents[5] / "shared/real_logs"
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
OPENINFERENCE = {
    "openinference.span.kind": "LLM",
    "llm.model_name": "tiny-1",
    "llm.input_messages.0.message.role": "user",
    "llm.input_messages.0.message.contents.0.message_content.type": "text",
    "llm.input_messages.0.message.contents.0.message_content.text": "Paris?",
    "llm.input_messages.0.message.contents.1.message_content.type": "image",
    "llm.input_messages.0.message.contents.1.message_content.image.image.url": "https://a/b.png",
    "llm.output_messages.0.message.role": "assistant",
    "llm.output_messages.0.message.tool_calls.0.tool_call.id": "call_a",
    "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "get_weather",
    "llm.output_messages.0.message.tool_calls.0.tool_call.function.arguments": '{"city": "Paris"}',
    "llm.tools.0.tool.json_schema": json.dumps(TOOL),
    "llm.token_count.prompt": 9,
    "llm.token_count.completion": 4,
    "llm.finish_reason": "tool_calls",
    "input.value": json.dumps({"model": "tiny-1", "temperature": 0.5, "messages": [{"role": "user"}]}),
    "input.mime_type": "application/json",
    "session.id": "s1",
    "user.id": "u7",
    "metadata": '{"plan": "pro"}',
}


def phoenix(number: int, attributes: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "id": "U3Bhbjox",
        "name": "ChatCompletion",
        "context": {"trace_id": "a" * 32, "span_id": f"{number:016x}"},
        "span_kind": attributes.get("openinference.span.kind", "UNKNOWN"),
        "parent_id": None,
        "start_time": f"2026-11-29T20:03:{number:02d}+00:00",
        "end_time": f"2026-11-29T20:03:{number:02d}.500000+00:00",
        "status_code": "OK",
        "status_message": "",
        "attributes": attributes,
        "events": [],
        **fields,
    }


def indexed(messages: list[dict[str, Any]], prefix: str) -> dict[str, Any]:
    return {
        f"{prefix}.{index}.message.{key}": value
        for index, message in enumerate(messages)
        for key, value in message.items()
    }


def read(folder: Path, records: list[Any]) -> LogContents:
    path = folder / "spans.json"
    path.write_text(json.dumps(records))
    contents = read_logs(path)
    assert contents.formats == {str(path): "otel_spans"}
    assert len(contents.fates) == len(records)
    assert not [problem for trajectory in contents.trajectories for problem in errors_of(trajectory)]
    return contents


def fates(contents: LogContents) -> list[tuple[str, str]]:
    return [(fate.fate, fate.reason) for fate in contents.fates]


def check_openinference_call(contents: LogContents) -> None:
    (trajectory,) = contents.trajectories
    user, answer = trajectory.messages
    assert user.text == "Paris?"
    assert [getattr(part, "uri", None) for part in user.content or ()] == [None, "https://a/b.png"]
    (call,) = answer.tool_calls
    assert (call.id, call.name, call.arguments_raw) == ("call_a", "get_weather", '{"city": "Paris"}')
    assert trajectory.tools_at(0) == [TOOL]
    assert (trajectory.session_id, trajectory.user_id, trajectory.model) == ("s1", "u7", "tiny-1")
    assert (answer.usage, trajectory.stop_reason) == (Usage(9, 4), "tool_calls")
    assert answer.metadata["metadata"] == '{"plan": "pro"}'
    assert answer.metadata["input.value"] == {"model": "tiny-1", "temperature": 0.5}


def test_a_phoenix_span(tmp_path: Path) -> None:
    contents = read(tmp_path, [phoenix(1, OPENINFERENCE)])
    assert fates(contents) == [("used", "")]
    check_openinference_call(contents)
    assert contents.trajectories[0].messages[1].id == f"{1:016x}"


def test_a_page_of_phoenix_otlp_endpoint(tmp_path: Path) -> None:
    """Its values list every tag, and its field names are those of protobuf."""

    def tagged(value: Any) -> dict[str, Any]:
        tags = dict.fromkeys(["array_value", "bool_value", "double_value", "int_value", "kvlist_value", "string_value"])
        return tags | {"int_value" if isinstance(value, int) else "string_value": value}

    span = {
        "name": "ChatCompletion",
        "trace_id": "a" * 32,
        "span_id": "b" * 16,
        "parent_span_id": None,
        "start_time_unix_nano": 1_795_982_630_033_266_944,
        "attributes": [{"key": key, "value": tagged(value)} for key, value in OPENINFERENCE.items()],
        "events": None,
        "status": {"code": 0, "message": None},
    }
    contents = read(tmp_path, [{"data": [span], "next_cursor": None}])
    check_openinference_call(contents)
    assert contents.trajectories[0].started_at == "2026-11-29T20:03:50.033267Z"


def test_a_row_of_a_data_frame(tmp_path: Path) -> None:
    """Lists of objects with dotted keys; a column for what any row has, and counts as floats."""
    row = {
        "name": "ChatCompletion",
        "span_kind": "LLM",
        "parent_id": None,
        "start_time": 1_795_982_630_380,
        "context.trace_id": "a" * 32,
        "context.span_id": "b" * 16,
        "attributes.llm.input_messages": [
            {
                "message.role": "user",
                "message.contents": [
                    {"message_content.type": "text", "message_content.text": "Paris?"},
                    {"message_content.type": "image", "message_content.image.image.url": "https://a/b.png"},
                ],
            }
        ],
        "attributes.llm.output_messages": [
            {
                "message.role": "assistant",
                "message.tool_calls": [
                    {
                        "tool_call.id": "call_a",
                        "tool_call.function.name": "get_weather",
                        "tool_call.function.arguments": '{"city": "Paris"}',
                    }
                ],
            }
        ],
        "attributes.llm.tools": [{"tool.json_schema": json.dumps(TOOL)}],
        "attributes.llm.token_count.prompt": 9.0,
        "attributes.llm.token_count.completion": 4.0,
        "attributes.exception.message": None,
    }
    flat = ("llm.model_name", "llm.finish_reason", "input.value", "session.id", "user.id", "metadata")
    contents = read(tmp_path, [row | {f"attributes.{key}": OPENINFERENCE[key] for key in flat}])
    check_openinference_call(contents)
    assert "exception.message" not in contents.trajectories[0].messages[1].metadata


def test_indexes_are_numbers(tmp_path: Path) -> None:
    """As text, message 10 would come before message 9."""
    roles = ["user", "assistant"] * 6
    messages = [{"role": role, "content": f"message {index}"} for index, role in enumerate(roles[:11])]
    answer = [{"role": "assistant", "content": "message 11"}]
    attributes = indexed(messages, "llm.input_messages") | indexed(answer, "llm.output_messages")
    shuffled = dict(sorted(attributes.items()))
    (trajectory,) = read(tmp_path, [phoenix(1, {"openinference.span.kind": "LLM", **shuffled})]).trajectories
    assert [message.text for message in trajectory.messages] == [f"message {index}" for index in range(12)]


def test_dropped_attributes_are_replaced_by_the_raw_request_or_refused(tmp_path: Path) -> None:
    """The SDK drops attributes beyond a limit without a word: the oldest in Python, the newest elsewhere."""
    question, answer = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}
    torn = indexed([{}, question], "llm.input_messages") | indexed([answer], "llm.output_messages")
    refused = fates(read(tmp_path, [phoenix(1, {"openinference.span.kind": "LLM", **torn})]))
    assert refused == [
        (
            "refused",
            f"span {1:016x}: llm.input_messages: entry 0 of 2 is missing, "
            "and input.value does not hold the whole request",
        )
    ]
    raw = {
        "input.value": json.dumps({"messages": [{"role": "system", "content": "Be kind."}, question]}),
        "input.mime_type": "application/json",
        "output.value": json.dumps({"choices": [{"message": answer, "finish_reason": "stop"}]}),
        "output.mime_type": "application/json",
    }
    (trajectory,) = read(tmp_path, [phoenix(1, {"openinference.span.kind": "LLM", **torn, **raw})]).trajectories
    assert [message.text for message in trajectory.messages] == ["Be kind.", "Hi", "Hello"]
    assert trajectory.messages[-1].metadata["read_from"] == "input.value"

    cut = {**raw, "input.value": raw["input.value"][:50]}
    ((fate, _),) = fates(read(tmp_path, [phoenix(1, {"openinference.span.kind": "LLM", **torn, **cut})]))
    assert fate == "refused"


def test_a_count_of_dropped_attributes_makes_whole_looking_messages_doubtful(tmp_path: Path) -> None:
    span = phoenix(1, OPENINFERENCE | {"input.value": "{"}, dropped_attributes_count=3)
    ((fate, reason),) = fates(read(tmp_path, [span]))
    assert (fate, reason.partition(", and")[0]) == (
        "refused",
        f"span {1:016x}: 3 attributes were dropped by the SDK's limit",
    )


def test_spans_newest_first_with_a_failed_call_as_phoenix_lists_them(tmp_path: Path) -> None:
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Bye"},
    ]
    end = [{"role": "assistant", "content": "Bye!"}]
    kind = {"openinference.span.kind": "LLM"}
    first = kind | indexed(turns[:1], "llm.input_messages") | indexed(turns[1:2], "llm.output_messages")
    second = kind | indexed(turns, "llm.input_messages") | indexed(end, "llm.output_messages")
    failed = phoenix(
        4,
        kind | indexed([{"role": "user", "content": "Boom"}], "llm.input_messages"),
        status_code="ERROR",
        status_message="BadRequestError: overloaded",
    )
    records = [failed, phoenix(3, second), phoenix(2, first), phoenix(1, {}, name="session", span_kind="AGENT")]
    contents = read(tmp_path, records)
    assert [fate for fate, _ in fates(contents)] == ["set_apart", "used", "used", "set_apart"]
    assert fates(contents)[0][1].startswith("failed call: error: BadRequestError: overloaded")
    (trajectory,) = contents.trajectories
    assert [message.text for message in trajectory.messages] == ["Hi", "Hello", "Bye", "Bye!"]


def test_what_the_python_sdk_prints(tmp_path: Path) -> None:
    """`span.to_json()`: ids with 0x, the status in an object, the kind as text of an enum."""
    record = {
        "name": "ChatCompletion",
        "context": {"trace_id": "0x" + "a" * 32, "span_id": "0x" + "b" * 16, "trace_state": "[]"},
        "kind": "SpanKind.INTERNAL",
        "parent_id": "0x" + "c" * 16,
        "start_time": "2026-11-29T19:43:23.548121Z",
        "end_time": "2026-11-29T19:43:23.557674Z",
        "status": {"status_code": "ERROR", "description": "boom"},
        "attributes": OPENINFERENCE,
        "events": [],
        "links": [],
        "resource": {"attributes": {"service.name": "weather"}, "schema_url": ""},
    }
    contents = read(tmp_path, [record])
    assert fates(contents) == [("set_apart", "failed call: error: boom")]
    check_openinference_call(read(tmp_path, [record | {"status": {"status_code": "OK"}}]))


def test_tool_and_final_calls_of_the_vercel_ai_sdk(tmp_path: Path) -> None:
    """A step with a tool call and no later step: its `ai.toolCall` span holds the result."""
    prompt = [
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        {
            "role": "assistant",
            "content": [{"type": "tool-call", "toolCallId": "c1", "toolName": "weather", "input": {"city": "Rome"}}],
        },
        {
            "role": "tool",
            "content": [
                {
                    "type": "tool-result",
                    "toolCallId": "c1",
                    "toolName": "weather",
                    "output": {"type": "error-text", "value": "no such city"},
                }
            ],
        },
    ]
    step = {
        "ai.operationId": "ai.generateText.doGenerate",
        "ai.telemetry.functionId": "helper",
        "ai.telemetry.metadata.sessionId": "s1",
        "ai.prompt.messages": json.dumps(prompt),
        "ai.prompt.tools": [json.dumps({"type": "function", "name": "weather", "inputSchema": {"type": "object"}})],
        "ai.response.text": "",
        "ai.response.toolCalls": json.dumps([{"toolCallId": "c2", "toolName": "weather", "args": '{"city":"Oslo"}'}]),
        "ai.response.finishReason": "tool-calls",
        "ai.usage.inputTokens": 5,
    }
    run = {"ai.operationId": "ai.toolCall", "ai.toolCall.id": "c2", "ai.toolCall.result": '{"sky":"grey"}'}
    outer = {**step, "ai.operationId": "ai.generateText", "ai.prompt": '{"prompt":"Weather?"}'}

    def span(number: int, attributes: dict[str, Any], parent: int | None) -> dict[str, Any]:
        ids = {"traceId": "a" * 32, "spanId": f"{number:016x}"}
        at = [1_770_131_992 + number, 242_000_000]
        parents = {} if parent is None else {"parentSpanContext": {"spanId": f"{parent:016x}"}}
        return {"name": "x", "spanContext": ids, **parents, "startTime": at, "endTime": at, "attributes": attributes}

    run["ai.telemetry.metadata.sessionId"] = "s1"
    contents = read(tmp_path, [span(2, step, 1), span(3, run, 1), span(1, outer, None)])
    assert fates(contents) == [("used", ""), ("used", ""), ("duplicate", "repeats the calls of its steps")]
    (trajectory,) = contents.trajectories
    assert [message.role for message in trajectory.messages] == ["user", "assistant", "tool", "assistant", "tool"]
    assert trajectory.messages[1].tool_calls[0].arguments == {"city": "Rome"}
    assert (trajectory.messages[2].text, trajectory.messages[2].error) == ("no such city", MessageError("tool_error"))
    assert trajectory.messages[3].tool_calls[0].arguments == {"city": "Oslo"}
    assert (trajectory.messages[4].tool_call_id, trajectory.messages[4].text) == ("c2", '{"sky":"grey"}')
    assert (trajectory.agent, trajectory.session_id) == ("helper", "s1")
    assert [tool["function"]["name"] for tool in trajectory.tools_at(0) or ()] == ["weather"]


def test_bare_attributes_of_equal_calls_stay_two(tmp_path: Path) -> None:
    """Without ids nothing says that two equal records are one call; they differ in the answer or are retries."""
    attributes = indexed([{"role": "user", "content": "Hi"}], "llm.input_messages")
    answers = [attributes | indexed([{"content": text}], "llm.output_messages") for text in ("Hello", "Hey")]
    contents = read(tmp_path, answers)
    assert fates(contents) == [("used", ""), ("used", "")]
    assert sorted(trajectory.messages[-1].text for trajectory in contents.trajectories) == ["Hello", "Hey"]


def test_ids_and_times() -> None:
    assert span_identity("not an id") == "not an id"
    assert span_identity("QUJDREVGR0hJSg") == "QUJDREVGR0hJSg"  # base64 of another length is no span id
    assert span_identity("") is span_identity("0x0000000000000000") is span_identity(7) is None
    assert time_text([1]) is time_text([1, "x"]) is time_text([-1, 0]) is time_text({}) is None


@pytest.mark.parametrize(
    "attributes",
    [
        {"gen_ai.input.messages": 7},
        {"gen_ai.input.messages": "[7]"},
        {"gen_ai.input.messages": '[{"role": "judge", "parts": []}]', "gen_ai.output.messages": "[]"},
        {"llm.input_messages.0.message.role": 7, "llm.input_messages.0.message.content": {"a": []}},
        {"ai.operationId": "ai.generateText.doGenerate", "ai.prompt.messages": "{}", "ai.response.toolCalls": "["},
        {"gen_ai.prompt.99999999999999999999.content": "x"},
        {"gen_ai.prompt.content": "x", "gen_ai.prompt.0": "y"},
        {"gen_ai.prompt": "{" * 5000},
        {"gen_ai.prompt": "[" * 5000, "gen_ai.completion": "x"},
    ],
)
def test_strange_attributes_give_a_reason(tmp_path: Path, attributes: dict[str, Any]) -> None:
    contents = read(tmp_path, [phoenix(1, {"openinference.span.kind": "LLM", **attributes})])
    ((fate, reason),) = fates(contents)
    assert fate in ("refused", "set_apart")
    assert reason
    assert "failed: " not in reason  # no exception of the adapter itself


def real(name: str) -> LogContents:
    path = REAL_LOGS / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return read_logs(path)


REAL_FILES = {
    "openinference/openinference_client_span_tool_calls.json": ["user", "assistant", "tool", "assistant"],
    "otel-genai/otel_genai_client_span_tool_calls.json": ["user", "assistant", "tool", "assistant"],
    "otel-genai/otel_genai_deprecated_client_span_tool_calls.json": ["user", "assistant", "tool", "assistant"],
}


@pytest.mark.parametrize(("name", "roles"), REAL_FILES.items())
def test_real_client_spans(name: str, roles: list[str]) -> None:
    contents = real(name)
    assert fates(contents) == [("used", "")]
    (trajectory,) = contents.trajectories
    assert [message.role for message in trajectory.messages] == roles
    question, asked, result, answer = trajectory.messages
    assert question.text == "Weather in Paris?"
    assert asked.text == "Absolutely! Let me check the weather for you."
    (call,) = asked.tool_calls
    assert (call.id, call.name, call.arguments) == ("1234", "get_weather", {"location": "Paris"})
    assert (result.tool_call_id, result.text) == ("1234", "rainy, 57°F")
    assert answer.text == "The weather in Paris is currently rainy with a temperature of 57°F."
    assert (answer.usage, trajectory.model, trajectory.stop_reason) == (Usage(97, 52), "gpt-4-0613", "stop")
    # The first answer is history; only the last one was sampled by this call.
    assert [message.producer.kind for message in trajectory.messages if message.role == "assistant"] == [
        "unknown",
        "model",
    ]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("otel-genai/gen-ai-input-messages.json", "is the JSON Schema 'InputMessages', not a log"),
        (
            "otel-genai/otel_genai_tool_execution_span.json",
            "a tool run without a trace id: nothing says which model call asked for it",
        ),
    ],
)
def test_real_files_that_hold_no_call(name: str, reason: str) -> None:
    contents = real(name)
    assert fates(contents) == [("set_apart", reason)]
    assert not contents.trajectories


def test_the_real_vercel_spans() -> None:
    """Ten spans: four steps, the four outer spans that repeat them (with other trace ids), two of an embedding."""
    contents = real("vercel-ai-sdk-otel/all-spans.json")
    assert Counter(fate for fate, _ in fates(contents)) == {"used": 4, "set_apart": 6}
    assert [fate for fate, _ in fates(contents)] == ["used", "set_apart"] * 4 + ["set_apart"] * 2
    assert [len(trajectory.messages) for trajectory in contents.trajectories] == [2, 5, 2, 2]
    haiku, sums, recipe, poem = contents.trajectories
    assert [message.text for message in sums.messages] == [
        "You are a helpful assistant.",
        "What is 2 + 2?",
        "2 + 2 equals 4.",
        "And what is 3 + 3?",
        "3 + 3 equals 6.",
    ]
    assert haiku.messages[1].text.startswith("Lines of code align,")
    assert recipe.messages[1].text.startswith('{"name":"Scrambled Eggs"')
    assert poem.messages[1].usage == Usage(15, 112)
    assert haiku.started_at == "2026-02-03T15:19:52.242Z"
    assert {trajectory.model for trajectory in contents.trajectories} == {"gpt-4o-mini-2024-07-18"}


def test_only_files_of_spans_are_taken_for_spans() -> None:
    """Run over all real logs: what another format has is not claimed."""
    if not REAL_LOGS.exists():
        pytest.skip(f"{REAL_LOGS} is not here")
    ours = [adapters()[name] for name in ("otlp", "otel_spans", "mlflow", "phoenix_annotations")]
    claimed = set()
    for path in sorted(REAL_LOGS.rglob("*.json*")):
        for record in list(read_records(LogFile(path, str(path), path.name)))[:20]:
            try:
                value = parse(record.raw)
            except ValueError:
                continue
            if any(adapter.recognizes(value) for adapter in ours):
                claimed.add(path.parent.name)
    assert claimed == {"openinference", "otel-genai", "vercel-ai-sdk-otel"}
