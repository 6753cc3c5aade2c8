"""LangSmith: runs as listed, exported and sent, and feedback. The shapes are those that langsmith 0.15 sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offline_arl.logs.reading import LogContents, read_logs
from offline_arl.trajectories.schema import Message, Trajectory, Usage

REAL_LOGS = Path(__file__).resolve().parents[5] / "shared/real_logs/langsmith"
Record = dict[str, Any]
LC = ["langchain", "schema", "messages"]
TOOLS = [{"type": "function", "function": {"name": "w", "parameters": {"type": "object"}}}]
CALL = {"id": "c1", "type": "function", "function": {"name": "w", "arguments": '{"city": "Rome"}'}}


def run(run_id: str, run_type: str, second: int, inputs: Any, outputs: Any, **more: Any) -> Record:
    return {
        "id": run_id,
        "trace_id": "root",
        "parent_run_id": None if run_id == "root" else "root",
        "run_type": run_type,
        "name": more.pop("name", run_id),
        "start_time": f"2026-01-01T00:00:{second:02d}.000001",
        "end_time": f"2026-01-01T00:00:{second + 1:02d}",
        "inputs": inputs,
        "outputs": outputs,
        "extra": {"metadata": more.pop("metadata", {}), **more.pop("extra", {})},
        **more,
    }


def constructor(name: str, **fields: Any) -> Record:
    return {"lc": 1, "type": "constructor", "id": [*LC, name], "kwargs": fields}


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


SYSTEM, QUESTION = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather in Rome?"}
ASKED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "rain"}
USAGE = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}


def completion(message: Record, reason: str = "stop") -> Record:
    return {
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "model": "m-1",
        "usage_metadata": USAGE,
    }


ROOT = run("root", "chain", 0, {"q": "Weather in Rome?"}, {"output": "It rains."}, name="agent", tags=["a"])
FIRST = run("l1", "llm", 1, {"messages": [SYSTEM, QUESTION], "tools": TOOLS}, completion(ASKED, "tool_calls"))
TOOL = run("x1", "tool", 3, {"city": "Rome"}, {"output": "rain"}, name="w")
SECOND = run(
    "l2",
    "llm",
    5,
    {"messages": [SYSTEM, QUESTION, ASKED, RESULT], "tools": TOOLS},
    completion({"role": "assistant", "content": "It rains."}),
)
WHOLE = [
    ("system", "Be brief.", [], None),
    ("user", "Weather in Rome?", [], None),
    ("assistant", "", ["w"], None),
    ("tool", "rain", [], "c1"),
    ("assistant", "It rains.", [], None),
]


def test_runs_of_a_trace_in_any_order(tmp_path: Path) -> None:
    contents = read(tmp_path, SECOND, TOOL, ROOT, FIRST)
    found = one(contents)
    assert brief(found.messages) == WHOLE
    assert fates(contents) == ["used"] * 4
    assert found.identifiers == {"trace": "root"}
    assert (found.metadata["name"], found.metadata["tags"], found.stop_reason) == ("agent", ["a"], "stop")
    asked, result = found.messages[2], found.messages[3]
    assert (asked.id, asked.producer.name, asked.usage) == ("l1", "m-1", Usage(10, 5))
    assert (result.id, result.timestamp) == ("x1", "2026-01-01T00:00:04Z")
    assert found.started_at == "2026-01-01T00:00:01.000001Z"  # the interface leaves the zone out
    assert json.loads(found.contexts[0].tools or "") == TOOLS


def test_what_the_sdk_sends_is_joined_by_id(tmp_path: Path) -> None:
    start = {key: value for key, value in SECOND.items() if key not in ("outputs", "end_time")}
    end = {"id": "l2", "trace_id": "root", "parent_run_id": "root", "outputs": SECOND["outputs"]}
    contents = read(tmp_path, {"post": [ROOT, FIRST, start]}, {"patch": [{**end, "end_time": SECOND["end_time"]}]})
    assert brief(one(contents).messages) == WHOLE
    assert fates(contents) == ["used", "used"]


def test_a_page_of_runs_and_the_rows_of_a_bulk_export(tmp_path: Path) -> None:
    """Columns with structures are JSON texts in Parquet; the place in the trace is in the dotted order."""
    rows = []
    for record in (ROOT, FIRST, SECOND):
        stamp = "20260101T000000000001Z"
        order = f"{stamp}root" if record is ROOT else f"{stamp}root.{stamp}{record['id']}"
        row = {key: json.dumps(value) if isinstance(value, dict) else value for key, value in record.items()}
        rows.append({**row, "trace_id": None, "parent_run_id": None, "dotted_order": order, "tags": '["a"]'})
    rows[1]["start_time"], rows[2]["start_time"] = 1767225601000, 1767225605000  # milliseconds
    contents = read(tmp_path, *rows)
    found = one(contents)
    assert brief(found.messages) == WHOLE
    assert (found.started_at, found.identifiers) == ("2026-01-01T00:00:01Z", {"trace": "root"})
    page = read(tmp_path, {"runs": [ROOT, FIRST, SECOND], "cursors": {}})
    assert brief(one(page).messages) == WHOLE


def test_a_run_exported_twice_counts_once(tmp_path: Path) -> None:
    contents = read(tmp_path, ROOT, FIRST, SECOND, FIRST)
    assert brief(one(contents).messages) == WHOLE
    assert fates(contents) == ["used", "used", "used", "duplicate"]


def test_langchains_messages_and_its_tool_runs(tmp_path: Path) -> None:
    calls = [{"name": "w", "args": {"city": "Rome"}, "id": "c1", "type": "tool_call"}]
    asked = constructor("AIMessage", content="", type="ai", tool_calls=calls, id="run-1", usage_metadata=USAGE)
    said = constructor("AIMessage", content="It rains.", type="ai", response_metadata={"finish_reason": "stop"})
    prompt = [
        constructor("SystemMessage", content="Be brief."),
        constructor("HumanMessage", content="Weather in Rome?"),
    ]
    failed = {"content": "no net", "type": "tool", "name": "w", "tool_call_id": "c1", "status": "error"}
    result = constructor("ToolMessage", content="no net", tool_call_id="c1", status="error")
    contents = read(
        tmp_path,
        ROOT,
        run("l1", "llm", 1, {"messages": [prompt]}, {"generations": [[{"text": "", "message": asked}]]}),
        run("x1", "tool", 3, {"city": "Rome"}, {"output": failed}, name="w", extra={"tool_call_id": "c1"}),
        run("l2", "llm", 5, {"messages": [[*prompt, asked, result]]}, {"generations": [[{"message": said}]]}),
    )
    found = one(contents)
    assert brief(found.messages) == [*WHOLE[:3], ("tool", "no net", [], "c1"), WHOLE[4]]
    assert (found.messages[2].usage, found.stop_reason) == (Usage(10, 5), "stop")
    assert found.messages[3].error is not None
    assert fates(contents) == ["used"] * 4


def test_a_batch_of_prompts_is_as_many_calls(tmp_path: Path) -> None:
    prompts = [[constructor("HumanMessage", content=text)] for text in ("one", "two")]
    answers = [[{"text": text.upper()}] for text in ("one", "two")]
    contents = read(tmp_path, run("root", "llm", 0, {"messages": prompts}, {"generations": answers}))
    assert [[message.text for message in found.messages] for found in contents.trajectories] == [
        ["one", "ONE"],
        ["two", "TWO"],
    ]


def test_a_streamed_run_without_outputs_is_read_from_its_events(tmp_path: Path) -> None:
    deltas = ({"role": "assistant", "content": ""}, {"content": "It "}, {"content": "rains."})
    events = [
        {"name": "new_token", "time": "t", "kwargs": {"token": {"choices": [{"index": 0, "delta": delta}]}}}
        for delta in deltas
    ]
    record = run("root", "llm", 0, {"messages": [QUESTION]}, {}, events=events)
    assert brief(one(read(tmp_path, record)).messages) == [WHOLE[1], WHOLE[4]]
    texts = [{"name": "new_token", "kwargs": {"token": text}} for text in ("It ", "rains.")]
    assert brief(one(read(tmp_path, {**record, "events": texts})).messages) == [WHOLE[1], WHOLE[4]]


def test_a_failed_call_is_no_answer(tmp_path: Path) -> None:
    text = "BadRequestError('Error code: 400 - boom')\n\nTraceback (most recent call last):\n ..."
    contents = read(tmp_path, run("root", "llm", 0, {"messages": [QUESTION]}, {"output": None}, error=text))
    assert contents.trajectories == []
    assert fates(contents) == ["set_apart"]
    assert contents.fates[0].reason.startswith("failed call: BadRequestError: ")


def test_threads_users_and_dataset_examples(tmp_path: Path) -> None:
    """A later trace of the thread repeats the conversation; the two become one trajectory."""
    metadata = {"thread_id": "th", "user_id": "u"}
    again = [SYSTEM, QUESTION, {"role": "assistant", "content": "It rains."}, {"role": "user", "content": "Oslo?"}]
    first = run("root", "llm", 0, {"messages": [SYSTEM, QUESTION]}, {"output": "It rains."}, metadata=metadata)
    first["reference_example_id"] = "ex1"
    second = run("root2", "llm", 9, {"messages": again}, {"output": "Sun."}, metadata=metadata, parent_run_id=None)
    found = one(read(tmp_path, first, {**second, "trace_id": "root2"}))
    assert [message.text for message in found.messages] == [
        "Be brief.",
        "Weather in Rome?",
        "It rains.",
        "Oslo?",
        "Sun.",
    ]
    assert (found.session_id, found.user_id, found.task_id, found.group_id) == ("th", "u", "ex1", "ex1")


def feedback(key: str, **more: Any) -> Record:
    return {"id": f"f-{key}", "key": key, "run_id": "l1", "trace_id": "root", "score": None, "value": None, **more}


def test_feedback_of_runs_and_traces(tmp_path: Path) -> None:
    contents = read(
        tmp_path,
        feedback("correctness", score=0.5, value="half", comment="c", feedback_source={"type": "app", "user_id": "u"}),
        feedback("user_score", run_id="root", score=True, feedback_source={"type": "api"}),
        feedback("answer", correction={"answer": "x"}, feedback_group_id="g1"),
        feedback("tone", value={"polite": 1}, score=1),
        feedback("project", run_id=None, trace_id=None, score=1),
    )
    found = {item.score.name: item for item in contents.feedback}
    correct = found["correctness"]
    assert (correct.target, correct.target_id, correct.score.value, correct.score.label) == ("call", "l1", 0.5, "half")
    assert (correct.score.scorer, correct.score.scorer_kind, correct.score.comment) == ("u", "human", "c")
    assert (found["user_score"].target, found["user_score"].target_id) == ("trace", "root")
    assert (found["user_score"].score.value, found["user_score"].score.scorer_kind) == (1.0, "unknown")
    answer = found["answer"].score
    assert (answer.value, answer.correction, answer.comparison_id) == (None, '{"answer":"x"}', "g1")
    assert found["tone"].score.metadata["value"] == {"polite": 1}
    assert fates(contents) == ["used"] * 4 + ["refused"]


@pytest.mark.skipif(not REAL_LOGS.exists(), reason="the real logs are not here")
@pytest.mark.parametrize("name", ["langsmith_py_wrap_openai_.json", "langsmith_py_wrap_openai_stream.json"])
def test_real_runs(name: str) -> None:
    contents = read_logs(REAL_LOGS / name)
    found = one(contents)
    assert brief(found.messages) == [
        ("user", "howdy", [], None),
        ("assistant", "Howdy! How can I assist you today?", [], None),
    ]
    assert (found.model, found.stop_reason, found.messages[1].usage) == ("gpt-4o-mini-2024-07-18", "stop", Usage(9, 9))
    assert fates(contents) == ["used"]
    assert contents.formats == {str(REAL_LOGS / name): "langsmith"}
