"""Conversations in the Anthropic form, and the event stream of Claude Code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from offline_arl.logs.providers.anthropic_chat import AnthropicChatAdapter
from offline_arl.logs.reading import LogContents, read_logs
from offline_arl.trajectories.schema import Outcome, Producer, Usage


def read(folder: Path, records: Sequence[Any]) -> LogContents:
    path = folder / "log.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    contents = read_logs(path)
    assert len(contents.fates) == len(records)
    return contents


CALL = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "add", "input": {"a": 1}}]}
RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "2"}]}


def test_a_record_in_the_anthropic_form(tmp_path: Path) -> None:
    record = {
        "system": [{"type": "text", "text": "S"}],
        "messages": [{"role": "user", "content": "1+1?"}, CALL, RESULT],
        "tools": [{"name": "add", "input_schema": {"type": "object"}}],
        "task_id": 7,
        "success": True,
        "note": "kept",
    }
    contents = read(tmp_path, [record, {"messages": [{"role": "user", "content": 7}], "tools": [{"input_schema": {}}]}])
    assert set(contents.formats.values()) == {"anthropic_chat"}
    (trajectory,) = contents.trajectories
    assert [(m.role, m.text) for m in trajectory.messages] == [
        ("system", "S"),
        ("user", "1+1?"),
        ("assistant", ""),
        ("tool", "2"),
    ]
    assert trajectory.tools_at(0) == [
        {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    ]
    assert (trajectory.task_id, trajectory.outcome) == ("7", Outcome("scored", success=True))
    assert trajectory.metadata == {"note": "kept"}
    assert contents.fates[1].reason == "messages[0].content: expected a string or a list, got a number"


@pytest.mark.parametrize(
    ("record", "is_of_the_form"),
    [
        ({"messages": [CALL]}, True),
        ({"messages": [RESULT]}, True),
        ({"messages": [{"role": "user", "content": "x"}], "tools": [{"name": "f", "input_schema": {}}]}, True),
        ({"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", "function": {}}]}, False),
        ({"messages": [{"role": "assistant", "tool_calls": []}, CALL]}, False),
        ({"messages": [{"role": "tool", "content": "x"}, CALL]}, False),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}, False),
        ({"messages": [{"role": [], "content": [{"type": {}}]}]}, False),
        ({"messages": []}, False),
    ],
)
def test_the_form_is_told_from_openai_chat(record: Any, is_of_the_form: bool) -> None:
    assert AnthropicChatAdapter().recognizes(record) is is_of_the_form


def event(kind: str, uuid: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "session_id": "s", "uuid": uuid, **fields}


def said(uuid: str, message_id: str, *blocks: Any, parent: str | None = None, output: int = 1) -> dict[str, Any]:
    message = {"id": message_id, "role": "assistant", "model": "claude", "content": list(blocks)}
    return event("assistant", uuid, message={**message, "usage": {"output_tokens": output}}, parent_tool_use_id=parent)


def heard(uuid: str, content: Any, parent: str | None = None) -> dict[str, Any]:
    return event("user", uuid, message={"role": "user", "content": content}, parent_tool_use_id=parent)


def test_the_event_stream_of_a_run(tmp_path: Path) -> None:
    task = {"type": "tool_use", "id": "t1", "name": "Task", "input": {"prompt": "Count."}}
    contents = read(
        tmp_path,
        [
            event("system", "0", subtype="init", tools=["Bash", "Task"], model="claude", cwd="/w"),
            said("1", "m1", {"type": "text", "text": "On it."}),
            said("2", "m1", task, output=6),
            heard("3", "Count.", parent="t1"),
            said("4", "m2", {"type": "text", "text": "3"}, parent="t1"),
            heard("5", [{"type": "tool_result", "tool_use_id": "t1", "content": "3"}]),
            said("6", "m3", {"type": "text", "text": "Three."}),
            said("6", "m3", {"type": "text", "text": "Three."}),
            event("stream_event", "7", event={}),
            event("result", "8", subtype="success", is_error=False, num_turns=2, total_cost_usd=0.5, result="Three."),
        ],
    )
    assert set(contents.formats.values()) == {"claude_stream"}
    run, agent = contents.trajectories
    assert [(m.role[0], m.text, len(m.tool_calls)) for m in run.messages] == [
        ("a", "On it.", 1),
        ("t", "3", 0),
        ("a", "Three.", 0),
    ]
    assert run.messages[0].usage == Usage(None, 6)
    assert (run.terminated, run.stop_reason, run.metadata["total_cost_usd"]) == (True, "success", 0.5)
    assert [tool["function"]["name"] for tool in run.tools_at(0) or []] == ["Bash", "Task"]
    assert agent.parent_trajectory_id == run.trajectory_id
    assert [m.producer for m in agent.messages] == [Producer("script", "parent_agent"), Producer("model", "claude")]
    assert [item.fate for item in contents.fates] == [*["used"] * 7, "duplicate", "set_apart", "used"]


@pytest.mark.parametrize(
    ("how", "truncated", "status"),
    [("error_max_turns", True, "unscored"), ("error_during_execution", False, "infrastructure_error")],
)
def test_how_a_run_was_cut(tmp_path: Path, how: str, truncated: bool, status: str) -> None:
    end = event("result", "2", subtype=how, is_error=True, num_turns=1)
    (trajectory,) = read(tmp_path, [said("1", "m", {"type": "text", "text": "x"}), end]).trajectories
    assert (trajectory.terminated, trajectory.truncated, trajectory.outcome.status) == (False, truncated, status)
