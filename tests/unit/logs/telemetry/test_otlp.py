"""OTLP JSON: envelopes, log events that carry the messages, and how spans of a trace or session belong together.

The inputs have the shape of what opentelemetry-exporter-otlp-json-file 0.66b1 wrote for an agent that was
instrumented with opentelemetry-instrumentation-openai-v2 (2.4b0), -genai-openai (1.3b0) and -openai (0.40 and 0.62).
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from offline_arl.logs.reading import LogContents, read_logs
from offline_arl.trajectories.schema import MessageError, Producer, Usage
from offline_arl.trajectories.validate import errors_of

TRACE = "0af7651916cd43dd8448eb211c80319c"
WEATHER = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
SYSTEM = {"role": "system", "parts": [{"type": "text", "content": "You know the weather."}]}
QUESTION = {"role": "user", "parts": [{"type": "text", "content": "Paris and Rome?"}]}
CALLS = {
    "role": "assistant",
    "parts": [
        {"type": "tool_call", "id": "call_a", "name": "get_weather", "arguments": {"city": "Paris"}},
        {"type": "tool_call", "id": "call_b", "name": "get_weather", "arguments": '{"city": "Rome"}'},
    ],
    "finish_reason": "tool_call",
}
# The published documentation says `result`, the schema `response`.
RESULTS = {
    "role": "tool",
    "parts": [
        {"type": "tool_call_response", "id": "call_a", "response": "rainy"},
        {"type": "tool_call_response", "id": "call_b", "result": {"sky": "clear"}},
    ],
}
ANSWER = {"role": "assistant", "parts": [{"type": "text", "content": "Rain, sun."}], "finish_reason": "stop"}


def tagged(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [tagged(item) for item in value]}}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": attributes(value)}}
    return {"stringValue": value} if value is not None else {}


def attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": tagged(value)} for key, value in values.items()]


def span(number: int, values: dict[str, Any], *, parent: int | None = None, **fields: Any) -> dict[str, Any]:
    """A span that starts at second `number`."""
    return {
        "traceId": TRACE,
        "spanId": f"{number:016x}",
        **({"parentSpanId": f"{parent:016x}"} if parent is not None else {}),
        "name": "chat tiny-1",
        "kind": 3,
        "startTimeUnixNano": str(1_700_000_000_000_000_000 + number * 10**9),
        "endTimeUnixNano": str(1_700_000_000_500_000_000 + number * 10**9),
        "attributes": attributes(values),
        "status": {},
        **fields,
    }


def chat(prompt: list[Any], answer: list[Any] | None, **more: Any) -> dict[str, Any]:
    values = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.model": "tiny-1",
        "gen_ai.usage.input_tokens": 11,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.input.messages": json.dumps(prompt),
    }
    if answer is not None:
        values |= {"gen_ai.output.messages": json.dumps(answer), "gen_ai.response.finish_reasons": ["stop"]}
    return {**values, **{key.replace("__", "."): value for key, value in more.items()}}


def event(name: str, number: int, body: Any, values: dict[str, Any] | None = None) -> dict[str, Any]:
    """A log record in span `number`; as from the Python SDK, only the time of observation is there."""
    return {
        "observedTimeUnixNano": str(1_700_000_000_100_000_000 + number * 10**9),
        "body": tagged(body),
        "attributes": attributes(values or {"gen_ai.system": "openai"}),
        "traceId": TRACE,
        "spanId": f"{number:016x}",
        "eventName": name,
    }


def traces(*spans: dict[str, Any]) -> dict[str, Any]:
    resource = {"attributes": attributes({"service.name": "weather", "telemetry.sdk.name": "opentelemetry"})}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": "s"}, "spans": list(spans)}]}]}


def logs(*records: dict[str, Any]) -> dict[str, Any]:
    return {"resourceLogs": [{"resource": {}, "scopeLogs": [{"scope": {}, "logRecords": list(records)}]}]}


def read(folder: Path, *lines: dict[str, Any]) -> LogContents:
    """Read lines of one file; every record has one fate, and every trajectory may enter a store."""
    path = folder / "otlp.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    contents = read_logs(path)
    assert contents.formats == {str(path): "otlp"}
    assert len(contents.fates) == len(lines)
    assert not [problem for trajectory in contents.trajectories for problem in errors_of(trajectory)]
    return contents


def fates(contents: LogContents) -> list[tuple[str, str]]:
    return [(fate.fate, fate.reason) for fate in contents.fates]


def test_messages_in_attributes_become_one_trajectory(tmp_path: Path) -> None:
    definitions = json.dumps([{"type": "function", **WEATHER}])
    first = chat([SYSTEM, QUESTION], [CALLS], gen_ai__tool__definitions=definitions, gen_ai__response__id="chatcmpl-1")
    second = chat([SYSTEM, QUESTION, CALLS, RESULTS], [ANSWER], gen_ai__tool__definitions=definitions)
    contents = read(tmp_path, traces(span(2, second)), traces(span(1, first)))

    (trajectory,) = contents.trajectories
    assert fates(contents) == [("used", ""), ("used", "")]
    assert [message.role for message in trajectory.messages] == [
        "system", "user", "assistant", "tool", "tool", "assistant",
    ]  # fmt: skip
    assert [(call.name, call.arguments, call.arguments_raw) for call in trajectory.messages[2].tool_calls] == [
        ("get_weather", {"city": "Paris"}, '{"city":"Paris"}'),
        ("get_weather", {"city": "Rome"}, '{"city": "Rome"}'),
    ]
    assert trajectory.messages[2].content is None
    assert [(m.tool_call_id, m.text) for m in trajectory.messages[3:5]] == [
        ("call_a", "rainy"),
        ("call_b", '{"sky":"clear"}'),
    ]
    answer = trajectory.messages[5]
    assert (answer.text, answer.id, answer.timestamp) == ("Rain, sun.", f"{2:016x}", "2023-11-14T22:13:22.500Z")
    assert answer.producer == Producer("model", "tiny-1")
    assert answer.usage == Usage(11, 7)
    assert answer.metadata["gen_ai.request.model"] == "tiny"
    assert answer.metadata["resource"] == {"service.name": "weather"}
    assert trajectory.messages[2].metadata["gen_ai.response.id"] == "chatcmpl-1"
    assert trajectory.identifiers == {"trace": TRACE}
    assert (trajectory.started_at, trajectory.model) == ("2023-11-14T22:13:21Z", "tiny-1")
    (tool,) = trajectory.tools_at(0) or []
    assert tool == {"type": "function", "function": WEATHER}


def test_system_instructions_and_reasoning_and_files(tmp_path: Path) -> None:
    picture = {"type": "blob", "modality": "image", "mime_type": "image/png", "content": "aWk="}
    video = {"type": "uri", "modality": "video", "uri": "gs://bucket/a.mp4"}
    prompt = [{"role": "user", "parts": [{"type": "text", "content": "Look"}, picture, video]}]
    answer = [{"role": "assistant", "parts": [{"type": "reasoning", "content": "hm"}, *ANSWER["parts"]]}]
    instructions = json.dumps([{"type": "text", "content": "Be kind."}])
    contents = read(tmp_path, traces(span(1, chat(prompt, answer, gen_ai__system_instructions=instructions))))
    (trajectory,) = contents.trajectories
    system, user, reply = trajectory.messages
    assert (system.role, system.text) == ("system", "Be kind.")
    assert [getattr(part, "uri", None) for part in user.content or ()] == [None, "data:image/png;base64,aWk="]
    assert user.metadata["other_parts"] == [{"index": 2, "part": video}]
    assert (reply.reasoning, reply.text) == ("hm", "Rain, sun.")


def test_the_ids_of_protobufs_own_json_mapping_are_base64(tmp_path: Path) -> None:
    def in_base64(text: str) -> str:
        return base64.b64encode(bytes.fromhex(text)).decode()

    item = span(0xFFEE, chat([QUESTION], [ANSWER]))
    item["traceId"], item["spanId"] = in_base64(TRACE), in_base64(item["spanId"])
    item["status"] = {"code": "STATUS_CODE_OK"}
    contents = read(tmp_path, traces(item))
    assert contents.trajectories[0].identifiers == {"trace": TRACE}
    assert contents.trajectories[0].messages[-1].id == "000000000000ffee"


def test_messages_in_log_events_join_the_span(tmp_path: Path) -> None:
    """1.28 to 1.36: one event a message, in another file than the span, and neither alone is enough."""
    body = {"tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Done."}}
    records = [
        event("gen_ai.system.message", 1, {"content": "Be kind."}),
        event("gen_ai.user.message", 1, {"content": "Go"}),
        event("gen_ai.assistant.message", 1, body),
        event("gen_ai.tool.message", 1, {"content": "ok", "id": "c1"}),
        event("gen_ai.choice", 1, choice),
    ]
    values = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "tiny-1", "gen_ai.usage.input_tokens": 3}
    contents = read(tmp_path, traces(span(1, values)), *map(logs, records))
    assert fates(contents) == [("used", "")] * 6
    (trajectory,) = contents.trajectories
    assert [(message.role, message.text) for message in trajectory.messages] == [
        ("system", "Be kind."),
        ("user", "Go"),
        ("assistant", ""),
        ("tool", "ok"),
        ("assistant", "Done."),
    ]
    assert trajectory.messages[3].tool_call_id == "c1"
    assert (trajectory.model, trajectory.stop_reason) == ("tiny-1", "stop")
    assert trajectory.messages[-1].usage == Usage(3, None)


def test_two_choices_are_two_trajectories_whose_order_is_their_index(tmp_path: Path) -> None:
    choices = [{"index": index, "message": {"content": text}} for index, text in ((1, "second"), (0, "first"))]
    records = [event("gen_ai.user.message", 1, {"content": "Go"})]
    records += [event("gen_ai.choice", 1, choice) for choice in choices]
    contents = read(tmp_path, traces(span(1, {"gen_ai.operation.name": "chat"})), logs(*records))
    assert [trajectory.messages[-1].text for trajectory in contents.trajectories] == ["first", "second"]


def test_log_events_without_their_span_are_a_call_too(tmp_path: Path) -> None:
    records = [
        event("gen_ai.user.message", 1, {"content": "Go"}),
        event("gen_ai.choice", 2, {"message": {"content": "Done."}}),
    ]
    records[1]["spanId"] = records[0]["spanId"]
    contents = read(tmp_path, *map(logs, records))
    assert fates(contents) == [("used", ""), ("used", "")]
    (trajectory,) = contents.trajectories
    assert (trajectory.started_at, trajectory.ended_at) == ("2023-11-14T22:13:21.100Z", "2023-11-14T22:13:22.100Z")


def test_a_late_choice_of_a_stream_goes_to_the_call_that_waits_for_it(tmp_path: Path) -> None:
    """OpenLLMetry writes the answer of a stream when its span has ended, so in the span around it, and its calls
    beside the message."""
    call = {"id": "c1", "function": {"name": "f", "arguments": "{}"}}
    late = event("gen_ai.choice", 9, {"index": 0, "message": {"content": None}, "tool_calls": [call]})
    late["spanId"] = f"{1:016x}"
    contents = read(
        tmp_path,
        traces(span(1, {}, name="session"), span(2, {"gen_ai.operation.name": "chat"}, parent=1)),
        logs(event("gen_ai.user.message", 2, {"content": "Go"}), late),
    )
    (trajectory,) = contents.trajectories
    assert [call.name for call in trajectory.messages[-1].tool_calls] == ["f"]
    assert trajectory.messages[-1].id == f"{2:016x}"


@pytest.mark.parametrize("session", [{}, {"session__id": "s1"}])
def test_content_in_span_and_event_counts_once(tmp_path: Path, session: dict[str, str]) -> None:
    structured = {"gen_ai.input.messages": [QUESTION], "gen_ai.output.messages": [ANSWER]}
    name = "gen_ai.client.inference.operation.details"
    line = traces(span(1, chat([QUESTION], [ANSWER], **session)))
    contents = read(tmp_path, line, logs(event(name, 1, None, structured)))
    assert fates(contents) == [("used", ""), ("duplicate", "repeats the messages of its span")]
    assert len(contents.trajectories) == 1


def test_content_in_the_event_only_is_joined_with_its_span(tmp_path: Path) -> None:
    structured = {"gen_ai.input.messages": [QUESTION], "gen_ai.output.messages": [ANSWER]}
    name = "gen_ai.client.inference.operation.details"
    values = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "tiny-1", "session.id": "s1"}
    contents = read(tmp_path, traces(span(1, values)), logs(event(name, 1, None, structured)))
    assert fates(contents) == [("used", ""), ("used", "")]
    (trajectory,) = contents.trajectories
    assert (trajectory.session_id, trajectory.model) == ("s1", "tiny-1")
    assert [message.text for message in trajectory.messages] == ["Paris and Rome?", "Rain, sun."]


def test_spans_without_content_are_set_apart_with_the_reason(tmp_path: Path) -> None:
    """Capture is off by default: spans have no messages, and events only their frame."""
    bare = {"index": 0, "message": {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f"}}]}}
    contents = read(
        tmp_path,
        traces(span(1, {"gen_ai.operation.name": "chat", "gen_ai.request.model": "tiny-1"})),
        logs(event("gen_ai.user.message", 1, {})),
        logs(event("gen_ai.choice", 1, bare)),
    )
    assert {fate for fate, _ in fates(contents)} == {"set_apart"}
    assert all("did not capture" in reason for _, reason in fates(contents))


def test_cut_json_is_refused_and_told_where_the_batch_is_used(tmp_path: Path) -> None:
    whole, cut = chat([QUESTION], [ANSWER]), chat([QUESTION], [ANSWER])
    cut["gen_ai.input.messages"] = cut["gen_ai.input.messages"][:40]
    reason = "gen_ai.input.messages: the JSON text is cut off after 40 characters (attribute length limit)"

    alone = read(tmp_path, traces(span(1, cut)))
    assert fates(alone) == [("refused", f"span {1:016x}: {reason}")]
    together = read(tmp_path, traces(span(1, cut), span(2, whole)))
    assert fates(together) == [("used", "")]
    assert together.trajectories[0].metadata["refused_spans"] == [f"span {1:016x}: {reason}"]


def test_an_answer_without_its_prompt_is_refused(tmp_path: Path) -> None:
    """OpenLLMetry leaves the prompt out where it holds an image."""
    values = chat([], [ANSWER])
    del values["gen_ai.input.messages"]
    ((fate, reason),) = fates(read(tmp_path, traces(span(1, values))))
    assert (fate, reason) == ("refused", f"span {1:016x}: the answer is there, the prompt was not recorded")


def test_a_failed_call_is_no_trajectory_and_says_why(tmp_path: Path) -> None:
    exception = {"exception.type": "openai.RateLimitError", "exception.message": "slow down"}
    failed = span(
        1,
        chat([QUESTION], None, error__type="RateLimitError"),
        status={"code": 2, "message": "429"},
        events=[{"name": "exception", "timeUnixNano": "1", "attributes": attributes(exception)}],
    )
    contents = read(tmp_path, traces(failed))
    assert fates(contents) == [("set_apart", "failed call: RateLimitError: slow down")]


def agent(name: str) -> dict[str, Any]:
    return {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name}


def tool_run(call_id: str, **more: Any) -> dict[str, Any]:
    values = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "get_weather",
        "gen_ai.tool.call.id": call_id,
    }
    return {**values, **{key.replace("__", "."): value for key, value in more.items()}}


def test_a_sub_agent_in_a_tool_run_is_linked_to_the_agent_that_asked(tmp_path: Path) -> None:
    expert = [{"role": "user", "parts": [{"type": "text", "content": "Weather in Rome, in short."}]}]
    contents = read(
        tmp_path,
        traces(span(1, agent("planner"), name="invoke_agent planner")),
        traces(span(2, chat([SYSTEM, QUESTION], [CALLS]), parent=1)),
        traces(span(3, tool_run("call_b"), parent=1)),
        traces(span(4, agent("rome_expert"), parent=3)),
        traces(span(5, chat(expert, [{"role": "assistant", "parts": [{"type": "text", "content": "Sun"}]}]), parent=4)),
        traces(span(6, chat([SYSTEM, QUESTION, CALLS, RESULTS], [ANSWER]), parent=1)),
    )
    by_agent = {trajectory.agent: trajectory for trajectory in contents.trajectories}
    assert by_agent.keys() == {"planner", "rome_expert"}
    child, parent = by_agent["rome_expert"], by_agent["planner"]
    assert child.parent_trajectory_id == parent.trajectory_id
    assert parent.parent_trajectory_id is None
    assert parent.identifiers == {"trace": TRACE, "operation": f"{1:016x}"}
    assert [fate for fate, _ in fates(contents)] == ["set_apart", "used", "set_apart", "set_apart", "used", "used"]


def test_spans_without_a_session_go_with_those_of_their_batch_that_name_one(tmp_path: Path) -> None:
    """util-genai puts no conversation id on tool runs; without them the tree of a session would be torn."""
    named = {"gen_ai__conversation__id": "conv-1"}
    expert = chat([{"role": "user", "parts": [{"type": "text", "content": "Rome"}]}], [ANSWER], **named)
    contents = read(
        tmp_path,
        traces(
            span(1, agent("planner") | {"gen_ai.conversation.id": "conv-1"}),
            span(2, chat([SYSTEM, QUESTION], [CALLS], **named), parent=1),
            span(3, tool_run("call_b"), parent=1),
            span(4, agent("rome_expert") | {"gen_ai.conversation.id": "conv-1"}, parent=3),
            span(5, expert, parent=4),
        ),
    )
    by_agent = {trajectory.agent: trajectory for trajectory in contents.trajectories}
    assert by_agent["rome_expert"].parent_trajectory_id == by_agent["planner"].trajectory_id
    around = [by_agent["rome_expert"].identifiers[key] for key in ("operation", "operation_2", "operation_3")]
    assert around == [f"{1:016x}", f"{3:016x}", f"{4:016x}"]


def test_the_tools_of_a_last_turn_answer_it_and_failed_ones_are_marked(tmp_path: Path) -> None:
    failed = span(3, tool_run("call_b", error__type="Timeout"), parent=1, status={"code": 2, "message": "too slow"})
    contents = read(
        tmp_path,
        traces(span(1, {}, name="session"), span(2, chat([QUESTION], [CALLS]), parent=1)),
        traces(span(4, tool_run("call_a", gen_ai__tool__call__result="rainy"), parent=1)),
        traces(failed),
    )
    assert fates(contents) == [("used", "")] * 3
    (trajectory,) = contents.trajectories
    first, second = trajectory.messages[2:]
    assert (first.tool_call_id, first.text, first.error) == ("call_a", "rainy", None)
    assert (second.tool_call_id, second.error) == ("call_b", MessageError("Timeout", "too slow"))


def test_a_tool_that_failed_in_the_middle_is_marked(tmp_path: Path) -> None:
    """The prompt of the next call only has the text that the agent made of the failure."""
    failed = span(3, tool_run("call_a", error__type="Timeout"), parent=1, status={"code": 2, "message": "too slow"})
    contents = read(
        tmp_path,
        traces(
            span(1, {}, name="session"),
            span(2, chat([SYSTEM, QUESTION], [CALLS]), parent=1),
            failed,
            span(4, chat([SYSTEM, QUESTION, CALLS, RESULTS], [ANSWER]), parent=1),
        ),
    )
    (trajectory,) = contents.trajectories
    assert [message.error for message in trajectory.messages if message.role == "tool"] == [
        MessageError("Timeout", "too slow"),
        None,
    ]


def test_a_framework_that_repeats_the_clients_call_counts_once(tmp_path: Path) -> None:
    same = chat([QUESTION], [ANSWER])
    contents = read(tmp_path, traces(span(1, same)), traces(span(2, same, parent=1)))
    assert fates(contents) == [("duplicate", "repeats the model call within it"), ("used", "")]


def test_a_span_that_was_exported_twice_counts_once(tmp_path: Path) -> None:
    line = traces(span(1, chat([QUESTION], [ANSWER])))
    contents = read(tmp_path, line, line)
    assert fates(contents) == [("used", ""), ("duplicate", "the same span was exported before")]


def test_turns_of_a_session_in_several_traces_are_one_trajectory(tmp_path: Path) -> None:
    again = {"role": "user", "parts": [{"type": "text", "content": "And tomorrow?"}]}
    first = chat([QUESTION], [ANSWER], gen_ai__conversation__id="conv-1", user__id="u7")
    second = chat([QUESTION, ANSWER, again], [ANSWER], gen_ai__conversation__id="conv-1", user__id="u7")
    other_trace = span(2, second) | {"traceId": "f" * 32}
    contents = read(tmp_path, traces(span(1, first)), traces(other_trace))
    assert fates(contents) == [("used", ""), ("used", "")]
    (trajectory,) = contents.trajectories
    assert (trajectory.session_id, trajectory.user_id, len(trajectory.messages)) == ("conv-1", "u7", 4)
    assert set(trajectory.identifiers.values()) == {TRACE, "f" * 32}


def test_the_session_of_an_enclosing_span_is_that_of_its_calls(tmp_path: Path) -> None:
    root = span(1, {"session.id": "s1", "user.id": "u7"}, name="request")
    contents = read(tmp_path, traces(root), traces(span(2, chat([QUESTION], [ANSWER]), parent=1)))
    (trajectory,) = contents.trajectories
    assert (trajectory.session_id, trajectory.user_id) == ("s1", "u7")


@pytest.mark.parametrize("session", [None, "s1"])
def test_evaluation_events_are_scores_of_the_response_that_they_name(tmp_path: Path, session: str | None) -> None:
    """Where the calls are grouped by session, the log record cannot be, and its score comes as feedback."""
    more = {"gen_ai__response__id": "chatcmpl-1"} | ({"session__id": session} if session else {})
    values = {
        "gen_ai.evaluation.name": "Toxicity",
        "gen_ai.evaluation.score.value": 0.9,
        "gen_ai.evaluation.score.label": "toxic",
        "gen_ai.evaluation.explanation": "rude",
        "gen_ai.response.id": "chatcmpl-1",
    }
    record = event("gen_ai.evaluation.result", 7, None, values)
    contents = read(tmp_path, traces(span(1, chat([QUESTION], [ANSWER], **more))), logs(record))
    assert fates(contents) == [("used", ""), ("used", "")]
    if session is None:
        (score,) = contents.trajectories[0].scores
        assert score.message_index == 1
    else:
        (feedback,) = contents.feedback
        assert (feedback.target, feedback.target_id) == ("call", contents.trajectories[0].messages[-1].id)
        score = feedback.score
    assert (score.name, score.value, score.label, score.comment) == ("Toxicity", 0.9, "toxic", "rude")
    assert score.direction == "lower_is_better"


def test_an_evaluation_without_a_response_is_of_the_trace(tmp_path: Path) -> None:
    record = event("gen_ai.evaluation.result", 1, None, {"gen_ai.evaluation.name": "Resolved"})
    contents = read(tmp_path, logs(record))
    (feedback,) = contents.feedback
    assert (feedback.target, feedback.target_id, feedback.score.value) == ("trace", TRACE, None)


def test_deprecated_prompt_events_of_the_span(tmp_path: Path) -> None:
    """Before 1.28: two span events with JSON text."""
    prompt = json.dumps([{"role": "user", "content": "Hi"}])
    completion = json.dumps([{"role": "assistant", "content": "Hello"}])
    events = [
        {"name": "gen_ai.content.prompt", "attributes": attributes({"gen_ai.prompt": prompt})},
        {"name": "gen_ai.content.completion", "attributes": attributes({"gen_ai.completion": completion})},
    ]
    contents = read(tmp_path, traces(span(1, {"gen_ai.operation.name": "chat"}, events=events)))
    assert [message.text for message in contents.trajectories[0].messages] == ["Hi", "Hello"]


def test_openllmetrys_indexed_attributes(tmp_path: Path) -> None:
    values: dict[str, Any] = {"llm.request.type": "chat", "gen_ai.request.model": "tiny-1"}
    for index in range(11):
        role = "user" if index % 2 == 0 else "assistant"
        values |= {f"gen_ai.prompt.{index}.role": role, f"gen_ai.prompt.{index}.content": f"message {index}"}
    values |= {
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.finish_reason": "tool_calls",
        "gen_ai.completion.0.tool_calls.0.id": "call_a",
        "gen_ai.completion.0.tool_calls.0.name": "get_weather",
        "gen_ai.completion.0.tool_calls.0.arguments": '{"city": "Paris"}',
        "llm.request.functions.0.name": "get_weather",
        "llm.request.functions.0.parameters": json.dumps(WEATHER["parameters"]),
        "gen_ai.usage.prompt_tokens": 5,
        "gen_ai.usage.completion_tokens": 2,
    }
    contents = read(tmp_path, traces(span(1, values)))
    (trajectory,) = contents.trajectories
    assert [message.text for message in trajectory.messages[:11]] == [f"message {index}" for index in range(11)]
    (call,) = trajectory.messages[11].tool_calls
    assert (call.id, call.name, call.arguments) == ("call_a", "get_weather", {"city": "Paris"})
    assert trajectory.messages[11].usage == Usage(5, 2)
    assert trajectory.stop_reason == "tool_calls"
    assert trajectory.tools_at(0) == [{"type": "function", "function": WEATHER}]


@pytest.mark.parametrize(
    ("line", "fate", "reason"),
    [
        ({"resourceMetrics": [{}]}, "set_apart", "holds metrics, no spans or logs"),
        ({"resourceSpans": []}, "set_apart", "the envelope holds no spans and no log records"),
        (
            {"resourceSpans": [{"scopeSpans": [{"spans": [7]}]}]},
            "refused",
            "resourceSpans[0].scopeSpans[0].spans[0]: expected an object, got a number",
        ),
        (
            {"resourceLogs": [{"scopeLogs": [{"logRecords": [{"eventName": "gen_ai.choice"}]}]}]},
            "set_apart",
            "the log record 'gen_ai.choice' belongs to no span",
        ),
    ],
)
def test_envelopes_that_hold_no_call(tmp_path: Path, line: dict[str, Any], fate: str, reason: str) -> None:
    assert fates(read(tmp_path, line)) == [(fate, reason)]
