"""Langfuse: downloads, rows of the API and of the export, scores; what a trace says only in part is completed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offline_arl.logs.adapter import Feedback
from offline_arl.logs.reading import LogContents, read_logs
from offline_arl.trajectories.schema import Message, Trajectory, Usage

REAL_LOGS = Path(__file__).resolve().parents[5] / "shared/real_logs"
needs_real_logs = pytest.mark.skipif(not REAL_LOGS.exists(), reason="the real logs are not here")
Record = dict[str, Any]
CALL = {"id": "c1", "type": "function", "function": {"name": "w", "arguments": '{"city":"Rome"}'}}
TOOLS = [{"type": "function", "function": {"name": "w", "parameters": {"type": "object"}}}]


def generation(observation_id: str, second: int, prompt: Any, answer: Any, **more: Any) -> Record:
    return observation(observation_id, "GENERATION", second, input=prompt, output=answer, model="m", **more)


def observation(observation_id: str, kind: str, second: int, **more: Any) -> Record:
    return {
        "id": observation_id,
        "traceId": "t1",
        "type": kind,
        "name": more.pop("name", observation_id),
        "startTime": f"2026-01-01T00:00:{second:02d}.000Z",
        "endTime": f"2026-01-01T00:00:{second + 1:02d}.000Z",
        "parentObservationId": more.pop("parent", None),
        "level": "DEFAULT",
        **more,
    }


def trace(**more: Any) -> Record:
    return {
        "id": "t1",
        "name": "agent run",
        "timestamp": "2026-01-01T00:00:00.000Z",
        "sessionId": None,
        "userId": None,
        "tags": [],
        "input": None,
        "output": None,
        "scores": [],
        "corrections": [],
        **more,
    }


def download(*observations: Record, **more: Any) -> Record:
    """What the interface downloads: observations whole, and again in the trace without their content."""
    bare = [{**item, "input": None, "output": None} for item in observations]
    return {"trace": trace(observations=bare, **more), "observations": list(observations)}


def score(name: str, value: Any, **more: Any) -> Record:
    return {
        "id": f"s-{name}",
        "name": name,
        "value": value,
        "dataType": "NUMERIC",
        "source": "EVAL",
        "traceId": "t1",
        "observationId": None,
        "timestamp": "2026-01-02T00:00:00.000Z",
        **more,
    }


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


def fates(contents: LogContents) -> list[tuple[str, str]]:
    return [(fate.fate, fate.reason) for fate in contents.fates]


QUESTION = {"role": "user", "content": "Weather in Rome?"}
ASKED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "rain"}
FIRST = generation("g1", 1, {"messages": [QUESTION], "tools": TOOLS}, ASKED, usageDetails={"input": 9, "output": 4})
SECOND = generation("g2", 5, json.dumps(json.dumps([QUESTION, ASKED, RESULT])), json.dumps("It rains."))
WHOLE = [
    ("user", "Weather in Rome?", [], None),
    ("assistant", "", ["w"], None),
    ("tool", "rain", [], "c1"),
    ("assistant", "It rains.", [], None),
]


def test_a_download_out_of_order_with_texts_in_texts_is_one_trajectory(tmp_path: Path) -> None:
    contents = read(tmp_path, download(SECOND, FIRST, observation("span", "SPAN", 0)))
    found = one(contents)
    assert brief(found.messages) == WHOLE
    assert fates(contents) == [("used", "")]
    assert contents.formats == {str(tmp_path / "log.jsonl"): "langfuse"}
    assert [json.loads(context.tools or "") for context in found.contexts[:1]] == [TOOLS]
    answer = found.messages[1]
    assert (answer.id, answer.producer.kind, answer.producer.name, answer.usage) == ("g1", "model", "m", Usage(9, 4))
    assert found.identifiers["trace"] == "t1"


def snake_case(record: Record) -> Record:
    names = {"traceId": "trace_id", "startTime": "start_time", "endTime": "end_time", "sessionId": "session_id"}
    names |= {"parentObservationId": "parent_observation_id", "usageDetails": "usage_details", "userId": "user_id"}
    names |= {"dataType": "data_type", "observationId": "observation_id", "model": "provided_model_name"}
    return {names.get(key, key): value for key, value in record.items()}


@pytest.mark.parametrize("spelling", ["camel", "snake"])
def test_rows_of_observations_and_of_their_trace(tmp_path: Path, spelling: str) -> None:
    """The API has camelCase, the export to blob storage snake_case; a trace row tells session and user."""
    trace_row = {**trace(sessionId="s1", userId="u1", tags=["a"]), "release": "r1"}
    rows = [SECOND, trace_row, observation("step", "SPAN", 1, parent="agent"), FIRST, observation("agent", "AGENT", 0)]
    contents = read(tmp_path, *(rows if spelling == "camel" else map(snake_case, rows)))
    found = one(contents)
    assert brief(found.messages) == WHOLE
    assert (found.session_id, found.user_id, found.metadata["tags"]) == ("s1", "u1", ["a"])
    assert (found.messages[1].usage, found.messages[1].producer.name) == (Usage(9, 4), "m")
    assert [fate for fate, _ in fates(contents)] == ["used", "used", "set_apart", "used", "used"]
    assert fates(contents)[2][1] == "encloses or serves model calls, and is none"


def test_a_page_of_the_api_holds_many_records(tmp_path: Path) -> None:
    contents = read(tmp_path, {"data": [FIRST, SECOND], "meta": {"page": 1, "totalPages": 1}})
    assert brief(one(contents).messages) == WHOLE


def test_an_observation_exported_twice_counts_once(tmp_path: Path) -> None:
    old = {**SECOND, "output": None, "updatedAt": "2026-01-01T00:00:05.500Z"}
    contents = read(tmp_path, old, FIRST, {**SECOND, "updatedAt": "2026-01-01T00:00:06.000Z"})
    assert brief(one(contents).messages) == WHOLE
    assert [fate for fate, _ in fates(contents)] == ["duplicate", "used", "used"]


def test_traces_of_one_session_that_repeat_the_conversation_are_one_trajectory(tmp_path: Path) -> None:
    more = [
        QUESTION,
        ASKED,
        RESULT,
        {"role": "assistant", "content": "It rains."},
        {"role": "user", "content": "Oslo?"},
    ]
    later = {**generation("g3", 20, more, "Sun."), "traceId": "t2"}
    scores = [score("correctness", 1)], [score("correctness", 0, id="s2", traceId="t2")]
    contents = read(
        tmp_path,
        download(FIRST, SECOND, sessionId="s1", scores=scores[0]),
        {"trace": trace(id="t2", sessionId="s1", scores=scores[1]), "observations": [later]},
    )
    found = one(contents)
    assert brief(found.messages)[4:] == [("user", "Oslo?", [], None), ("assistant", "Sun.", [], None)]
    assert sorted(found.identifiers.values()) == ["t1", "t2"]
    assert [(item.value, item.message_index) for item in found.scores] == [(1.0, 3), (0.0, 5)]
    assert fates(contents) == [("used", "")] * 2


def test_scores_in_a_trace_of_the_trace_an_answer_a_tool_and_a_span(tmp_path: Path) -> None:
    tool = observation("tool1", "TOOL", 3, name="w", input={"city": "Rome"}, output="rain", parent="root")
    contents = read(
        tmp_path,
        download(
            observation("root", "SPAN", 0),
            FIRST,
            tool,
            SECOND,
            scores=[
                score("toxicity", 0.9),
                score("passed", 1, dataType="BOOLEAN", stringValue="True"),
                score("tone", 0, dataType="CATEGORICAL", stringValue="rude", source="ANNOTATION", authorUserId="ann"),
                score("helpfulness", 0.5, observationId="g1"),
                score("usefulness", 0.2, observationId="root"),
            ],
        ),
    )
    found = {item.name: item for item in one(contents).scores}
    assert (found["toxicity"].value, found["toxicity"].direction) == (0.9, "lower_is_better")
    assert (found["passed"].value, found["passed"].label, found["passed"].message_index) == (1.0, None, None)
    assert (found["tone"].label, found["tone"].scorer, found["tone"].scorer_kind) == ("rude", "ann", "human")
    assert found["tone"].value is None  # without a configuration the number of a category is 0, whatever it is
    assert found["helpfulness"].message_index == 1
    assert (found["usefulness"].message_index, found["usefulness"].metadata["operation"]) == (None, "root")
    assert len(found) == 5


def test_a_correction_is_no_score_of_zero(tmp_path: Path) -> None:
    correction = score("output", 0, dataType="CORRECTION", longStringValue="It pours.", source="ANNOTATION")
    found = one(read(tmp_path, download(FIRST, SECOND, corrections=[correction]))).scores[0]
    assert (found.value, found.correction, found.scorer_kind) == (None, '"It pours."', "human")


def test_scores_apart_become_feedback_and_the_last_version_holds(tmp_path: Path) -> None:
    contents = read(
        tmp_path,
        score("correctness", 0, updatedAt="2026-01-02T00:00:00Z"),
        snake_case(score("correctness", 1, updatedAt="2026-01-03T00:00:00Z", observationId="g2")),
        score("csat", 4, traceId=None, sessionId="s1"),
        score("drift", 1, traceId=None, datasetRunId="d1"),
    )
    found: list[Feedback] = contents.feedback
    assert [(item.target, item.target_id, item.score.name, item.score.value) for item in found] == [
        ("call", "g2", "correctness", 1.0),
        ("session", "s1", "csat", 4.0),
    ]
    assert [fate for fate, _ in fates(contents)] == ["duplicate", "used", "used", "refused"]


def test_scores_and_observations_of_the_newest_interface(tmp_path: Path) -> None:
    """As the types of langfuse 5.0 have them: scores name their subject, observations tell of their trace."""
    common = {"projectId": "p", "source": "EVAL", "timestamp": "2026-01-01T00:00:00Z", "environment": "default"}
    subject = {"kind": "observation", "id": "g2", "traceId": "t1"}
    root = observation("agent", "AGENT", 0, traceName="run", sessionId="s1", userId="u1", tags=["a"])
    contents = read(
        tmp_path,
        {"data": [{**item, "sessionId": "s1"} for item in (FIRST, SECOND, root)], "meta": {"cursor": "x"}},
        {**common, "id": "a", "name": "tone", "dataType": "CATEGORICAL", "value": "rude", "subject": subject},
        {
            **common,
            "id": "b",
            "name": "ok",
            "dataType": "BOOLEAN",
            "value": True,
            "subject": {"kind": "trace", "id": "t1"},
        },
        {
            **common,
            "id": "c",
            "name": "x",
            "dataType": "CORRECTION",
            "value": "Y",
            "subject": {"kind": "session", "id": "s"},
        },
        {
            **common,
            "id": "d",
            "name": "x",
            "dataType": "NUMERIC",
            "value": 1,
            "subject": {"kind": "experiment", "id": "e"},
        },
    )
    found = one(contents)
    assert brief(found.messages) == WHOLE
    assert (found.session_id, found.user_id) == ("s1", "u1")
    assert (found.metadata["name"], found.metadata["tags"]) == ("run", ["a"])
    assert [(item.target, item.target_id) for item in contents.feedback] == [
        ("call", "g2"),
        ("trace", "t1"),
        ("session", "s"),
    ]
    scores = [(item.score.value, item.score.label, item.score.correction) for item in contents.feedback]
    assert scores == [(None, "rude", None), (1.0, None, None), (None, None, '"Y"')]
    assert [fate for fate, _ in fates(contents)] == ["used"] * 4 + ["refused"]


def test_a_prompt_of_the_new_results_only_gets_its_history_and_the_agents_system_prompt(tmp_path: Path) -> None:
    system = {"role": "system", "content": "Be brief."}
    agent = observation("agent", "AGENT", 0, input=[system, QUESTION], output=None)
    first = {**FIRST, "parentObservationId": "agent", "input": [QUESTION]}
    contents = read(tmp_path, download(agent, first, generation("g2", 5, [RESULT], "It rains.", parent="agent")))
    assert brief(one(contents).messages) == [("system", "Be brief.", [], None), *WHOLE]


def test_unreadable_prompts_are_built_from_answers_and_tool_runs(tmp_path: Path) -> None:
    """As one agent library is traced: an answer for each content block, prompts without a message."""
    noise = {"content": "role"}
    run = {"type": "tool_use", "id": "c2", "name": "w", "input": {"city": "Oslo"}}
    blocks = [{"type": "text", "text": "Two."}], [{**run, "id": "c1", "input": {"city": "Rome"}}], [run]
    answers = [{"role": "assistant", "content": content} for content in blocks]
    contents = read(
        tmp_path,
        download(
            generation("g1", 1, QUESTION, answers[0], parent="root"),
            generation("g2", 2, noise, answers[1], parent="root"),
            generation("g3", 3, noise, answers[2], parent="root"),
            observation("run2", "TOOL", 5, name="w", input={"input": {"city": "Oslo"}}, output="sun", parent="root"),
            observation("run1", "TOOL", 6, name="w", input={"input": {"city": "Rome"}}, output="rain", parent="root"),
            generation("g4", 8, noise, "Done.", parent="root"),
            observation("root", "SPAN", 0, input={"prompt": "Weather in Rome?", "system": "Be brief."}),
        ),
    )
    assert brief(one(contents).messages) == [
        ("system", "Be brief.", [], None),
        ("user", "Weather in Rome?", [], None),
        ("assistant", "Two.", ["w", "w"], None),
        ("tool", "rain", [], "c1"),
        ("tool", "sun", [], "c2"),
        ("assistant", "Done.", [], None),
    ]
    assert one(contents).messages[2].metadata["recorded_in_pieces"] == ["g1", "g2", "g3"]


def test_answers_whose_prompts_were_not_recorded_are_not_joined(tmp_path: Path) -> None:
    contents = read(tmp_path, generation("g1", 1, None, "One."), generation("g2", 2, None, "Two."))
    assert contents.trajectories == []
    assert fates(contents) == [("set_apart", "a model call whose prompt is not recorded")] * 2


def test_calls_told_one_by_one_in_a_later_prompt_are_one_turn(tmp_path: Path) -> None:
    calls = [{**CALL, "id": "c1"}, {**CALL, "id": "c2"}]
    told = [
        QUESTION,
        {"role": "assistant", "content": None, "tool_calls": calls[:1]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "assistant", "content": None, "tool_calls": calls[1:]},
        {"role": "tool", "tool_call_id": "c2", "content": "sun"},
    ]
    asked = {"role": "assistant", "content": None, "tool_calls": calls}
    found = one(read(tmp_path, download(generation("g1", 1, [QUESTION], asked), generation("g2", 4, told, "Done."))))
    assert [(row[0], row[3]) for row in brief(found.messages)] == [
        ("user", None),
        ("assistant", None),
        ("tool", "c1"),
        ("tool", "c2"),
        ("assistant", None),
    ]


def test_a_generation_around_generations_is_a_wrapper_and_the_last_result_is_kept(tmp_path: Path) -> None:
    outer = generation(
        "outer", 0, {"prompt": "Weather in Rome?"}, [{"toolCallId": "c1", "toolName": "w", "input": "{}"}]
    )
    inner = {**FIRST, "parentObservationId": "outer"}
    failed = observation(
        "run1", "TOOL", 3, name="w", parent="outer", level="ERROR", statusMessage="no net", output=None
    )
    found = one(read(tmp_path, download(outer, inner, failed)))
    assert brief(found.messages) == [*WHOLE[:2], ("tool", "", [], "c1")]
    error = found.messages[2].error
    assert error is not None
    assert (error.text, found.messages[2].id) == ("no net", "run1")


def test_a_trace_without_a_model_call_is_its_own_input_and_output(tmp_path: Path) -> None:
    bare = observation("root", "SPAN", 0, input={"args": ["Weather in Rome?"], "kwargs": {}}, output="It rains.")
    assert brief(one(read(tmp_path, download(bare))).messages) == [WHOLE[0], WHOLE[3]]
    number = observation("root", "SPAN", 0, input={"args": [3]}, output=9)
    contents = read(tmp_path, download(number))
    assert contents.trajectories == []
    assert [fate for fate, _ in fates(contents)] == ["set_apart"]


def test_a_judge_is_no_step_of_the_agent(tmp_path: Path) -> None:
    judge = observation("judge", "EVALUATOR", 7)
    marked = generation("g9", 8, [{"role": "user", "content": "Is it right?"}], "yes", parent="judge")
    contents = read(tmp_path, FIRST, SECOND, judge, marked)
    assert brief(one(contents).messages) == WHOLE
    assert [fate for fate, _ in fates(contents)] == ["used", "used", "set_apart", "set_apart"]
    assert "utility" in fates(contents)[3][1]


def test_an_unreadable_message_refuses_its_record_and_names_it(tmp_path: Path) -> None:
    contents = read(tmp_path, FIRST, {**SECOND, "input": [{"role": "narrator", "content": "x"}]})
    assert brief(one(contents).messages) == WHOLE[:2]
    assert [fate for fate, _ in fates(contents)] == ["used", "refused"]
    assert fates(contents)[1][1].startswith("g2.input[0].role: expected one of")


# What stands in the files, read by eye: messages as (role, calls, answered call's place), and scores.
SYSTEM, USER, ANSWER = ("system", 0), ("user", 0), ("assistant", 0)
REAL = {
    "claude-agent-2025-12-22": ([SYSTEM, USER, ("assistant", 2), ("tool", 0), ("tool", 0), ANSWER], 3),
    "google-gemini-2025-08-01": ([USER, ANSWER], 2),
    "koog-2025-08-26": ([SYSTEM, USER, ("assistant", 2), ("tool", 0), ("tool", 0), ANSWER], 0),
    "langgraph-python-2025-08-22": ([USER, USER, ("assistant", 1), ("tool", 0), ANSWER], 2),
    "llamaindex-2025-06-05": ([USER, ANSWER], 0),
    "microsoft-agent-2025-12-17": ([SYSTEM, USER, ("assistant", 1), ("tool", 0), ANSWER], 3),
    "openai-agents-2025-09-30": ([SYSTEM, USER, ("assistant", 1), ("tool", 0), ANSWER], 2),
    "pydantic-ai-2025-06-06": ([SYSTEM, USER, ANSWER], 1),
    "vercel-aisdk-2025-11-17": ([USER, ("assistant", 1), ("tool", 0)], 2),
    "vertex-ai-2025-08-01": ([USER, ANSWER], 2),
}


@needs_real_logs
@pytest.mark.parametrize("name", REAL)
def test_real_traces(name: str) -> None:
    contents = read_logs(REAL_LOGS / f"langfuse/{name}.trace.json")
    found = one(contents)
    messages, score_count = REAL[name]
    assert [(message.role, len(message.tool_calls)) for message in found.messages] == messages
    assert len(found.scores) == score_count
    assert fates(contents) == [("used", "")]
    calls = [call.id for message in found.messages for call in message.tool_calls]
    assert [message.tool_call_id for message in found.messages if message.role == "tool"] == calls
    assert all(message.producer.kind == "model" for message in found.messages if message.role == "assistant")


@needs_real_logs
@pytest.mark.parametrize("name", ["openai-agents-2025-09-30", "pydantic-ai-2025-06-06", "langgraph-python-2025-08-22"])
def test_messages_equal_those_of_langfuses_own_reading(name: str) -> None:
    """The answers of the generations in Langfuse's expected output, by id of the observation."""
    expected = json.loads((REAL_LOGS / f"langfuse-chatml-expected/{name}.chatml.json").read_text())
    found = {message.id: message for message in one(read_logs(REAL_LOGS / f"langfuse/{name}.trace.json")).messages}
    compared = 0
    for observation_id, wanted in expected.items():
        message = found.get(observation_id)
        if message is None or message.role != "assistant":
            continue
        data = wanted["output"]["data"][-1]
        data = data.get("json", {}).get("message", data)
        assert message.text == (data.get("content") or "")
        assert [(call.id, call.name, call.arguments_raw) for call in message.tool_calls] == [
            (call["id"], call["name"], call["arguments"]) for call in data.get("tool_calls", ())
        ]
        compared += 1
    assert compared == {"openai-agents-2025-09-30": 2, "pydantic-ai-2025-06-06": 1}.get(name, 2)


@needs_real_logs
def test_langfuses_expected_outputs_are_no_log() -> None:
    """They hold each message of a trace several times, by observation, without trace, time or type."""
    for path in sorted((REAL_LOGS / "langfuse-chatml-expected").iterdir()):
        contents = read_logs(path)
        assert (contents.trajectories, contents.formats) == ([], {})
        assert fates(contents) == [("refused", "not of a known log format")]
