"""OpenHands: sessions of events before its SDK, rows of its evaluations and resolver, conversations of its SDK."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offline_arl.logs.adapter import adapter_named
from offline_arl.logs.convert import AssembledGroup, PiecePosition, assemble_group, group_place, split_record
from offline_arl.logs.reading import LogContents, read_logs
from offline_arl.logs.records import LogFile, read_records
from offline_arl.trajectories.schema import (
    Branch,
    ImagePart,
    MessageError,
    Outcome,
    Producer,
    ReasoningPart,
    TextPart,
    TokenRecord,
    Trajectory,
    Usage,
)

REAL_LOGS = Path(__file__).resolve().parents[5] / "shared/real_logs/openhands"
Value = dict[str, Any]


def told(trajectory: Trajectory) -> list[tuple[str, str, str]]:
    """Role, producer and text (or called tools) of each message."""
    return [
        (message.role, message.producer.kind, message.text or ",".join(call.name for call in message.tool_calls))
        for message in trajectory.messages
    ]


def folders(folder: Path, format: str, files: dict[str, Value]) -> list[AssembledGroup]:
    """The groups of events that have a file each, with labels as `ingest` gives them."""
    groups: dict[str | None, list[tuple[PiecePosition, bytes]]] = {}
    for label, value in files.items():
        path = folder / label
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value))
        for record in read_records(LogFile(path, str(path), label)):
            split = split_record(adapter_named(format), record)
            assert split.refused is None
            for fragment in split.fragments:
                key, _ = group_place(fragment, record.label, str(path))
                groups.setdefault(key, []).append((PiecePosition.of(record), fragment.payload))
    return [assemble_group(format, key, pieces) for key, pieces in groups.items()]


# Events of V0.


def event(number: int, source: str, **more: Any) -> Value:
    return {"id": number, "timestamp": f"2025-01-01T00:00:{number:02}", "source": source, "message": "", **more}


def response(name: str, text: str, *calls: tuple[str, str, Value]) -> Value:
    listed = [
        {"id": call_id, "type": "function", "function": {"name": tool, "arguments": json.dumps(arguments)}}
        for call_id, tool, arguments in calls
    ]
    message = {"role": "assistant", "content": text, "tool_calls": listed}
    return {
        "id": name,
        "model": "lab/m",
        "choices": [{"finish_reason": "tool_calls", "index": 0, "message": message}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 4},
    }


def chosen(call_id: str, tool: str, of: Value) -> Value:
    total = len(of["choices"][0]["message"]["tool_calls"])
    return {"function_name": tool, "tool_call_id": call_id, "model_response": of, "total_calls_in_response": total}


USER = event(0, "user", action="message", args={"content": "Fix it.", "image_urls": ["a.png"]})


def session(folder: Path, *events: Value) -> LogContents:
    path = folder / "session.json"
    path.write_text(json.dumps(list(events), indent=1))
    contents = read_logs(path)
    assert contents.formats == {str(path): "openhands_v0"}
    return contents


def test_parallel_calls_of_one_response_are_one_answer(tmp_path: Path) -> None:
    both = response(
        "r1", "I look.", ("c1", "execute_bash", {"command": "ls"}), ("c2", "execute_bash", {"command": "pwd"})
    )
    contents = session(
        tmp_path,
        event(0, "agent", action="system", args={"content": "You fix bugs.", "tools": [{"function": {"name": "x"}}]}),
        {**USER, "id": 1},
        event(2, "agent", action="run", args={"command": "ls"}, tool_call_metadata=chosen("c1", "execute_bash", both)),
        event(3, "agent", action="run", args={"command": "pwd"}, tool_call_metadata=chosen("c2", "execute_bash", both)),
        event(
            4,
            "agent",
            observation="run",
            content="/work",
            cause=3,
            extras={"metadata": {"exit_code": 0}},
            tool_call_metadata=chosen("c2", "execute_bash", both),
        ),
        event(5, "agent", observation="run", content="a.py", cause=2),
        event(6, "environment", observation="agent_state_changed", content="", extras={"agent_state": "finished"}),
    )
    [trajectory] = contents.trajectories
    assert told(trajectory) == [
        ("system", "script", "You fix bugs."),
        ("user", "human", "Fix it."),
        ("assistant", "model", "I look."),
        ("tool", "environment", "/work"),
        ("tool", "environment", "a.py"),
    ]
    answer = trajectory.messages[2]
    assert [(call.id, call.arguments) for call in answer.tool_calls] == [
        ("c1", {"command": "ls"}),
        ("c2", {"command": "pwd"}),
    ]
    assert (answer.id, answer.usage, answer.producer) == ("r1", Usage(9, 4), Producer("model", "lab/m"))
    assert trajectory.messages[1].content == [TextPart("Fix it."), ImagePart("a.png")]
    assert [message.tool_call_id for message in trajectory.messages[3:]] == ["c2", "c1"]
    assert trajectory.messages[3].metadata == {
        "event": "4",
        "observation": "run",
        "extras": {"metadata": {"exit_code": 0}},
    }
    assert [tool["function"]["name"] for tool in trajectory.tools_at(0) or []] == ["x"]
    assert (trajectory.session_id, trajectory.model) == ("session", "lab/m")
    assert (trajectory.terminated, trajectory.stop_reason, trajectory.outcome) == (True, "finished", Outcome())
    assert [fate.fate for fate in contents.fates] == ["used"] * 6 + ["set_apart"]


def test_events_that_are_no_messages_and_events_logged_twice(tmp_path: Path) -> None:
    contents = session(
        tmp_path,
        event(1, "environment", action="change_agent_state", args={"agent_state": "init"}),
        event(2, "environment", observation="null", content="", cause=1),
        {**USER, "id": 3},
        {**USER, "id": 3},
        event(4, "agent", action="message", args={"content": "Hello."}),
        event(5, "agent", observation="run", content="of no call"),
        event(6, "agent", observation="error", content="Too fast."),
    )
    [trajectory] = contents.trajectories
    assert told(trajectory) == [("user", "human", "Fix it."), ("assistant", "model", "Hello.")]
    assert [(fate.fate, fate.reason) for fate in contents.fates] == [
        ("set_apart", "no message: change_agent_state"),
        ("set_apart", "no message: null"),
        ("used", ""),
        ("duplicate", "an event of this id came before"),
        ("used", ""),
        ("set_apart", "no message: run"),
        ("set_apart", "no message: error"),
    ]
    assert len(trajectory.metadata["other_events"]) == 4


def test_errors_and_rejections_are_results(tmp_path: Path) -> None:
    one = response("r1", "", ("c1", "execute_bash", {}), ("c2", "execute_bash", {}))
    [trajectory] = session(
        tmp_path,
        USER,
        event(1, "agent", action="run", args={}, tool_call_metadata=chosen("c1", "execute_bash", one)),
        event(2, "agent", action="run", args={}, tool_call_metadata=chosen("c2", "execute_bash", one)),
        event(3, "agent", observation="error", content="No shell.", cause=1),
        event(4, "user", observation="user_rejected", content="No.", cause=2),
    ).trajectories
    assert [message.error for message in trajectory.messages[2:]] == [
        MessageError("error", "No shell."),
        MessageError("user_rejected", "No."),
    ]


def test_commands_of_the_user_are_not_the_agents(tmp_path: Path) -> None:
    [trajectory] = session(
        tmp_path,
        USER,
        event(1, "user", action="run", args={"command": "git status"}),
        event(2, "user", observation="run", content="clean", cause=1),
    ).trajectories
    assert told(trajectory)[1:] == [("user", "human", "git status"), ("user", "environment", "clean")]


def test_a_condensation_starts_a_branch_with_its_summary(tmp_path: Path) -> None:
    one, two = response("r1", "One.", ("c1", "x", {})), response("r2", "Two.", ("c2", "x", {}))
    forget = {"forgotten_events_start_id": 1, "forgotten_events_end_id": 2, "summary": "It ran.", "summary_offset": 1}
    first, second = session(
        tmp_path,
        USER,
        event(1, "agent", action="run", args={}, tool_call_metadata=chosen("c1", "x", one)),
        event(2, "agent", observation="run", content="1", cause=1),
        event(3, "agent", action="run", args={}, tool_call_metadata=chosen("c2", "x", two)),
        event(4, "agent", observation="run", content="2", cause=3),
        event(5, "agent", action="condensation", args=forget),
        event(6, "agent", action="finish", args={"thought": "Done.", "outputs": {}}),
    ).trajectories
    assert [text for _, _, text in told(first)] == ["Fix it.", "One.", "1", "Two.", "2"]
    assert told(second) == [
        ("user", "human", "Fix it."),
        ("user", "summary", "It ran."),
        ("assistant", "copy", "Two."),
        ("tool", "environment", "2"),
        ("assistant", "model", "Done."),
    ]
    assert second.branch == Branch(first.trajectory_id, 1)
    assert (second.parent_trajectory_id, second.metadata["relation"]) == (first.trajectory_id, "compaction")
    assert (first.terminated, second.terminated) == (False, True)
    assert (first.stop_reason, second.stop_reason) == ("compaction", "finish")


def test_a_folder_of_event_files_is_one_session(tmp_path: Path) -> None:
    files = {
        f"sessions/{name}/events/{number}.json": value
        for name in ("a", "b")
        for number, value in enumerate((event(10, "agent", action="message", args={"content": "Hi."}), USER))
    }
    found = [trajectory for group in folders(tmp_path, "openhands_v0", files) for trajectory in group.trajectories]
    assert [trajectory.session_id for trajectory in found] == ["a", "b"]
    # In order of their numbers, not of their files.
    assert [text for _, _, text in told(found[0])] == ["Fix it.", "Hi."]


# Rows of evaluations and of the resolver.


def row(folder: Path, **more: Any) -> Trajectory:
    history = [
        {"action": "message", "content": "Fix it.", "wait_for_response": False},
        {"action": "run", "command": "ls", "thought": "I look.", "keep_prompt": True, "is_confirmed": "confirmed"},
        {"observation": "run", "content": "a.py", "command_id": 1, "exit_code": 0},
        {"action": "finish", "thought": "Done.", "outputs": {}},
    ]
    path = folder / "output.jsonl"
    path.write_text(json.dumps({"instance_id": "django-1", "history": history, **more}) + "\n")
    contents = read_logs(path)
    assert contents.formats == {str(path): "openhands_rows"}
    assert [fate.fate for fate in contents.fates] == ["used"]
    return contents.trajectories[-1]


def test_a_row_of_flat_events(tmp_path: Path) -> None:
    settings = {"agent_class": "CodeActAgent", "llm_config": {"model": "lab/m"}}
    trajectory = row(tmp_path, metadata=settings, test_result={"git_patch": "diff"}, error=None)
    assert told(trajectory) == [
        ("user", "human", "Fix it."),
        ("assistant", "model", "I look."),
        ("tool", "environment", "a.py"),
        ("assistant", "model", "Done."),
    ]
    [call] = trajectory.messages[1].tool_calls
    assert (call.name, call.arguments) == ("run", {"command": "ls"})
    assert trajectory.messages[2].tool_call_id == call.id
    assert trajectory.messages[1].metadata["args"]["is_confirmed"] == "confirmed"
    assert (trajectory.task_id, trajectory.group_id) == ("django-1", "django-1")
    assert (trajectory.agent, trajectory.model) == ("CodeActAgent", "lab/m")
    assert (trajectory.terminated, trajectory.stop_reason, trajectory.outcome) == (True, "finish", Outcome())
    assert trajectory.metadata["test_result"] == {"git_patch": "diff"}


def test_pairs_of_action_and_observation(tmp_path: Path) -> None:
    pairs = [
        [{"action": "message", "source": "user", "content": "Fix it."}, {"observation": "null", "content": ""}],
        [{"action": "run_ipython", "code": "1", "thought": ""}, {"observation": "run_ipython", "content": "one"}],
    ]
    trajectory = row(tmp_path, history=pairs)
    assert told(trajectory) == [
        ("user", "human", "Fix it."),
        ("assistant", "model", "run_ipython"),
        ("tool", "environment", "one"),
    ]
    assert trajectory.messages[2].tool_call_id == trajectory.messages[1].tool_calls[0].id


@pytest.mark.parametrize(
    ("more", "outcome", "ending"),
    [
        (
            {"test_result": {"report": {"resolved": True}}},
            Outcome("scored", True, 1.0, scorer="openhands_evaluation"),
            (True, False),
        ),
        (
            {"test_result": {"resolved": False}},
            Outcome("scored", False, 0.0, scorer="openhands_evaluation"),
            (True, False),
        ),
        ({"test_result": {"score": 0.25}}, Outcome("scored", None, 0.25, scorer="openhands_evaluation"), (True, False)),
        ({"success": False}, Outcome("scored", False, 0.0, scorer="openhands_resolver"), (True, False)),
        ({"error": "RuntimeError: Agent reached maximum iteration."}, Outcome(), (False, True)),
        ({"error": "RuntimeError: the runtime went away"}, Outcome("infrastructure_error"), (True, False)),
    ],
)
def test_verdicts_of_rows(tmp_path: Path, more: Value, outcome: Outcome, ending: tuple[bool, bool]) -> None:
    trajectory = row(tmp_path, **more)
    assert trajectory.outcome == outcome
    assert (trajectory.terminated, trajectory.truncated) == ending


def test_judgements_of_the_resolver(tmp_path: Path) -> None:
    issue = {"owner": "o", "repo": "r", "number": 5}
    trajectory = row(
        tmp_path,
        issue=issue,
        instance_id=None,
        success=True,
        comment_success=[True, False],
        result_explanation="Fixed.",
    )
    assert trajectory.task_id == "o/r#5"
    assert [(score.name, score.value, score.scorer_kind, score.comment) for score in trajectory.scores] == [
        ("success", 1.0, "model", "Fixed."),
        ("comment_success", 1.0, "model", None),
        ("comment_success", 0.0, "model", None),
    ]


# Events of the SDK.


def sdk(kind: str, name: str, source: str = "agent", **more: Any) -> Value:
    return {"kind": kind, "id": name, "timestamp": f"2026-01-01T00:00:0{len(name)}", "source": source, **more}


def texts(*values: str) -> list[Value]:
    return [{"type": "text", "text": value, "cache_prompt": False} for value in values]


def acted(name: str, call_id: str, answer: str, thought: str = "", **more: Any) -> Value:
    call = {"id": call_id, "name": "add", "arguments": '{"x": 1, "security_risk": "LOW"}', "origin": "completion"}
    return sdk(
        "ActionEvent",
        name,
        thought=texts(thought) if thought else [],
        action={"kind": "AddAction", "x": 1},
        tool_name="add",
        tool_call_id=call_id,
        tool_call=call,
        llm_response_id=answer,
        **more,
    )


def observed(name: str, call_id: str, text: str, **more: Any) -> Value:
    observation = {"kind": "AddObservation", "content": texts(text), "is_error": False, "total": 1, **more}
    return sdk(
        "ObservationEvent",
        name,
        "environment",
        tool_name="add",
        tool_call_id=call_id,
        observation=observation,
        action_id="a",
    )


ASKED = sdk(
    "MessageEvent", "u", "user", llm_message={"role": "user", "content": texts("1+2?")}, extended_content=texts("Hint.")
)
STATE = {
    "id": "conversation",
    "execution_status": "finished",
    "agent": {"kind": "Agent", "llm": {"model": "lab/m"}},
}


def conversation(folder: Path, *events: Value, state: Value | None = STATE) -> AssembledGroup:
    files = {f"c1/events/event-{number:05}-{value['id']}.json": value for number, value in enumerate(events)}
    if state is not None:
        files["c1/base_state.json"] = state
    [group] = folders(folder, "openhands_v1", files)
    return group


def test_a_conversation_of_the_sdk(tmp_path: Path) -> None:
    tools = [
        {"kind": "AddTool", "title": "add", "description": "Adds.", "action_type": "AddAction"},
        {"kind": "MCPTool", "title": "m", "mcp_tool": {"name": "find", "inputSchema": {"type": "object"}}},
    ]
    block = {"type": "thinking", "thinking": "Easy.", "signature": "seal"}
    sealed = {"type": "redacted_thinking", "data": "xx"}
    group = conversation(
        tmp_path,
        sdk(
            "SystemPromptEvent", "s", system_prompt=texts("You add.")[0], tools=tools, dynamic_context=texts("Now.")[0]
        ),
        ASKED,
        acted("a1", "c1", "r1", "I add.", thinking_blocks=[block, sealed], reasoning_content="Easy.", summary="adds"),
        acted("a2", "c2", "r1"),
        sdk("TokenEvent", "t1", prompt_token_ids=[1, 2], response_token_ids=[3]),
        observed("o1", "c1", "3"),
        observed("o2", "c2", "unlucky", is_error=True),
        acted("a3", "c3", "r2", reasoning_content="Hm."),
        sdk("AgentErrorEvent", "e1", tool_name="add", tool_call_id="c3", error="x is no number"),
        acted("a4", "c4", "r3"),
        sdk("UserRejectObservation", "j1", "environment", tool_name="add", tool_call_id="c4", rejection_reason="No."),
        sdk("MessageEvent", "m1", llm_message={"role": "assistant", "content": texts("3.")}, llm_response_id="r4"),
        sdk("PauseEvent", "p1", "user"),
    )
    [trajectory] = group.trajectories
    assert told(trajectory) == [
        ("system", "script", "You add.Now."),
        ("user", "human", "1+2?Hint."),
        ("assistant", "model", "I add."),
        ("tool", "environment", "3"),
        ("tool", "environment", "unlucky"),
        ("assistant", "model", "add"),
        ("tool", "environment", "x is no number"),
        ("assistant", "model", "add"),
        ("tool", "environment", "No."),
        ("assistant", "model", "3."),
    ]
    first = trajectory.messages[2]
    assert first.content == [
        ReasoningPart("Easy.", "seal"),
        ReasoningPart("", "xx", encrypted=True),
        TextPart("I add."),
    ]
    assert [(call.id, call.arguments_raw) for call in first.tool_calls] == [
        ("c1", '{"x": 1, "security_risk": "LOW"}'),
        ("c2", '{"x": 1, "security_risk": "LOW"}'),
    ]
    assert first.id == "r1"
    assert first.tokens == TokenRecord([3], "unknown", prompt_token_ids=[1, 2])
    assert first.metadata == {"action": {"kind": "AddAction", "x": 1}, "summary": "adds", "event": "a1"}
    assert trajectory.messages[3].metadata["observation"] == {"kind": "AddObservation", "is_error": False, "total": 1}
    assert [message.error for message in trajectory.messages if message.role == "tool"] == [
        None,
        MessageError("error", "unlucky"),
        MessageError("error", "x is no number"),
        MessageError("rejected", "No."),
    ]
    assert trajectory.messages[5].reasoning == "Hm."
    assert [tool["function"] for tool in trajectory.tools_at(0) or []] == [
        {"name": "add", "description": "Adds."},
        {"name": "find", "parameters": {"type": "object"}},
    ]
    assert (trajectory.session_id, trajectory.agent, trajectory.model) == ("conversation", "Agent", "lab/m")
    assert (trajectory.terminated, trajectory.stop_reason) == (True, "finished")
    # The state comes first: "base_state.json" is before "events/" in the alphabet.
    assert group.fates == [*[("used", "")] * 13, ("set_apart", "no message: PauseEvent")]


def test_a_conversation_without_its_state(tmp_path: Path) -> None:
    finish = {"id": "c1", "name": "finish", "arguments": '{"message": "Done."}'}
    end = {**acted("a1", "c1", "r1"), "tool_call": finish, "tool_name": "finish"}
    [trajectory] = conversation(tmp_path, ASKED, end, state=None).trajectories
    assert (trajectory.session_id, trajectory.terminated, trajectory.stop_reason) == ("c1", True, "finish")


def test_a_condensation_of_the_sdk(tmp_path: Path) -> None:
    condensed = sdk(
        "Condensation",
        "x",
        "environment",
        forgotten_event_ids=["a1", "o1"],
        summary="It added.",
        summary_offset=1,
        llm_response_id="r9",
    )
    first, second = conversation(
        tmp_path, ASKED, acted("a1", "c1", "r1"), observed("o1", "c1", "3"), condensed, acted("a2", "c2", "r2")
    ).trajectories
    assert told(first) == [("user", "human", "1+2?Hint."), ("assistant", "model", "add"), ("tool", "environment", "3")]
    assert told(second) == [
        ("user", "human", "1+2?Hint."),
        ("user", "summary", "It added."),
        ("assistant", "model", "add"),
    ]
    assert second.branch == Branch(first.trajectory_id, 1)
    assert (second.metadata["relation"], second.metadata["state"]) == ("compaction", STATE)
    assert (first.terminated, second.terminated) == (False, True)


def test_forks_of_a_conversation(tmp_path: Path) -> None:
    events = [
        {**ASKED, "parent_id": None},
        acted("a1", "c1", "r1", parent_id="u"),
        observed("o1", "c1", "3"),
        sdk("MessageEvent", "left", llm_message={"role": "assistant", "content": texts("Three.")}, parent_id="o1"),
        sdk("MessageEvent", "kept", llm_message={"role": "assistant", "content": texts("It is 3.")}, parent_id="o1"),
    ]
    group = conversation(tmp_path, *events, state={**STATE, "leaf_event_id": "kept"})
    main, fork = group.trajectories
    assert [text for _, _, text in told(main)] == ["1+2?Hint.", "add", "3", "It is 3."]
    assert told(fork)[1:] == [
        ("assistant", "copy", "add"),
        ("tool", "environment", "3"),
        ("assistant", "model", "Three."),
    ]
    assert fork.branch == Branch(main.trajectory_id, 3)
    assert (main.terminated, fork.terminated) == (True, False)
    circle = [{**ASKED, "parent_id": "a1"}, acted("a1", "c1", "r1", parent_id="u")]
    group = conversation(tmp_path / "other", *circle)
    assert [fate for fate, _ in group.fates] == ["set_apart", "refused", "refused"]


def test_a_broken_event_does_not_take_the_others_with_it(tmp_path: Path) -> None:
    broken = sdk("MessageEvent", "b", llm_message={"role": "robot"})
    group = conversation(tmp_path, ASKED, broken)
    assert len(group.trajectories[0].messages) == 1
    assert ("refused", "MessageEvent.llm_message.role: unknown role 'robot'") in group.fates


@pytest.mark.parametrize(
    "value", [None, {}, {"id": 1, "source": {}, "action": "run"}, {"kind": [], "id": "", "source": "user"}]
)
def test_other_records_are_not_recognized(value: Any) -> None:
    for name in ("openhands_v0", "openhands_rows", "openhands_v1"):
        assert not adapter_named(name).recognizes(value)


# Of the files themselves: fates of the records, and messages, answers, calls and how it ended.
REAL = {
    "basic.json": ({"used": 4}, [(4, 2, 2, "finish")]),
    "basic_gui_mode.json": ({"used": 10, "set_apart": 8}, [(10, 5, 4, "awaiting_user_input")]),
    "basic_interactions.json": ({"used": 6}, [(6, 3, 1, "finish")]),
    "resolver_output.jsonl": ({"used": 2}, [(8, 4, 4, "finish"), (44, 22, 22, "finish")]),
}


@pytest.mark.parametrize("name", REAL)
def test_real_files(name: str) -> None:
    path = REAL_LOGS / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    contents = read_logs(path)
    fates, rows = REAL[name]
    assert {fate: contents.count(fate) for fate in ("used", "set_apart", "refused", "duplicate")} == {
        "set_apart": 0,
        "refused": 0,
        "duplicate": 0,
        **fates,
    }
    assert [
        (
            len(trajectory.messages),
            len(trajectory.step_indices()),
            sum(len(message.tool_calls) for message in trajectory.messages),
            trajectory.stop_reason,
        )
        for trajectory in contents.trajectories
    ] == rows


def test_the_real_resolver_rows() -> None:
    path = REAL_LOGS / "resolver_output.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    found = read_logs(path).trajectories
    assert [trajectory.task_id for trajectory in found] == ["neubig/pr-viewer#5", "neubig/pr-viewer#1"]
    assert [trajectory.outcome for trajectory in found] == [
        Outcome("scored", True, 1.0, scorer="openhands_resolver")
    ] * 2
    assert all(trajectory.metadata["git_patch"].startswith("diff --git") for trajectory in found)
