"""MLflow traces in the shapes that MLflow 3.17 and 2.20 wrote with `trace.to_json()` and `search_traces`."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from offline_arl.logs.reading import LogContents, read_logs
from offline_arl.trajectories.schema import Score, Usage
from offline_arl.trajectories.validate import errors_of

SYSTEM, QUESTION = {"role": "system", "content": "You know the weather."}, {"role": "user", "content": "Paris?"}
CALL = {"id": "call_a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
ASKED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call_a", "content": "rainy"}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


def completion(message: dict[str, Any], reason: str) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": reason, "message": message}
    return {"id": "chatcmpl-1", "object": "chat.completion", "model": "tiny-1", "choices": [choice]}


def twice(values: dict[str, Any]) -> dict[str, str]:
    """Every attribute is JSON text once more."""
    return {key: json.dumps(value) for key, value in values.items()}


def chat_model(prompt: list[Any], output: Any, **more: Any) -> dict[str, str]:
    values = {
        "mlflow.spanType": "CHAT_MODEL",
        "mlflow.spanInputs": {"model": "tiny", "temperature": 0.5, "messages": prompt, "tools": [TOOL]},
        "mlflow.spanOutputs": output,
        "mlflow.chat.tools": [TOOL],
        "mlflow.chat.tokenUsage": {"input_tokens": 11, "output_tokens": 7, "total_tokens": 18},
        "mlflow.llm.model": "tiny-1",
    }
    return twice({key: value for key, value in (values | more).items() if value is not None})


AGENT = twice({"mlflow.spanType": "AGENT", "mlflow.spanInputs": {"q": "x"}, "mlflow.spanOutputs": "done"})
FIRST = chat_model([SYSTEM, QUESTION], completion(ASKED, "tool_calls"))
SECOND = chat_model([SYSTEM, QUESTION, ASKED, RESULT], completion({"role": "assistant", "content": "Rain."}, "stop"))


def span_v3(number: int, attributes: dict[str, str], parent: int | None = None, **fields: Any) -> dict[str, Any]:
    def identity(value: int, size: int) -> str:
        return base64.b64encode(value.to_bytes(size, "big")).decode()

    return {
        "trace_id": identity(0xABC, 16),
        "span_id": identity(number, 8),
        "parent_span_id": None if parent is None else identity(parent, 8),
        "name": "weather_agent" if parent is None else "Completions",
        "start_time_unix_nano": 1_795_981_729_000_000_000 + number * 10**9,
        "end_time_unix_nano": 1_795_981_729_500_000_000 + number * 10**9,
        "events": [],
        "status": {"code": "STATUS_CODE_OK", "message": ""},
        "attributes": attributes,
        "links": [],
        **fields,
    }


def trace_v3(spans: list[dict[str, Any]], *assessments: dict[str, Any], **info: Any) -> dict[str, Any]:
    known = {
        "trace_id": "tr-1",
        "trace_location": {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": "1"}},
        "request_time": "2026-11-29T19:48:49.716Z",
        "state": "OK",
        "trace_metadata": {"mlflow.trace.session": "sess-9", "mlflow.trace.user": "u3", "mlflow.traceInputs": "{}"},
        "tags": {"env": "test"},
        "assessments": list(assessments),
    }
    return {"info": known | info, "data": {"spans": spans}}


def assessment(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "assessment_id": f"a-{name}",
        "assessment_name": name,
        "trace_id": "tr-1",
        "source": {"source_type": "LLM_JUDGE", "source_id": "judge-1"},
        "create_time": "2026-11-29T19:48:53.070Z",
        "last_update_time": "2026-11-29T19:48:53.070Z",
        "valid": True,
        **fields,
    }


AGENT_RUN = [span_v3(1, AGENT), span_v3(2, FIRST, 1), span_v3(3, SECOND, 1)]


def read(folder: Path, *records: Any) -> LogContents:
    path = folder / "traces.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    contents = read_logs(path)
    assert contents.formats == {str(path): "mlflow"}
    assert len(contents.fates) == len(records)
    assert not [problem for trajectory in contents.trajectories for problem in errors_of(trajectory)]
    return contents


def scores(contents: LogContents) -> dict[str, Score]:
    (trajectory,) = contents.trajectories
    return {score.name: score for score in trajectory.scores}


def check_agent_run(contents: LogContents) -> None:
    assert contents.count("used") == 1
    (trajectory,) = contents.trajectories
    assert [message.role for message in trajectory.messages] == ["system", "user", "assistant", "tool", "assistant"]
    (call,) = trajectory.messages[2].tool_calls
    assert (call.id, call.arguments) == ("call_a", {"city": "Paris"})
    assert (trajectory.messages[3].tool_call_id, trajectory.messages[4].text) == ("call_a", "Rain.")
    assert trajectory.messages[4].usage == Usage(11, 7)
    assert trajectory.tools_at(0) == [TOOL]
    assert (trajectory.agent, trajectory.model, trajectory.stop_reason) == ("weather_agent", "tiny-1", "stop")


def test_a_trace_of_version_3(tmp_path: Path) -> None:
    contents = read(tmp_path, trace_v3(AGENT_RUN))
    check_agent_run(contents)
    (trajectory,) = contents.trajectories
    assert (trajectory.session_id, trajectory.user_id) == ("sess-9", "u3")
    assert trajectory.identifiers["trace"] == "tr-1"
    assert [message.id for message in trajectory.messages if message.role == "assistant"] == [
        f"{2:016x}",
        f"{3:016x}",
    ]
    assert (trajectory.metadata["tags"], trajectory.metadata["state"]) == ({"env": "test"}, "OK")
    assert trajectory.messages[4].metadata["settings"] == {"model": "tiny", "temperature": 0.5}


def span_v2(number: int, attributes: dict[str, str], parent: int | None = None) -> dict[str, Any]:
    return {
        "name": "weather_agent" if parent is None else "Completions_1",
        "context": {"span_id": f"0x{number:016x}", "trace_id": "0x" + "d" * 32},
        "parent_id": None if parent is None else f"0x{parent:016x}",
        "start_time": 1_795_982_992_000_000_000 + number * 10**9,
        "end_time": 1_795_982_992_500_000_000 + number * 10**9,
        "status_code": "OK",
        "status_message": "",
        "attributes": attributes,
        "events": [],
    }


INFO_V2: dict[str, Any] = {
    "request_id": "b21ff1eafa804fd5aec138c9f2e89dc7",
    "experiment_id": "1",
    "timestamp_ms": 1_795_982_992_695,
    "execution_time_ms": 445,
    "status": "OK",
    "request_metadata": {"mlflow.trace_schema.version": "2"},
    "tags": {"mlflow.traceName": "weather_agent"},
    "assessments": [],
}
SPANS_V2 = [span_v2(1, AGENT), span_v2(2, FIRST, 1), span_v2(3, SECOND, 1)]


def test_a_trace_of_version_2(tmp_path: Path) -> None:
    contents = read(tmp_path, {"info": INFO_V2, "data": {"spans": SPANS_V2, "request": "{}", "response": '"done"'}})
    check_agent_run(contents)
    assert contents.trajectories[0].identifiers["trace"] == INFO_V2["request_id"]


def test_rows_of_search_traces(tmp_path: Path) -> None:
    """Version 3 has the trace as JSON text in a column; version 2 only the text of an object, and its parts."""
    row: dict[str, Any] = {
        "trace_id": "tr-1",
        "trace": json.dumps(trace_v3(AGENT_RUN)),
        "state": "OK",
        "spans": AGENT_RUN,
    }
    check_agent_run(read(tmp_path, row))
    row = {**INFO_V2, "trace": "Trace(request_id=b21ff1eafa804fd5aec138c9f2e89dc7)", "request": {}, "spans": SPANS_V2}
    check_agent_run(read(tmp_path, row))


def test_assessments_are_scores_and_an_overridden_one_is_not(tmp_path: Path) -> None:
    wrong = assessment("correct", feedback={"value": False}, valid=False)
    right = assessment("correct", feedback={"value": True}, rationale="it is", overrides=wrong["assessment_id"])
    right["source"] = {"source_type": "HUMAN", "source_id": "bob"}
    contents = read(
        tmp_path,
        trace_v3(
            AGENT_RUN,
            wrong,
            right,
            assessment("toxicity", feedback={"value": 0.1}),
            assessment("helpful", feedback={"value": "yes"}, span_id=f"{2:016x}"),
            assessment("helpful", feedback={"value": "no"}, span_id=f"{2:016x}", valid=False),
            assessment("broken", feedback={"value": None, "error": {"error_code": "Timeout"}}),
            assessment("detail", feedback={"value": {"a": 1}}),
            assessment("expected_answer", expectation={"value": ["sunny"]}),
        ),
    )
    found = scores(contents)
    assert len(contents.trajectories[0].scores) == 6
    correct = found["correct"]
    assert (correct.value, correct.scorer, correct.scorer_kind, correct.comment) == (1.0, "bob", "human", "it is")
    assert (found["toxicity"].value, found["toxicity"].direction) == (0.1, "lower_is_better")
    assert (found["helpful"].label, found["helpful"].message_index) == ("yes", 2)
    assert (found["broken"].value, found["broken"].metadata["error"]) == (None, {"error_code": "Timeout"})
    assert (found["detail"].value, found["detail"].metadata["value"]) == (None, {"a": 1})
    assert (found["expected_answer"].value, found["expected_answer"].correction) == (None, '["sunny"]')
    assert contents.trajectories[0].metadata["overridden_assessments"][0] == wrong


def test_a_failed_call_is_kept_apart_from_the_run(tmp_path: Path) -> None:
    event = {"name": "exception", "attributes": {"exception.type": "RateLimitError", "exception.message": "slow"}}
    failed = span_v3(2, chat_model([SYSTEM, QUESTION], None), 1, status={"code": "STATUS_CODE_ERROR"}, events=[event])
    contents = read(tmp_path, trace_v3([span_v3(1, twice({"mlflow.spanType": "AGENT"})), failed], state="ERROR"))
    ((fate, reason),) = [(fate.fate, fate.reason) for fate in contents.fates]
    assert (fate, reason) == ("set_apart", "failed call: RateLimitError: slow")


def test_chat_messages_where_inputs_are_not_recorded(tmp_path: Path) -> None:
    values = twice({"mlflow.spanType": "CHAT_MODEL", "mlflow.chat.messages": [QUESTION, ASKED]})
    (trajectory,) = read(tmp_path, trace_v3([span_v3(1, values)])).trajectories
    assert [message.role for message in trajectory.messages] == ["user", "assistant"]


def test_the_tool_of_a_last_turn_answers_it(tmp_path: Path) -> None:
    run = twice({"mlflow.spanType": "TOOL", "mlflow.spanInputs": {"city": "Paris"}, "mlflow.spanOutputs": "rainy"})
    spans = [span_v3(1, AGENT), span_v3(2, FIRST, 1), span_v3(3, run, 1, name="get_weather")]
    (trajectory,) = read(tmp_path, trace_v3(spans)).trajectories
    assert (trajectory.messages[-1].role, trajectory.messages[-1].text) == ("tool", "rainy")


def test_a_later_export_of_a_trace_replaces_an_earlier_one(tmp_path: Path) -> None:
    judged = trace_v3(AGENT_RUN, assessment("correct", feedback={"value": True}))
    contents = read(tmp_path, judged, trace_v3(AGENT_RUN))
    assert [(fate.fate, fate.reason) for fate in contents.fates] == [
        ("used", ""),
        ("duplicate", "an earlier export of a trace that is read already"),
    ]
    assert set(scores(contents)) == {"correct"}


def test_turns_of_a_session_are_joined(tmp_path: Path) -> None:
    answer = {"role": "assistant", "content": "Rain."}
    history = [SYSTEM, QUESTION, ASKED, RESULT, answer, {"role": "user", "content": "Thanks"}]
    last = chat_model(history, completion({"role": "assistant", "content": "Welcome."}, "stop"))
    contents = read(tmp_path, trace_v3(AGENT_RUN), trace_v3([span_v3(9, last)], trace_id="tr-2"))
    assert contents.count("used") == 2
    (trajectory,) = contents.trajectories
    assert [message.text for message in trajectory.messages[-2:]] == ["Thanks", "Welcome."]


@pytest.mark.parametrize(
    ("spans", "fate"),
    [
        ([], "set_apart"),
        ([7, None, {}], "set_apart"),
        ([{"span_id": 7, "attributes": [], "status": [], "events": {}, "name": {}}], "set_apart"),
        ([span_v3(1, {"mlflow.spanType": '"CHAT_MODEL"', "mlflow.spanInputs": '{"messages": [{"role": 7}]}'})], None),
    ],
)
def test_strange_spans_give_a_reason(tmp_path: Path, spans: list[Any], fate: str | None) -> None:
    contents = read(tmp_path, trace_v3(spans))
    (found,) = contents.fates
    assert found.fate == fate or (fate is None and found.fate in ("refused", "set_apart"))
    assert "failed: " not in found.reason
    assert found.reason
