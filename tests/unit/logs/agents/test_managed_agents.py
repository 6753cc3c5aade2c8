"""Event streams of Anthropic's managed agents."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from offline_arl.logs.reading import LogContents, read_logs
from offline_arl.trajectories.schema import MessageError, Outcome, Producer, ReasoningPart, Usage

REAL_LOG = (
    Path(__file__).resolve().parents[5]
    / "shared/real_logs/anthropic-managed-agents/anthropic_managed_custom_tools.jsonl"
)


def event(kind: str, number: int, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "id": f"sevt_{number}", "processed_at": f"2026-07-06T14:00:{number:02}Z", **fields}


def text(value: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": value}]


def read(folder: Path, records: Sequence[Any]) -> LogContents:
    path = folder / "events.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    contents = read_logs(path)
    assert set(contents.formats.values()) == {"anthropic_managed_agents"}
    assert len(contents.fates) == len(records)
    return contents


def test_a_real_session() -> None:
    if not REAL_LOG.exists():
        pytest.skip(f"{REAL_LOG} is not here")
    contents = read_logs(REAL_LOG)
    (trajectory,) = contents.trajectories
    assert [(m.role, m.producer.kind) for m in trajectory.messages] == [
        ("system", "script"),
        ("user", "human"),
        ("assistant", "model"),
        ("tool", "environment"),
        ("assistant", "model"),
    ]
    call = trajectory.messages[2].tool_calls[0]
    assert (call.name, call.arguments) == ("get_weather", {"location": "Prague"})
    assert (trajectory.messages[3].tool_call_id, trajectory.messages[3].name) == (call.id, "get_weather")
    assert trajectory.messages[2].usage == Usage(2, 50)
    assert [tool["function"]["name"] for tool in trajectory.tools_at(0) or []] == [
        "agent_toolset_20260401",
        "get_weather",
    ]
    assert (trajectory.agent, trajectory.model, trajectory.stop_reason) == (
        "Coding Assistant",
        "claude-sonnet-5",
        "end_turn",
    )
    assert trajectory.session_id == "sesn_014fc5Q6rWwrXD3vWBfPRUes"
    assert [item.record.line for item in contents.fates if item.fate == "duplicate"] == [2, 11]
    assert [item.record.line for item in contents.fates if item.fate == "set_apart"] == [3, 4, 9, 10, 13, 14, 18, 19]
    assert contents.count("used") == 9


def test_a_request_is_one_turn_and_evaluations_are_scores(tmp_path: Path) -> None:
    contents = read(
        tmp_path,
        [
            event("user.define_outcome", 1, description="A table.", rubric={"type": "text", "content": "r"}),
            event("span.model_request_start", 2),
            event("agent.thinking", 3),
            event("agent.message", 4, content=text("Two calls.")),
            event("agent.tool_use", 5, name="bash", input={"command": "ls"}, evaluated_permission="ask"),
            event("agent.mcp_tool_use", 6, name="find", mcp_server_name="wiki", input={"q": "x"}),
            event("span.model_request_end", 7, model_request_start_id="sevt_2", model_usage={"output_tokens": 4}),
            event("user.tool_confirmation", 8, tool_use_id="sevt_5", result="deny", deny_message="No shell."),
            event("agent.mcp_tool_result", 9, mcp_tool_use_id="sevt_6", content=text("page")),
            event("agent.tool_result", 10, tool_use_id="sevt_5", content=text("denied"), is_error=True),
            event("agent.message", 11, content=text("A table.")),
            event("span.outcome_evaluation_end", 12, result="needs_revision", explanation="No header.", iteration=0),
            event("agent.message", 13, content=text("With header.")),
            event("span.outcome_evaluation_end", 14, result="satisfied", explanation="Good.", iteration=1),
            event("agent.tool_use", 15, name="bash", input={}, session_thread_id="sthr_2"),
        ],
    )
    (trajectory,) = contents.trajectories
    assert [m.role[0] for m in trajectory.messages] == list("uattaa")
    turn = trajectory.messages[1]
    assert turn.content is not None
    assert turn.content[0] == ReasoningPart("", encrypted=True)
    assert (turn.text, turn.id, turn.usage) == ("Two calls.", "sevt_2", Usage(None, 4))
    assert [call.name for call in turn.tool_calls] == ["bash", "find"]
    assert turn.metadata["tool_call_extras"] == {
        "0": {"evaluated_permission": "ask"},
        "1": {"mcp_server_name": "wiki", "kind": "mcp_tool_use"},
    }
    assert [m.tool_call_id for m in trajectory.messages[2:4]] == ["sevt_6", "sevt_5"]
    assert trajectory.messages[3].error == MessageError("tool_error")
    assert [(s.name, s.value, s.label, s.message_index, s.comment, s.scorer_kind) for s in trajectory.scores] == [
        ("user_rejection", 1.0, None, 1, "No shell.", "human"),
        ("outcome_evaluation", 0.0, "needs_revision", 4, "No header.", "model"),
        ("outcome_evaluation", 1.0, "satisfied", 5, "Good.", "model"),
    ]
    assert trajectory.outcome == Outcome("scored", success=True, scorer="outcome_evaluation")
    assert [item.fate for item in contents.fates] == [*["used"] * 14, "set_apart"]


def test_a_compaction_cuts_the_session_and_an_error_at_the_end_is_of_the_infrastructure(tmp_path: Path) -> None:
    created = ["client.beta.sessions.create", {"type": "session", "id": "sesn_1", "agent": {"system": "S"}}]
    contents = read(
        tmp_path,
        [
            created,
            event("user.message", 1, content=text("Go")),
            event("agent.message", 2, content=text("Went")),
            event("agent.thread_context_compacted", 3),
            event("agent.message", 4, content=text("On")),
            event("session.error", 5, error={"type": "billing_error", "message": "m"}),
        ],
    )
    before, after = contents.trajectories
    assert [m.text for m in before.messages] == ["S", "Go", "Went"]
    assert [(m.text, m.producer) for m in after.messages] == [
        ("S", Producer("script")),
        ("On", Producer("model")),
    ]
    assert (before.stop_reason, after.parent_trajectory_id) == ("compaction", before.trajectory_id)
    assert (before.outcome.status, after.outcome.status) == ("unscored", "infrastructure_error")


def test_a_broken_event_is_refused_alone(tmp_path: Path) -> None:
    contents = read(
        tmp_path,
        [
            event("agent.message", 1, content=text("Hello")),
            event("agent.tool_use", 2, input={}),
            ["client.beta.sessions.events.send", ["sesn_1", {"events": [7]}]],
            7,
        ],
    )
    assert [m.text for m in contents.trajectories[0].messages] == ["Hello"]
    assert [(item.fate, item.reason) for item in contents.fates[1:]] == [
        ("refused", "event.content[0].name: expected a string, got null"),
        ("refused", "[1].events[0]: expected an event, got a number"),
        ("refused", "expected an event or a pair of method and value, got a number"),
    ]
