"""Claude Code sessions: the tree of a session, what is whose, and the fate of every line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from offline_arl.logs.reading import LogContents, read_logs
from offline_arl.trajectories.schema import Branch, MessageError, Outcome, Producer, Trajectory, Usage

REAL_LOGS = Path(__file__).resolve().parents[5] / "shared/real_logs/claude-code"
SESSION = "s"
Record = dict[str, Any]


def user(uuid: str, parent: str | None, content: Any, **envelope: Any) -> Record:
    return record("user", uuid, parent, {"role": "user", "content": content}, envelope)


def answer(uuid: str, parent: str | None, *blocks: Record, message_id: str | None = None, **envelope: Any) -> Record:
    message: Record = {
        "id": message_id or f"msg_{uuid}",
        "type": "message",
        "role": "assistant",
        "model": envelope.pop("model", "claude"),
        "content": list(blocks),
        "stop_reason": envelope.pop("stop_reason", None),
        "usage": {"input_tokens": 1, "output_tokens": envelope.pop("output_tokens", 1)},
    }
    return record("assistant", uuid, parent, message, {"requestId": f"req_{message['id']}", **envelope})


def record(kind: str, uuid: str, parent: str | None, message: Record, envelope: Record) -> Record:
    return {
        "type": kind,
        "uuid": uuid,
        "parentUuid": parent,
        "sessionId": SESSION,
        "timestamp": "2026-01-01T00:00:00.000Z",
        "isSidechain": False,
        "message": message,
        **envelope,
    }


def text(value: str) -> Record:
    return {"type": "text", "text": value}


def call(call_id: str, name: str = "Bash", **arguments: Any) -> Record:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def result(call_id: str, content: str = "ok", **more: Any) -> list[Record]:
    return [{"type": "tool_result", "tool_use_id": call_id, "content": content, **more}]


def read(folder: Path, *files: Sequence[Record | str]) -> LogContents:
    paths = []
    for number, records in enumerate(files):
        path = folder / f"{number}.jsonl"
        path.write_text("".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in records))
        paths.append(path)
    contents = read_logs(paths, format="claude_code")
    assert len(contents.fates) == sum(map(len, files))
    return contents


def outline(trajectory: Trajectory) -> list[str]:
    """Role and text, or the ids of calls, of each message."""
    return [
        f"{message.role[0]} {message.text}" + "".join(f" +{c.id}" for c in message.tool_calls)
        for message in trajectory.messages
    ]


def fates(contents: LogContents) -> list[str]:
    return [item.fate for item in contents.fates]


def test_lines_of_one_response_are_one_turn_and_parallel_results_follow_one_another(tmp_path: Path) -> None:
    contents = read(
        tmp_path,
        [
            user("u", None, "Write both."),
            answer("a1", "u", {"type": "thinking", "thinking": "Two.", "signature": "S"}, message_id="m"),
            answer("a2", "a1", text("Writ"), message_id="m", output_tokens=3),
            answer("a3", "a2", text("Writing."), message_id="m", output_tokens=5),
            answer("a4", "a3", call("t1", path="a"), message_id="m", output_tokens=8),
            answer("a5", "a4", call("t2", path="b"), message_id="m", output_tokens=9, stop_reason="tool_use"),
            user("r1", "a4", result("t1"), toolUseResult={"filePath": "a"}),
            user("r2", "a5", result("t2")),
            answer("a6", "r2", text("Done."), stop_reason="end_turn"),
        ],
    )
    (trajectory,) = contents.trajectories
    assert outline(trajectory) == ["u Write both.", "a Writing. +t1 +t2", "t ok", "t ok", "a Done."]
    turn = trajectory.messages[1]
    assert (turn.reasoning, turn.usage, turn.id) == ("Two.", Usage(1, 9), "m")
    assert turn.metadata["uuids"] == ["a1", "a2", "a3", "a4", "a5"]
    assert [message.name for message in trajectory.messages[2:4]] == ["Bash", "Bash"]
    assert trajectory.messages[2].metadata == {"toolUseResult": {"filePath": "a"}}
    assert (trajectory.stop_reason, trajectory.model, trajectory.branch) == ("end_turn", "claude", None)
    assert fates(contents) == ["used"] * 9


def test_a_fork_gives_a_branch_and_an_unanswered_one_is_set_apart(tmp_path: Path) -> None:
    contents = read(
        tmp_path,
        [
            user("u1", None, "Sort."),
            answer("a1", "u1", text("How?")),
            user("u2", "a1", "Typo"),
            user("u3", "a1", "Quick."),
            answer("a3", "u3", text("Quick it is.")),
            user("u4", "a1", "Merge."),
            answer("a4", "u4", text("Merge it is.")),
        ],
    )
    first, second = contents.trajectories
    assert outline(first) == ["u Sort.", "a How?", "u Quick.", "a Quick it is."]
    assert outline(second) == ["u Sort.", "a How?", "u Merge.", "a Merge it is."]
    assert (first.branch, second.branch) == (None, Branch(first.trajectory_id, 2))
    assert (first.step_indices(), second.step_indices()) == ([1, 3], [3])  # the shared turn is a step once
    assert second.messages[1].producer == Producer("copy", "claude")
    assert fates(contents) == ["used", "used", "set_apart", "used", "used", "used", "used"]
    assert contents.fates[2].reason == "led to no answer of the model"


def test_ids_stay_when_the_session_grows(tmp_path: Path) -> None:
    start = [user("u1", None, "A"), answer("a1", "u1", text("B")), user("u2", "a1", "C"), answer("a2", "u2", text("D"))]
    fork = [user("u3", "a1", "E"), answer("a3", "u3", text("F"))]
    small = read(tmp_path, start)
    grown = read(tmp_path, start, [user("u4", "a2", "G"), *fork, answer("a4", "u4", text("H"))])
    assert grown.trajectories[0].trajectory_id == small.trajectories[0].trajectory_id
    assert [len(trajectory.messages) for trajectory in grown.trajectories] == [6, 4]


def test_sub_agents_are_children_whose_task_the_parent_wrote(tmp_path: Path) -> None:
    side: Record = {"isSidechain": True, "agentId": "x1"}
    contents = read(
        tmp_path,
        [
            user("u1", None, "Look around."),
            answer("a1", "u1", call("t1", "Task", prompt="Find files.", subagent_type="explorer"), message_id="m1"),
            user("r1", "a1", result("t1", "3 files"), toolUseResult={"agentId": "x1", "status": "completed"}),
            answer("a2", "r1", text("There are 3.")),
        ],
        [
            answer("c1", None, call("t1", "Task", prompt="Find files."), message_id="m1", **side),
            user("s1", "c1", "Find files.", **side),
            answer("s2", "s1", text("3 files"), **side),
        ],
    )
    parent, child = contents.trajectories
    assert child.parent_trajectory_id == parent.trajectory_id
    assert (child.agent, child.metadata["tool_call_id"], child.metadata["agent_id"]) == ("explorer", "t1", "x1")
    assert [message.producer for message in child.messages] == [
        Producer("copy"),
        Producer("script", "parent_agent"),
        Producer("model", "claude"),
    ]
    assert child.step_indices() == [2]
    assert parent.step_indices() == [1, 3]


def test_old_sidechains_without_an_agent_id_are_found_by_their_prompt(tmp_path: Path) -> None:
    side: Record = {"isSidechain": True}
    contents = read(
        tmp_path,
        [
            user("u1", None, "Go."),
            answer("a1", "u1", call("t1", "Task", prompt="P1"), call("t2", "Task", prompt="P2")),
            user("s1", None, "P1", **side),
            user("s2", None, "P2", **side),
            answer("s3", "s1", text("one"), **side),
            answer("s4", "s2", text("two"), **side),
            user("r1", "a1", result("t1")),
            user("r2", "a1", result("t2")),
            answer("a2", "r2", text("Done")),
        ],
    )
    main, one, two = contents.trajectories
    assert outline(main) == ["u Go.", "a  +t1 +t2", "t ok", "t ok", "a Done"]
    assert (outline(one), outline(two)) == (["u P1", "a one"], ["u P2", "a two"])
    assert [(t.parent_trajectory_id, t.metadata["tool_call_id"]) for t in (one, two)] == [
        (main.trajectory_id, "t1"),
        (main.trajectory_id, "t2"),
    ]


def test_what_follows_a_compaction_begins_with_the_summary_and_is_linked(tmp_path: Path) -> None:
    boundary = {
        "type": "system",
        "subtype": "compact_boundary",
        "uuid": "b",
        "parentUuid": None,
        "logicalParentUuid": "a1",
        "sessionId": SESSION,
        "compactMetadata": {"trigger": "auto", "preTokens": 155116},
    }
    contents = read(
        tmp_path,
        [
            user("u1", None, "Start."),
            answer("a1", "u1", text("Started.")),
            boundary,
            user("c", "b", "This session is being continued: ...", isCompactSummary=True),
            user("u2", "c", "Go on."),
            answer("a2", "u2", text("Going on.")),
        ],
    )
    before, after = contents.trajectories
    assert outline(before) == ["u Start.", "a Started."]
    assert before.stop_reason == "compaction"
    assert [message.producer.kind for message in after.messages] == ["summary", "human", "model"]
    assert after.parent_trajectory_id == before.trajectory_id
    assert after.metadata["compaction"] == {"trigger": "auto", "preTokens": 155116}
    assert before.episode_id == after.episode_id == SESSION
    assert fates(contents) == ["used"] * 6


def test_rejections_and_interruptions_are_judgements_of_the_step(tmp_path: Path) -> None:
    refusal = (
        "The user doesn't want to proceed with this tool use. The tool use was rejected. "
        "To tell you how to proceed, the user said:\nKeep it simple."
    )
    contents = read(
        tmp_path,
        [
            user("u1", None, "Refactor."),
            answer("a1", "u1", call("t1", "Edit")),
            user("r1", "a1", result("t1", refusal, is_error=True)),
            answer("a2", "r1", call("t2")),
            user("r2", "a2", [*result("t2"), text("[Request interrupted by user for tool use]")]),
        ],
    )
    (trajectory,) = contents.trajectories
    assert trajectory.messages[2].error == MessageError("user_rejected", "Keep it simple.")
    assert [
        (score.name, score.value, score.message_index, score.direction, score.scorer_kind, score.comment)
        for score in trajectory.scores
    ] == [
        ("user_rejection", 1.0, 1, "lower_is_better", "human", "Keep it simple."),
        ("user_interruption", 1.0, 3, "lower_is_better", "human", None),
    ]
    assert [message.producer.kind for message in trajectory.messages[4:]] == ["environment", "script"]
    assert trajectory.outcome == Outcome()


def test_a_notice_of_a_failed_request_is_no_answer_of_the_model(tmp_path: Path) -> None:
    notice = answer("a1", "u1", text("API Error: 529"), model="<synthetic>", isApiErrorMessage=True)
    (trajectory,) = read(tmp_path, [user("u1", None, "Hi"), notice]).trajectories
    assert trajectory.step_indices() == []
    assert trajectory.messages[1].error == MessageError("api_error", "API Error: 529")
    assert (trajectory.outcome.status, trajectory.model) == ("infrastructure_error", None)


def test_lines_that_are_damaged_or_repeated_do_not_tear_the_session(tmp_path: Path) -> None:
    contents = read(
        tmp_path,
        [
            user("u1", None, "A"),
            answer("a1", "u1", text("B")),
            user("u1", None, "A"),
            '"massive error"',
            {"silly": "this"},
            {"type": "user", "uuid": "u2", "parentUuid": "a1", "sessionId": SESSION, "message": "error"},
            '{"type": "user", "uuid": "u2',
            {"type": "file-history-snapshot", "messageId": "u1", "snapshot": {}},
            {"type": "attachment", "uuid": "n1", "parentUuid": "u2", "sessionId": SESSION, "attachment": {"x": 1}},
            answer("a2", "n1", text("C")),
        ],
    )
    (trajectory,) = contents.trajectories
    assert outline(trajectory) == ["u A", "a B", "a C"]
    assert [(item.fate, item.reason) for item in contents.fates[2:9]] == [
        ("duplicate", "the uuid u1 was recorded before"),
        ("refused", "expected an object, got a string"),
        ("refused", "type: expected a string, got null"),
        ("refused", "message: expected an object, got a string"),
        ("refused", "invalid JSON: Input data was truncated"),
        ("set_apart", "a note of type 'file-history-snapshot'"),
        ("set_apart", "a note of type 'attachment'"),
    ]


def test_a_result_that_hangs_elsewhere_goes_to_the_turn_that_it_names(tmp_path: Path) -> None:
    contents = read(
        tmp_path,
        [
            user("u", None, "Both."),
            answer("a1", "u", call("t1"), message_id="m"),
            answer("a2", "a1", call("t2"), message_id="m"),
            user("r1", "u", result("t1", "one"), sourceToolAssistantUUID="a1"),
            user("r2", "r1", result("t2", "two"), sourceToolAssistantUUID="a2"),
            answer("a3", "r2", text("Done.")),
        ],
    )
    assert [outline(t) for t in contents.trajectories] == [["u Both.", "a  +t1 +t2", "t one", "t two", "a Done."]]


def test_parents_that_go_in_a_circle_end_somewhere(tmp_path: Path) -> None:
    contents = read(tmp_path, [answer("a", "b", text("A")), answer("b", "a", text("B")), answer("c", "c", text("C"))])
    assert sorted(" / ".join(outline(trajectory)) for trajectory in contents.trajectories) == ["a A / a B", "a C"]
    assert fates(contents) == ["used"] * 3


def test_a_session_without_an_answer_is_set_apart(tmp_path: Path) -> None:
    contents = read(tmp_path, [user("u1", None, "Anyone?"), user("u2", "u1", "Hello?")])
    assert contents.trajectories == []
    assert [item.reason for item in contents.fates] == ["the model never answered"] * 2


def test_a_session_spread_over_files_is_one(tmp_path: Path) -> None:
    contents = read(tmp_path, [user("u2", "a1", "More"), answer("a2", "u2", text("D"))], [user("u1", None, "A")])
    assert [outline(t) for t in contents.trajectories] == [["u More", "a D"]]
    contents = read(
        tmp_path, [user("u2", "a1", "More"), answer("a2", "u2", text("D"))], [answer("a1", None, text("B"))]
    )
    assert [outline(t) for t in contents.trajectories] == [["a B", "u More", "a D"]]


def real(name: str) -> LogContents:
    path = REAL_LOGS / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    contents = read_logs(path)
    assert set(contents.formats.values()) == {"claude_code"}
    return contents


def test_real_fork() -> None:
    contents = real("claude_forked_session.jsonl")
    assert fates(contents) == ["used"] * 14
    first, second = contents.trajectories
    assert [len(t.messages) for t in (first, second)] == [6, 10]
    assert second.branch == Branch(first.trajectory_id, 2)
    assert [c.name for t in (first, second) for m in t.messages for c in m.tool_calls] == ["Write", "Write", "Edit"]


def test_real_edge_cases() -> None:
    contents = real("edge_cases.jsonl")
    assert [contents.count(fate) for fate in ("used", "refused", "set_apart", "duplicate")] == [11, 7, 1, 0]
    assert [item.record.line for item in contents.fates if item.fate == "refused"] == [10, 11, 13, 14, 15, 16, 18]
    session, todo = contents.trajectories
    assert [m.role[0] for m in session.messages] == list("uauatuuuau")
    assert [m.producer.kind for m in session.messages if m.role == "user"] == [
        *["human"] * 2,
        *["script"] * 3,
        "human",
    ]
    assert session.messages[4].error == MessageError("tool_error")
    assert session.messages[9].text.startswith("Testing special characters: café")
    assert (todo.session_id, len(todo.messages)) == ("todowrite_session", 1)
    arguments = todo.messages[0].tool_calls[0].arguments
    assert arguments is not None
    assert arguments["todos"][0] == "broken_todo"


def test_real_sessions_in_one_line() -> None:
    contents = real("session_b.jsonl")
    assert [[m.role[0] for m in t.messages] for t in contents.trajectories] == [["u", "a", "u"]]
    contents = real("todowrite_examples.jsonl")
    (trajectory,) = contents.trajectories
    assert (len(contents.fates), contents.count("set_apart")) == (12, 1)
    assert [m.role[0] for m in trajectory.messages] == list("uaataatuaat")
    assert [c.name for m in trajectory.messages for c in m.tool_calls] == ["TodoWrite"] * 3
