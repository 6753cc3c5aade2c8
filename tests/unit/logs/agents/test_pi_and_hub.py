"""Pi sessions, session traces, and rows of agent traces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from offline_arl.logs.reading import LogContents, read_logs
from offline_arl.trajectories.schema import Branch, MessageError, Producer, ReasoningPart, Trajectory, Usage

PI: dict[str, Any] = {"type": "session", "version": 3, "id": "s", "timestamp": "2026-01-01T00:00:00Z", "cwd": "/w"}


def entry(kind: str, record_id: str, parent: str | None, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "id": record_id, "parentId": parent, "timestamp": "2026-01-01T00:00:01Z", **fields}


def said(name: str, parent: str | None, role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return entry("message", name, parent, message={"role": role, "content": content, **fields})


def text(value: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": value}]


def read(folder: Path, records: Sequence[Any]) -> LogContents:
    path = folder / "log.jsonl"
    path.write_text("".join(f"{record if isinstance(record, str) else json.dumps(record)}\n" for record in records))
    contents = read_logs(path)
    assert len(contents.fates) == len(records)
    return contents


def outline(trajectory: Trajectory) -> list[str]:
    return [f"{m.role[0]} {m.producer.kind} {m.text}" for m in trajectory.messages]


def test_a_pi_session_with_a_branch(tmp_path: Path) -> None:
    call = {"type": "toolCall", "id": "t", "name": "bash", "arguments": {"command": "ls"}}
    usage = {"input": 9, "output": 2, "cacheRead": 1, "cost": {"total": 0.5}}
    contents = read(
        tmp_path,
        [
            PI,
            entry("model_change", "m", None, modelId="gpt"),
            said("u1", "m", "user", "List."),
            said(
                "a1",
                "u1",
                "assistant",
                [{"type": "thinking", "thinking": "Hm."}, *text("Listing."), call],
                model="gpt",
                usage=usage,
                stopReason="toolUse",
            ),
            said(
                "r1", "a1", "toolResult", text("none"), toolCallId="t", toolName="bash", isError=True, details={"x": 1}
            ),
            said("a2", "r1", "assistant", text("Empty."), stopReason="stop"),
            said("b1", "r1", "bashExecution", None, command="pwd", output="/w", excludeFromContext=True),
            entry("branch_summary", "s1", "r1", summary="Left.", fromId="a2"),
            said("u2", "s1", "user", text("Again.")),
            said("a3", "u2", "assistant", text("Stopped"), stopReason="aborted"),
            said("x", "a3", "wizard", "?"),
            entry("session_info", "i", "a3", name="Listing"),
        ],
    )
    assert set(contents.formats.values()) == {"pi_sessions"}
    first, second = contents.trajectories
    assert outline(first) == ["u human List.", "a model Listing.", "t environment none", "a model Empty."]
    assert outline(second)[3:] == ["u summary Left.", "u human Again.", "a model Stopped"]
    assert second.branch == Branch(first.trajectory_id, 3)
    assert not set(second.step_indices()) & set(range(3))  # the shared turns are steps of the first only
    assert first.messages[1].text == second.messages[1].text
    turn = first.messages[1]
    assert turn.content is not None
    assert (turn.content[0], turn.usage) == (ReasoningPart("Hm."), Usage(9, 2, 0.5))
    assert (turn.tool_calls[0].arguments, turn.producer) == ({"command": "ls"}, Producer("model", "gpt"))
    assert (first.messages[2].error, first.messages[2].metadata) == (MessageError("tool_error"), {"details": {"x": 1}})
    assert [(score.name, score.message_index) for score in second.scores] == [("user_interruption", 5)]
    assert (first.metadata["title"], first.stop_reason) == ("Listing", "stop")
    assert [item.fate for item in contents.fates] == [
        *("used", "set_apart", "used", "used", "used", "used", "set_apart"),
        *("used", "used", "used", "refused", "set_apart"),
    ]


def test_a_compaction_of_pi_keeps_the_last_messages(tmp_path: Path) -> None:
    contents = read(
        tmp_path,
        [
            PI,
            said("u1", None, "user", "One"),
            said("a1", "u1", "assistant", text("1")),
            said("u2", "a1", "user", "Two"),
            said("a2", "u2", "assistant", text("2")),
            entry("compaction", "c", "a2", summary="One done.", firstKeptEntryId="u2", tokensBefore=5),
            said("u3", "c", "user", "Three"),
            said("a3", "u3", "assistant", text("3")),
        ],
    )
    before, after = contents.trajectories
    assert outline(before)[-1] == "a model 2"
    assert outline(after) == ["u summary One done.", "u copy Two", "a copy 2", "u human Three", "a model 3"]
    assert after.parent_trajectory_id == before.trajectory_id
    assert after.step_indices() == [4]


def test_a_session_trace(tmp_path: Path) -> None:
    call = {"id": "c", "function": {"name": "add", "arguments": '{"a":1}'}}
    contents = read(
        tmp_path,
        [
            {"type": "session", "harness": "my-agent", "id": "b1", "name": "Sum"},
            {"type": "message", "message": {"role": "user", "content": "Add."}},
            {
                "type": "message",
                "message": {
                    "role": "assistant",
                    "content": "",
                    "reasoningContent": "Easy.",
                    "toolCalls": [call],
                    "model": "m",
                    "timestamp": 1749139903250,
                },
            },
            {"type": "message", "message": {"role": "tool", "content": "2", "toolCallId": "c"}},
            {"type": "message", "message": {"role": "assistant", "content": "2"}},
        ],
    )
    (trajectory,) = contents.trajectories
    assert outline(trajectory) == ["u human Add.", "a model ", "t environment 2", "a model 2"]
    assert (trajectory.messages[1].reasoning, trajectory.messages[1].timestamp) == ("Easy.", "2025-06-05T16:11:43.250Z")
    assert (trajectory.messages[2].tool_call_id, trajectory.messages[2].name) == ("c", "add")
    assert (trajectory.agent, trajectory.session_id, trajectory.model) == ("my-agent", "b1", "m")
    assert [item.fate for item in contents.fates] == ["used"] * 5


def test_rows_of_agent_traces(tmp_path: Path) -> None:
    log = [
        {
            "type": "user",
            "uuid": "u",
            "parentUuid": None,
            "sessionId": "s",
            "message": {"role": "user", "content": "Hi"},
        },
        {
            "type": "assistant",
            "uuid": "a",
            "parentUuid": "u",
            "sessionId": "s",
            "message": {"id": "m", "role": "assistant", "model": "claude", "content": text("Hello")},
        },
    ]
    trace = "\n".join([*map(json.dumps, log), '{"type": "user", "mess'])
    contents = read(
        tmp_path,
        [
            {"harness": "claude_code", "session_id": "s", "trace": trace, "messages": [], "num_tool_calls": 0},
            {"harness": "other", "session_id": "o", "trace": None, "messages": [{"role": "user", "content": "Hi"}]},
            {"harness": "other", "session_id": "o", "trace": "free text"},
        ],
    )
    assert set(contents.formats.values()) == {"hub_agent_traces"}
    first, second = contents.trajectories
    assert outline(first) == ["u human Hi", "a model Hello"]
    assert (first.source.format, first.session_id, first.model) == ("hub_agent_traces", "s", "claude")
    assert first.metadata["row"]["unread_lines"] == 1
    assert [m.text for m in second.messages] == ["Hi"]
    assert contents.fates[2].reason == "trace: is not a log of a known harness"
