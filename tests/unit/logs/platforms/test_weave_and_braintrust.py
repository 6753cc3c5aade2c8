"""Weave's calls and Braintrust's rows. The shapes are those that weave 0.54 and braintrust 0.48 sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offline_arl.logs.reading import LogContents, read_logs
from offline_arl.trajectories.schema import Message, Trajectory, Usage

Record = dict[str, Any]
TOOLS = [{"type": "function", "function": {"name": "w", "parameters": {"type": "object"}}}]
CALL = {"id": "c1", "type": "function", "function": {"name": "w", "arguments": '{"city": "Rome"}'}}
QUESTION = {"role": "user", "content": "Weather in Rome?"}
ASKED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "rain"}
SAID = {"role": "assistant", "content": "It rains."}
WHOLE = [
    ("user", "Weather in Rome?", [], None),
    ("assistant", "", ["w"], None),
    ("tool", "rain", [], "c1"),
    ("assistant", "It rains.", [], None),
]


def read(path: Path, *records: Record) -> LogContents:
    path = path / "log.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return read_logs(path)


def one(contents: LogContents) -> Trajectory:
    assert len(contents.trajectories) == 1
    return contents.trajectories[0]


def brief(messages: list[Message]) -> list[tuple[str, str, list[str], str | None]]:
    return [
        (message.role, message.text, [call.name for call in message.tool_calls], message.tool_call_id)
        for message in messages
    ]


def fates(contents: LogContents) -> list[str]:
    return [fate.fate for fate in contents.fates]


def choices(message: Record, reason: str = "stop") -> list[Record]:
    return [{"index": 0, "message": message, "finish_reason": reason}]


# Weave


def call(call_id: str, second: int, name: str, inputs: Any, output: Any, **more: Any) -> Record:
    kind = {"kind": "llm"} if "openai" in name else {}
    return {
        "project_id": "me/proj",
        "id": call_id,
        "trace_id": "t1",
        "parent_id": None if call_id == "root" else "root",
        "op_name": f"weave:///me/proj/op/{name}:Zf3",
        "display_name": None,
        "started_at": f"2026-01-01T00:00:{second:02d}Z",
        "ended_at": f"2026-01-01T00:00:{second + 1:02d}Z",
        "attributes": {"weave": {**kind, "os_name": "Linux"}},
        "inputs": inputs,
        "output": output,
        "exception": None,
        "summary": more.pop("summary", {}),
        **more,
    }


CREATE = "openai.chat.completions.create"
USAGE = {"usage": {"m-1": {"requests": 1, "prompt_tokens": 10, "completion_tokens": 5}}}
# Objects of Python are written down with their classes.
TYPED = {**ASKED, "_type": "ChatCompletionMessage", "_class_name": "ChatCompletionMessage", "_bases": ["BaseModel"]}
CALLS = [
    call("root", 0, "agent", {"q": "Weather in Rome?"}, "It rains."),
    call(
        "l1",
        1,
        CREATE,
        {"self": {"client": {}}, "messages": [QUESTION], "tools": TOOLS, "model": "m", "timeout": "NOT_GIVEN"},
        {"choices": choices(ASKED, "tool_calls"), "model": "m-1", "object": "chat.completion"},
        summary=USAGE,
    ),
    call("x1", 3, "w", {"city": "Rome"}, "rain"),
    call("l2", 5, CREATE, {"messages": [QUESTION, TYPED, RESULT], "tools": TOOLS}, {"choices": choices(SAID)}),
]


def test_calls_of_a_weave_trace(tmp_path: Path) -> None:
    contents = read(tmp_path, *reversed(CALLS))
    found = one(contents)
    assert brief(found.messages) == WHOLE
    assert fates(contents) == ["used"] * 4
    assert found.identifiers == {"trace": "t1", "operation": "root"}
    assert (found.messages[1].usage, found.messages[1].producer.name) == (Usage(10, 5), "m-1")
    assert found.messages[1].metadata["settings"] == {"model": "m"}
    assert found.messages[2].id == "x1"
    assert json.loads(found.contexts[0].tools or "") == TOOLS
    assert contents.formats == {str(tmp_path / "log.jsonl"): "weave"}
    assert brief(one(read(tmp_path, {"batch": CALLS})).messages) == WHOLE


def test_a_call_that_was_running_is_replaced_by_its_end(tmp_path: Path) -> None:
    running = {**CALLS[3], "ended_at": None, "output": None}
    contents = read(tmp_path, *CALLS[:3], running, CALLS[3], running)
    assert brief(one(contents).messages) == WHOLE
    assert fates(contents) == ["used", "used", "used", "duplicate", "used", "duplicate"]


def test_references_are_not_what_was_said(tmp_path: Path) -> None:
    contents = read(tmp_path, call("root", 0, CREATE, {"messages": "weave:///me/proj/object/m:1"}, "weave:///x/y/z:2"))
    assert contents.trajectories == []
    assert fates(contents) == ["set_apart"]


def test_a_failed_weave_call_is_no_answer(tmp_path: Path) -> None:
    exception = json.dumps({"type": "BadRequestError", "message": "boom", "traceback": []})
    contents = read(tmp_path, call("root", 0, CREATE, {"messages": [QUESTION]}, None, exception=exception))
    assert (contents.trajectories, contents.fates[0].reason) == ([], "failed call: BadRequestError: boom")


def weave_feedback(kind: str, payload: Any, **more: Any) -> Record:
    return {
        "id": f"f-{kind}",
        "feedback_type": kind,
        "weave_ref": "weave:///me/proj/call/root",
        "payload": payload,
        "creator": "ann",
        **more,
    }


FEEDBACK = [
    weave_feedback("wandb.reaction.1", {"emoji": "👎🏽"}),
    weave_feedback("wandb.reaction.1", {"emoji": "🎉"}),
    weave_feedback("wandb.note.1", {"note": "good"}),
    weave_feedback("wandb.annotation.correctness", {"value": 4}),
    weave_feedback("wandb.runnable.judge", {"output": {"relevance": 0.5, "flagged": True, "reason": "why"}}),
    weave_feedback("toxicity", {"value": 0.9}),
]
EXPECTED_SCORES = [
    ("reaction", 0.0, "👎🏽", "higher_is_better", "human"),
    ("reaction", None, "🎉", "unknown", "human"),
    ("note", None, None, "unknown", "human"),
    ("correctness", 4.0, None, "higher_is_better", "human"),
    ("judge.relevance", 0.5, None, "higher_is_better", "unknown"),
    ("judge.flagged", 1.0, None, "unknown", "unknown"),
    ("toxicity", 0.9, None, "lower_is_better", "unknown"),
]


def test_weave_feedback_apart_and_in_the_summary(tmp_path: Path) -> None:
    rows = [{**item, "id": str(index)} for index, item in enumerate(FEEDBACK)]
    contents = read(tmp_path, *rows, {**rows[0], "id": "9", "weave_ref": "weave:///me/proj/object/x:1"})
    apart = [item.score for item in contents.feedback]
    assert {(item.target, item.target_id) for item in contents.feedback} == {("call", "root")}
    assert fates(contents) == ["used"] * 6 + ["refused"]
    judged = {**CALLS[0], "summary": {"weave": {"feedback": rows}}}
    inside = one(read(tmp_path, judged, *CALLS[1:])).scores
    for scores in (apart, inside):
        assert [
            (item.name, item.value, item.label, item.direction, item.scorer_kind) for item in scores
        ] == EXPECTED_SCORES
        assert {item.scorer for item in scores} == {"ann"}
    assert (apart[2].comment, apart[4].comment) == ("good", "why")


# Braintrust


def row(row_id: str, start: int, kind: str, **more: Any) -> Record:
    return {
        "id": row_id,
        "span_id": f"span-{row_id}",
        "root_span_id": "trace1",
        "span_parents": None if row_id == "root" else ["span-root"],
        "span_attributes": {"name": more.pop("name", row_id), "type": kind},
        "created": f"2026-01-01T00:00:{start:02d}Z",
        "project_id": "p",
        "log_id": "g",
        "metrics": {"start": 1767225600 + start, "end": 1767225600.5 + start, **more.pop("metrics", {})},
        **more,
    }


ROOT = row(
    "root",
    0,
    "task",
    name="agent",
    input={"q": "Weather in Rome?"},
    output="It rains.",
    scores={"correctness": 0.5, "hallucination": None},
    expected="It pours.",
    metadata={"user_id": "u", "session_id": "s"},
    tags=["a"],
    origin={"object_type": "dataset", "id": "item1"},
)
FIRST = row(
    "l1",
    1,
    "llm",
    input=[QUESTION],
    output=choices(ASKED, "tool_calls"),
    metadata={"model": "m", "tools": TOOLS, "temperature": 0.1},
    metrics={"prompt_tokens": 10, "completion_tokens": 5, "tokens": 15},
)
TOOL = row("x1", 3, "tool", name="w", input={"city": "Rome"}, output="rain")
SECOND = row("l2", 5, "llm", input=[QUESTION, ASKED, RESULT], output=choices(SAID), metadata={"model": "m"})


def test_rows_of_a_braintrust_trace(tmp_path: Path) -> None:
    contents = read(tmp_path, SECOND, ROOT, TOOL, FIRST)
    found = one(contents)
    assert brief(found.messages) == WHOLE
    assert fates(contents) == ["used"] * 4
    assert (found.user_id, found.session_id, found.task_id) == ("u", "s", "item1")
    assert found.identifiers == {"trace": "trace1", "operation": "root"}
    assert [(item.name, item.value, item.direction, item.correction) for item in found.scores] == [
        ("correctness", 0.5, "higher_is_better", None),
        ("hallucination", None, "lower_is_better", None),
        ("expected", None, "unknown", '"It pours."'),
    ]
    asked = found.messages[1]
    assert (asked.id, asked.producer.name, asked.usage) == ("l1", "m", Usage(10, 5))
    assert asked.metadata["metadata"] == {"model": "m", "temperature": 0.1}
    assert found.started_at == "2026-01-01T00:00:01Z"
    assert contents.formats == {str(tmp_path / "log.jsonl"): "braintrust"}
    assert json.loads(found.contexts[0].tools or "") == TOOLS


@pytest.mark.parametrize("key", ["rows", "events", "data"])
def test_a_page_of_rows(tmp_path: Path, key: str) -> None:
    assert brief(one(read(tmp_path, {key: [ROOT, FIRST, TOOL, SECOND], "cursor": "x"})).messages) == WHOLE


def test_later_versions_of_a_row_add_to_it_whatever_their_order(tmp_path: Path) -> None:
    """The SDK sends a start and a merge; the service numbers versions, and numbers grow in length."""
    start = {key: value for key, value in SECOND.items() if key != "output"}
    end = {"id": "l2", "span_id": "span-l2", "root_span_id": "trace1", "span_parents": ["span-root"], "_is_merge": True}
    end |= {"output": SECOND["output"], "metadata": {"seed": 1}}
    contents = read(tmp_path, ROOT, FIRST, start, end)
    found = one(contents)
    assert brief(found.messages) == WHOLE
    assert found.messages[3].metadata["metadata"] == {"model": "m", "seed": 1}
    assert fates(contents) == ["used"] * 4
    stored = [{**SECOND, "_xact_id": "1000", "output": choices(SAID)}, {**SECOND, "_xact_id": "999", "output": "old"}]
    contents = read(tmp_path, ROOT, FIRST, *stored)
    assert brief(one(contents).messages) == WHOLE


def test_deleted_rows_and_what_scorers_ask_are_left_out(tmp_path: Path) -> None:
    judge = row("judge", 7, "score", span_parents=["span-root"])
    asked = row(
        "l3", 8, "llm", span_parents=["span-judge"], input=[{"role": "user", "content": "Right?"}], output="yes"
    )
    gone = row("l4", 9, "llm", input=[{"role": "user", "content": "x"}], output="y", _object_delete=True)
    contents = read(tmp_path, ROOT, FIRST, SECOND, judge, asked, gone)
    assert brief(one(contents).messages) == WHOLE
    assert fates(contents) == ["used", "used", "used", "set_apart", "set_apart", "set_apart"]
    assert contents.fates[-1].reason == "a row that was deleted"


def test_braintrust_feedback_is_about_a_row(tmp_path: Path) -> None:
    audit = {"_audit_source": "external", "_audit_metadata": {"user_id": "u"}, "log_id": "g", "project_id": "p"}
    contents = read(
        tmp_path,
        {**audit, "id": "root", "_is_merge": True, "scores": {"toxicity": 1}, "expected": {"a": "b"}},
        {
            **audit,
            "id": "other",
            "comment": {"text": "nice"},
            "origin": {"id": "root"},
            "created": "2026-01-01T00:00:00Z",
        },
        {**audit, "id": "root", "_is_merge": True, "tags": ["x"]},
    )
    assert [
        (item.target, item.target_id, item.score.name, item.score.value, item.score.correction, item.score.comment)
        for item in contents.feedback
    ] == [
        ("call", "root", "toxicity", 1.0, None, None),
        ("call", "root", "expected", None, '{"a":"b"}', None),
        ("call", "root", "comment", None, None, "nice"),
    ]
    assert {item.score.scorer for item in contents.feedback} == {"u"}
    assert fates(contents) == ["used", "used", "refused"]
