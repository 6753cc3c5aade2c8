"""Logs of Inspect: what the model saw and gave, whose it was, and how it was judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offline_arl.logs.adapter import RawRecord, RecordRefusedError, RecordSetApartError
from offline_arl.logs.benchmarks.inspect_ai import InspectAdapter
from offline_arl.logs.reading import read_logs
from offline_arl.trajectories.schema import (
    Branch,
    FilePart,
    ImagePart,
    MessageError,
    Outcome,
    Producer,
    ReasoningPart,
    TextPart,
    Trajectory,
    Usage,
)
from offline_arl.trajectories.validate import problems_of

REAL_LOGS = Path(__file__).resolve().parents[5] / "shared/real_logs/inspect-ai"
Value = dict[str, Any]
EVALUATION = {
    "task": "sums",
    "run_id": "run",
    "eval_id": "evaluation",
    "model": "lab/m",
    "dataset": {"sample_ids": [1]},
}
TOOL = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}
SYSTEM = {"id": "s", "role": "system", "content": "Be right."}
QUESTION = {"id": "q", "role": "user", "content": "1+2?", "source": "input"}


def answer(uuid: str, text: str, *calls: tuple[str, str, Value], **more: Any) -> Value:
    listed = [{"id": call_id, "function": name, "arguments": arguments} for call_id, name, arguments in calls]
    return {
        "id": uuid,
        "role": "assistant",
        "content": text,
        "source": "generate",
        **({"tool_calls": listed} if calls else {}),
        **more,
    }


def result(call_id: str, text: str, **more: Any) -> Value:
    return {"id": f"r{call_id}", "role": "tool", "content": text, "tool_call_id": call_id, "function": "add", **more}


def call(uuid: str, prompt: list[Value], given: Value | None, span: str | None = None, **more: Any) -> Value:
    choices = (
        [] if given is None else [{"message": given, "stop_reason": "tool_calls" if "tool_calls" in given else "stop"}]
    )
    return {
        "event": "model",
        "uuid": uuid,
        "span_id": span,
        "timestamp": f"2026-01-01T00:00:0{uuid[-1]}Z",
        "completed": f"2026-01-01T00:00:0{uuid[-1]}.5Z",
        "model": "lab/m",
        "input": prompt,
        "tools": [TOOL],
        "config": {},
        "output": {"model": "m-1", "choices": choices, "usage": {"input_tokens": 5, "output_tokens": 2}},
        **more,
    }


def span(name: str, kind: str, parent: str | None = None) -> Value:
    return {"event": "span_begin", "id": name, "name": name, "type": kind, "parent_id": parent}


def log(**sample: Any) -> Value:
    full = {"id": 1, "epoch": 1, "input": "1+2?", "target": "3", "messages": [], "uuid": "u1", **sample}
    return {
        "version": 2,
        "status": "success",
        "eval": EVALUATION,
        "plan": {"steps": [{"solver": "react"}]},
        "samples": [full],
    }


def convert(value: Value) -> list[Trajectory]:
    raw = json.dumps(value).encode()
    found = InspectAdapter().convert(RawRecord("log.json", "log.json", 0, raw))
    for trajectory in found:
        assert [str(item) for item in problems_of(trajectory) if item.severity == "error"] == []
    return found


def only(value: Value) -> Trajectory:
    [trajectory] = convert(value)
    return trajectory


def told(trajectory: Trajectory) -> list[tuple[str, str, str]]:
    """Role, producer and text (or called tools) of each message."""
    return [
        (message.role, message.producer.kind, message.text or ",".join(call.name for call in message.tool_calls))
        for message in trajectory.messages
    ]


def test_a_sample_becomes_the_conversation_that_the_model_saw() -> None:
    first = answer("a1", "", ("c1", "add", {"x": 1}), ("c2", "add", {"x": 2**70}))
    state = [SYSTEM, QUESTION, first, result("c1", "1"), result("c2", "2"), answer("a2", "It is 3.")]
    events = [
        call("m1", state[:2], first),
        call("m2", state[:5], state[5]),
    ]
    trajectory = only(
        log(
            messages=state,
            events=events,
            output={"choices": [{"message": state[5], "stop_reason": "stop"}]},
            scores={"includes": {"value": "C", "answer": "3", "explanation": "There it is."}},
            metadata={"level": 2},
            started_at="2026-01-01T00:00:00Z",
            completed_at="2026-01-01T00:01:00Z",
        )
    )
    assert told(trajectory) == [
        ("system", "script", "Be right."),
        ("user", "script", "1+2?"),
        ("assistant", "model", "add,add"),
        ("tool", "environment", "1"),
        ("tool", "environment", "2"),
        ("assistant", "model", "It is 3."),
    ]
    asked = trajectory.messages[2]
    assert [(item.id, item.arguments_raw) for item in asked.tool_calls] == [
        ("c1", '{"x":1}'),
        ("c2", '{"x":1180591620717411303424}'),
    ]
    assert (asked.id, asked.timestamp) == ("a1", "2026-01-01T00:00:01.5Z")
    assert (asked.usage, asked.producer) == (Usage(5, 2), Producer("model", "m-1"))
    assert asked.metadata == {"source": "generate", "stop_reason": "tool_calls", "call_id": "m1"}
    assert trajectory.messages[3].tool_call_id == "c1"
    assert trajectory.tools_at(0) == [{"type": "function", "function": TOOL}]
    assert (trajectory.task_id, trajectory.group_id, trajectory.task_type) == ("sums/1", "sums/1", "sums")
    assert (trajectory.episode_id, trajectory.agent, trajectory.model) == ("u1", "react", "m-1")
    assert trajectory.identifiers == {"run": "run", "eval": "evaluation", "sample": "u1"}
    assert (trajectory.started_at, trajectory.ended_at) == ("2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z")
    assert (trajectory.terminated, trajectory.truncated, trajectory.stop_reason) == (True, False, "stop")
    assert trajectory.outcome == Outcome("scored", True, 1.0, scorer="includes")
    [score] = trajectory.scores
    assert (score.name, score.value, score.label, score.comment) == ("includes", None, "C", "There it is.")
    assert (score.scorer_kind, score.direction) == ("code", "higher_is_better")
    assert score.metadata == {"answer": "3"}
    metadata = trajectory.metadata
    assert (metadata["target"], metadata["epoch"], metadata["metadata"]) == ("3", 1, {"level": 2})
    assert "sample_ids" not in metadata["run"]["dataset"]


def test_epochs_are_attempts_of_one_group() -> None:
    value = log(messages=[QUESTION, answer("a", "3")])
    value["samples"].append({**value["samples"][0], "epoch": 2, "uuid": "u2"})
    value["samples"].append({**value["samples"][0], "id": "other", "uuid": "u3"})
    found = convert(value)
    assert [trajectory.group_id for trajectory in found] == ["sums/1", "sums/1", "sums/other"]
    assert [trajectory.episode_id for trajectory in found] == ["u1", "u2", "u3"]
    assert len({trajectory.trajectory_id for trajectory in found}) == 3


def test_pools_and_attachments_are_put_in_place() -> None:
    given = answer("a1", "attachment://h1")
    pool = [SYSTEM, {**QUESTION, "content": "attachment://h2"}, {"role": "user", "content": "elsewhere"}]
    event = call("m1", [], given, input_refs=[[0, 1], [1, 2]])
    for place in ({"message_pool": pool}, {"events_data": {"messages": pool, "calls": []}}):
        trajectory = only(
            log(
                messages=[SYSTEM, {**QUESTION, "content": "tc://h2"}, {**given, "content": "attachment://gone"}],
                events=[event],
                attachments={"h1": "The answer.", "h2": "The question."},
                **place,
            )
        )
        assert [message.text for message in trajectory.messages] == ["Be right.", "The question.", "The answer."]
    beyond = {**event, "input_refs": [[0, 4]]}
    with pytest.raises(RecordRefusedError, match=r"samples\[0\]\.events\[0\]\.input_refs\[0\]: \[0, 4\] is no range"):
        convert(log(events=[beyond], message_pool=pool))


def test_parts_of_a_message() -> None:
    content = [
        {"type": "reasoning", "reasoning": "Let me see.", "signature": "seal"},
        {"type": "reasoning", "reasoning": "gAAA", "redacted": True, "summary": "It thought."},
        {"type": "text", "text": "3", "refusal": None},
        {"type": "image", "image": "data:image/png;base64,AA", "detail": "low"},
        {"type": "audio", "audio": "a.wav", "format": "wav"},
        {"type": "document", "document": "d.pdf", "filename": "d.pdf", "mime_type": "application/pdf"},
        {"type": "data", "data": {"internal": 1}},
        {"type": "tool_use", "tool_type": "web_search", "id": "w", "name": "search", "arguments": "{}", "result": "r"},
    ]
    [message] = only(log(messages=[{"role": "assistant", "content": content, "source": "generate"}])).messages
    assert message.content == [
        ReasoningPart("Let me see.", "seal"),
        ReasoningPart("It thought.", "gAAA", encrypted=True),
        TextPart("3"),
        ImagePart("data:image/png;base64,AA", "low"),
        FilePart("a.wav", "audio/wav"),
        FilePart("d.pdf", "application/pdf"),
    ]
    assert message.metadata["other_parts"] == [
        {"index": 1, "part": {"redacted": True, "summary": "It thought."}},
        {"index": 5, "part": {"filename": "d.pdf"}},
        {"index": 6, "part": content[6]},
        {"index": 7, "part": content[7]},
    ]


def test_calls_that_could_not_be_parsed_and_errors_of_tools() -> None:
    bad = answer("a1", "", ("c1", "add", {"raw": "{x"}))
    bad["tool_calls"][0]["parse_error"] = "no JSON"
    failed = result("c1", "", error={"type": "parsing", "message": "no JSON"})
    trajectory = only(log(messages=[QUESTION, bad, failed, {**result("c1", "x"), "tool_error": "old"}]))
    [logged] = trajectory.messages[1].tool_calls
    assert (logged.arguments_raw, logged.arguments, logged.parse_error) == ('{"raw":"{x"}', None, "no JSON")
    assert trajectory.messages[2].error == MessageError("parsing", "no JSON")
    assert trajectory.messages[3].error == MessageError("unknown", "old")


def test_what_was_sampled_counts_and_not_what_the_agent_made_of_it() -> None:
    # react takes the submitted answer out of the call and leaves no trace of the call in the messages.
    sampled = answer("a1", "Done.", ("c1", "submit", {"answer": "3"}))
    rewritten = answer("a1", "Done.\n\n3")
    tool = {"event": "tool", "id": "c1", "function": "submit", "arguments": {"answer": "3"}, "result": "3"}
    trajectory = only(log(messages=[QUESTION, rewritten], events=[call("m1", [QUESTION], sampled), tool]))
    assert told(trajectory) == [
        ("user", "script", "1+2?"),
        ("assistant", "model", "Done."),
        ("tool", "environment", "3"),
    ]
    assert [item.name for item in trajectory.messages[1].tool_calls] == ["submit"]
    assert trajectory.metadata["rewritten_messages"] == [{"index": 1, "message": rewritten}]


def test_answers_that_no_call_gave_are_not_the_models() -> None:
    example = {"role": "assistant", "content": "2", "source": "input"}
    scripted = {"role": "assistant", "content": "Hello."}
    elsewhere = answer("x", "From another run.")
    prompt = [QUESTION, example, scripted, elsewhere, QUESTION]
    state = [*prompt, answer("a1", "3"), {"role": "user", "content": "Thanks.", "source": "operator"}]
    trajectory = only(log(messages=state, events=[call("m1", prompt, answer("a1", "3"))]))
    assert [kind for _, kind, _ in told(trajectory)] == [
        "script",
        "demonstration",
        "script",
        "copy",
        "script",
        "model",
        "human",
    ]


def test_a_history_that_was_cut_starts_a_branch_and_the_verdict_is_the_last_ones() -> None:
    state = [SYSTEM, QUESTION]
    events: list[Value] = []
    for number in (1, 2):
        events.append(call(f"m{number}", list(state), answer(f"a{number}", "", (f"c{number}", "add", {"n": number}))))
        state += [events[-1]["output"]["choices"][0]["message"], result(f"c{number}", str(number))]
    events.append({"event": "compaction", "type": "trim"})
    events.append(call("m3", [*state[:2], *state[4:]], answer("a3", "3")))
    first, second = convert(log(messages=[*state, answer("a3", "3")], events=events, scores={"s": {"value": "I"}}))
    assert [text for _, _, text in told(first)] == ["Be right.", "1+2?", "add", "1", "add", "2"]
    assert told(second) == [
        ("system", "script", "Be right."),
        ("user", "script", "1+2?"),
        ("assistant", "copy", "add"),
        ("tool", "environment", "2"),
        ("assistant", "model", "3"),
    ]
    assert second.branch == Branch(first.trajectory_id, 2)
    assert (second.parent_trajectory_id, second.metadata["relation"]) == (first.trajectory_id, "compaction")
    assert (first.stop_reason, second.stop_reason) == ("compaction", "stop")
    assert first.outcome == Outcome()
    assert first.scores == []
    assert second.outcome == Outcome("scored", False, 0.0, scorer="s")
    assert first.episode_id == second.episode_id == "u1"


def test_a_summary_is_no_answer_and_its_writing_no_step() -> None:
    ask = {"role": "user", "content": "Summarize."}
    summary = {"role": "user", "content": "It went well.", "metadata": {"summary": True}}
    events = [
        call("m1", [QUESTION], answer("a1", "", ("c1", "add", {}))),
        call(
            "m2", [QUESTION, answer("a1", "", ("c1", "add", {})), result("c1", "1"), ask], answer("a2", "It went well.")
        ),
        {"event": "compaction", "type": "summary"},
        call("m3", [QUESTION, summary], answer("a3", "3")),
    ]
    _, second = convert(log(messages=[QUESTION, answer("a3", "3")], events=events))
    assert told(second)[1] == ("user", "summary", "It went well.")
    assert second.metadata["calls_set_apart"] == [
        {"call_id": "m2", "reason": "writes the summary of a compaction", "model": "m-1", "answer": "It went well."}
    ]


def test_sub_agents_are_children_and_scorers_are_told_apart() -> None:
    helper = [{"role": "system", "content": "You help."}, {"role": "user", "content": "Add."}]
    asked = answer("a1", "", ("c1", "helper", {}))
    events = [
        span("solvers", "solvers"),
        span("main", "agent", "solvers"),
        call("m1", [SYSTEM, QUESTION], asked, "main"),
        span("tool", "tool", "main"),
        {"event": "tool", "id": "c1", "function": "helper", "span_id": "main", "agent_span_id": "sub", "result": "3"},
        span("sub", "agent", "tool"),
        call("m2", helper, answer("b1", "3"), "sub"),
        call("m3", [SYSTEM, QUESTION, asked, result("c1", "3")], answer("a2", "It is 3."), "main"),
        span("scorers", "scorers"),
        span("graded", "scorer", "scorers"),
        call("m4", [{"role": "user", "content": "Grade it."}], answer("g", "C"), "graded"),
    ]
    state = [SYSTEM, QUESTION, asked, result("c1", "3"), answer("a2", "It is 3.")]
    scores = {"graded": {"value": 1}, "exact": {"value": True}}
    main, sub = convert(log(messages=state, events=events, scores=scores))
    assert (main.agent, sub.agent) == ("main", "sub")
    assert (sub.parent_trajectory_id, sub.metadata["relation"]) == (main.trajectory_id, "sub_agent")
    assert told(sub) == [("system", "script", "You help."), ("user", "script", "Add."), ("assistant", "model", "3")]
    assert sub.outcome == Outcome()
    assert [item["reason"] for item in main.metadata["calls_set_apart"]] == ["made by a scorer"]
    assert [(score.name, score.value, score.scorer_kind) for score in main.scores] == [
        ("graded", 1.0, "model"),
        ("exact", 1.0, "code"),
    ]
    assert main.outcome == Outcome("scored", None, 1.0, {"graded": 1.0, "exact": 1.0}, "graded")


def test_the_replay_at_the_start_of_a_branch_is_no_new_work() -> None:
    first = answer("a1", "", ("c1", "add", {}))
    events = [
        span("main", "agent"),
        call("m1", [QUESTION], first, "main"),
        span("fork", "branch", "main"),
        call("m2", [QUESTION], first, "fork"),
        {"event": "branch", "span_id": "fork", "from_anchor": "x"},
        call("m3", [QUESTION, first, result("c1", "1")], answer("b1", "One."), "fork"),
        call("m4", [QUESTION, first, result("c1", "1")], answer("a2", "1."), "main"),
    ]
    state = [QUESTION, first, result("c1", "1"), answer("a2", "1.")]
    main, fork = convert(log(messages=state, events=events))
    assert [text for _, _, text in told(main)] == ["1+2?", "add", "1", "1."]
    assert told(fork)[1:] == [
        ("assistant", "copy", "add"),
        ("tool", "environment", "1"),
        ("assistant", "model", "One."),
    ]
    assert (fork.branch, fork.metadata["relation"]) == (Branch(main.trajectory_id, 3), "rewritten")
    assert main.metadata["calls_set_apart"][0]["reason"] == "replayed at the start of a branch"


def test_several_choices_are_branches_from_one_prompt() -> None:
    event = call("m1", [QUESTION], answer("a1", "3"))
    event["output"]["choices"].append({"message": answer("a2", "4"), "stop_reason": "stop"})
    first, second = convert(log(messages=[QUESTION, answer("a1", "3")], events=[event]))
    assert [told(first)[-1], told(second)[-1]] == [("assistant", "model", "3"), ("assistant", "model", "4")]
    assert (second.branch, second.metadata["relation"]) == (Branch(first.trajectory_id, 1), "choice")


def test_calls_of_a_model_that_failed_are_no_answers() -> None:
    failed = call("m1", [QUESTION], answer("e", ""), error="overloaded")
    pending = call("m2", [QUESTION], None, pending=True)
    trajectory = only(
        log(messages=[QUESTION, answer("a", "3")], events=[failed, pending, call("m3", [QUESTION], answer("a", "3"))])
    )
    assert [text for _, _, text in told(trajectory)] == ["1+2?", "3"]
    assert trajectory.metadata["model_errors"] == [
        {"call_id": "m1", "timestamp": "2026-01-01T00:00:01Z", "error": "overloaded"}
    ]


@pytest.mark.parametrize(
    ("scores", "outcome"),
    [
        ({"s": {"value": "P"}}, Outcome("scored", None, 0.5, scorer="s")),
        ({"s": {"value": "N"}}, Outcome("scored", False, 0.0, scorer="s")),
        ({"s": {"value": False}}, Outcome("scored", False, 0.0, scorer="s")),
        ({"s": {"value": "yes"}}, Outcome("scored", True, 1.0, scorer="s")),
        ({"s": {"value": 0.25}}, Outcome("scored", None, 0.25, scorer="s")),
        ({"s": {"value": "essay"}}, Outcome(scorer="s")),
        ({"s": {"value": float("nan")}}, Outcome(scorer="s")),
        ({"s": {"value": {"a": 1, "b": "C", "c": None}}}, Outcome("scored", None, None, {"s.a": 1.0, "s.b": 1.0}, "s")),
        ({"s": {"value": [0, 2]}}, Outcome("scored", None, None, {"s[0]": 0.0, "s[1]": 2.0}, "s")),
        ({"a": {"value": "I"}, "b": {"value": "C"}}, Outcome("scored", False, 0.0, {"a": 0.0, "b": 1.0}, "a")),
        ({}, Outcome()),
        (None, Outcome()),
        ({"toxicity": {"value": True}}, Outcome(scorer="toxicity")),
        ({"hallucination_rate": {"value": 1.0}}, Outcome(scorer="hallucination_rate")),
        ({"toxicity": {"value": "C"}}, Outcome("scored", True, 1.0, scorer="toxicity")),
    ],
)
def test_outcomes(scores: Any, outcome: Outcome) -> None:
    assert only(log(messages=[QUESTION], scores=scores)).outcome == outcome


def test_the_headline_metric_names_the_deciding_scorer() -> None:
    value = log(messages=[QUESTION], scores={"a": {"value": "I"}, "b": {"value": "C"}})
    value["eval"] = {**EVALUATION, "headline_metric": {"scorer": "b"}}
    assert only(value).outcome == Outcome("scored", True, 1.0, {"a": 0.0, "b": 1.0}, "b")


def test_every_scalar_of_a_score_is_a_score() -> None:
    logged = {
        "s": {"value": {"toxicity": 0.9, "kind": "rude"}, "history": [{"value": 1}]},
        "n": {"value": float("nan")},
    }
    scores = only(log(messages=[QUESTION], scores=logged)).scores
    assert [(score.name, score.value, score.label, score.direction) for score in scores] == [
        ("s.toxicity", 0.9, None, "lower_is_better"),
        ("s.kind", None, "rude", "unknown"),
        ("n", None, None, "unknown"),
    ]
    assert scores[0].metadata == {"history": [{"value": 1}]}
    assert scores[2].metadata == {"value": "NaN"}


def test_limits_errors_and_invalidation() -> None:
    limited = only(log(messages=[QUESTION], limit={"type": "token", "limit": 9}, scores={"s": {"value": "I"}}))
    assert (limited.terminated, limited.truncated, limited.stop_reason) == (False, True, "token_limit")
    assert limited.outcome.success is False
    failed = only(log(messages=[QUESTION], error={"message": "boom"}, scores={"s": {"value": "I"}}))
    assert (failed.terminated, failed.truncated, failed.stop_reason) == (False, False, "error")
    assert failed.outcome == Outcome("infrastructure_error")
    assert len(failed.scores) == 1
    invalid = only(log(messages=[QUESTION], invalidation={"author": "x"}, scores={"s": {"value": "C"}}))
    assert invalid.outcome == Outcome()
    cut = {"choices": [{"message": answer("a", "th"), "stop_reason": "max_tokens"}]}
    assert only(log(messages=[QUESTION, answer("a", "th")], output=cut)).truncated
    unknown = only(log(messages=[QUESTION]))
    assert (unknown.terminated, unknown.truncated) == (False, False)


def test_the_oldest_layout() -> None:
    value = log(
        messages=[QUESTION, answer("a", "3")],
        score={"value": "C"},
        transcript={
            "events": [
                {"event": "step", "action": "begin", "type": "solver", "name": "generate"},
                call("m1", [{**QUESTION, "content": "tc://h"}], answer("a", "3")),
                {"event": "step", "action": "end", "type": "solver", "name": "generate"},
                {"event": "step", "action": "begin", "type": "scorer", "name": "score"},
                call("m2", [{"role": "user", "content": "Grade."}], answer("g", "C")),
                {"event": "step", "action": "end", "type": "scorer", "name": "score"},
            ],
            "content": {"h": "1+2?"},
        },
    )
    trajectory = only(value)
    assert [text for _, _, text in told(trajectory)] == ["1+2?", "3"]
    assert trajectory.messages[1].usage == Usage(5, 2)
    assert trajectory.outcome == Outcome("scored", True, 1.0, scorer="score")
    assert trajectory.scores[0].scorer_kind == "model"


def test_what_is_refused_and_what_is_set_apart() -> None:
    with pytest.raises(RecordRefusedError, match=r"samples\[0\]\.messages\[0\]\.role: expected one of system, user"):
        convert(log(messages=[{"role": "robot"}]))
    with pytest.raises(
        RecordRefusedError, match=r"messages\[0\]\.tool_calls\[0\]\.function: expected a string, got null"
    ):
        convert(log(messages=[{"role": "assistant", "tool_calls": [{}]}]))
    with pytest.raises(RecordSetApartError, match="a log without samples"):
        convert({"eval": EVALUATION, "status": "started", "samples": []})
    with pytest.raises(RecordSetApartError, match="no sample has a message"):
        convert(log(messages=[]))


@pytest.mark.parametrize(
    "value", [None, [], 3, {}, {"eval": 1}, {"events": [1]}, {"events": [{"event": 1}]}, {"samples": 1}]
)
def test_other_records_are_not_recognized(value: Any) -> None:
    assert not InspectAdapter().recognizes(value)


# What the real files hold, from the files themselves: messages, answers, calls, success, score, tools.
REAL = {
    "2024-11-05T13-31-45-05-00_input-task_8zXjbRzCWrL9GXiXo2vus9.json": [(3, 1, 0, True, 1.0, 0)],
    "2025-05-12T20-27-36-04-00_browser.json": [(10, 5, 4, True, 1.0, 8)],
    "log_formats.eval": [(3, 1, 0, False, 0.0, 0)],
    "log_images_tc.json": [(3, 1, 0, False, 0.0, 0)],
    "log_message_deduplication.eval": [(12, 6, 5, None, 0.0, 2)],
    "log_tool_call_error.json": [(11, 0, 0, None, None, None)],
    "utility_branch_warmup.json": [(4, 1, 1, None, None, 0), (3, 1, 0, None, None, 0), (3, 1, 0, None, None, 0)],
    "utility_subagent_loop.json": [(4, 1, 1, None, None, 0), (3, 1, 0, None, None, 0)],
}


def real(name: str) -> list[Trajectory]:
    path = REAL_LOGS / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    contents = read_logs(path)
    assert [fate.fate for fate in contents.fates] == ["used"]
    assert contents.formats == {str(path): "inspect_ai"}
    return contents.trajectories


@pytest.mark.parametrize("name", REAL)
def test_real_files(name: str) -> None:
    found = real(name)
    assert [
        (
            len(trajectory.messages),
            len(trajectory.step_indices()),
            sum(len(message.tool_calls) for message in trajectory.messages),
            trajectory.outcome.success,
            trajectory.outcome.score,
            None if (tools := trajectory.tools_at(0)) is None else len(tools),
        )
        for trajectory in found
    ] == REAL[name]


def test_real_attachments_and_images() -> None:
    [browser] = real("2025-05-12T20-27-36-04-00_browser.json")
    assert browser.messages[0].text.startswith("Use the web browser tool to navigate to ")
    assert not [message for message in browser.messages if "attachment://" in message.text]
    [images] = real("log_images_tc.json")
    parts = images.messages[1].content or []
    assert [type(part) for part in parts] == [TextPart, ImagePart]
    assert isinstance(parts[1], ImagePart)
    assert parts[1].uri.startswith("data:image/")


def test_real_errors_of_tools() -> None:
    [trajectory] = real("log_tool_call_error.json")
    assert [message.error and message.error.type for message in trajectory.messages] == [
        "parsing",
        "timeout",
        "parsing",
        "unicode_decode",
        "permission",
        "file_not_found",
        "is_a_directory",
        "limit",
        "approval",
        "unknown",
        "output_limit",
    ]


def test_real_branches_and_utility_calls() -> None:
    main, fork, again = real("utility_branch_warmup.json")
    # The main agent asks twice with the same prompt, and so does the branch; the warm-up is none of their steps.
    assert [text for _, _, text in told(main)] == ["You are the main assistant.", "go", "search", "found it"]
    assert [told(item)[-1] for item in (fork, again)] == [("assistant", "model", "ok")] * 2
    assert fork.branch == again.branch == Branch(main.trajectory_id, 2)
    assert (fork.metadata["relation"], again.metadata["relation"]) == ("regenerated", "regenerated")
    assert [(item["call_id"], item["reason"]) for item in again.metadata["calls_set_apart"]] == [
        ("w1", "primes a cache")
    ]
    main, again = real("utility_subagent_loop.json")
    assert (again.branch, again.metadata["relation"]) == (Branch(main.trajectory_id, 1), "rewritten")
    assert [(item["call_id"], item["reason"]) for item in again.metadata["calls_set_apart"]] == [
        ("m2", "a helper agent of one turn")
    ]
