"""Codex rollouts and event streams."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from offline_arl.logs.reading import LogContents, read_logs
from offline_arl.trajectories.schema import Branch, Message, MessageError, Producer, ReasoningPart, TextPart, Usage

REAL_LOG = Path(__file__).resolve().parents[5] / "shared/real_logs/codex-rollout/session_with_compaction.jsonl"
Record = dict[str, Any]
PARENT = "019e0000-0000-7000-8000-000000000001"
CHILD = "019e0000-9000-7000-8000-000000000002"
OLD_TURN = "019e0000-1000-7000-8000-00000000000a"
NEW_TURN = "019e0000-9001-7000-8000-00000000000b"


def line(kind: str, time: int = 0, **payload: Any) -> Record:
    return {"timestamp": f"2026-06-05T04:{time // 60:02}:{time % 60:02}.000Z", "type": kind, "payload": payload}


def said(role: str, text: str, time: int = 0, **more: Any) -> Record:
    kind = "output_text" if role == "assistant" else "input_text"
    return line("response_item", time, type="message", role=role, content=[{"type": kind, "text": text}], **more)


def called(call_id: str, name: str = "shell", arguments: str = "{}") -> Record:
    return line("response_item", type="function_call", name=name, arguments=arguments, call_id=call_id)


def gave(call_id: str, output: str) -> Record:
    return line("response_item", type="function_call_output", call_id=call_id, output=output)


def usage(total: int, output: int) -> Record:
    info = {
        "total_token_usage": {"total_tokens": total},
        "last_token_usage": {"input_tokens": 7, "output_tokens": output},
    }
    return line("event_msg", type="token_count", info=info)


def read(folder: Path, records: Sequence[Record | str], name: str = "log.jsonl") -> LogContents:
    path = folder / name
    path.write_text("".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in records))
    contents = read_logs(path)
    assert len(contents.fates) == len(records)
    return contents


def outline(messages: Sequence[Message]) -> list[str]:
    return [f"{m.role[0]} {m.producer.kind} {m.text}" + "".join(f" +{c.id}" for c in m.tool_calls) for m in messages]


def fates(contents: LogContents) -> list[str]:
    return [item.fate for item in contents.fates]


def test_a_session_is_read_from_its_items_and_events_add_what_items_lack(tmp_path: Path) -> None:
    contents = read(
        tmp_path,
        [
            line("session_meta", id=PARENT, source="exec", base_instructions={"text": "You are Codex."}, cwd="/w"),
            line("event_msg", type="task_started", turn_id=OLD_TURN),
            said("developer", "<permissions instructions>none"),
            said("user", "<environment_context><cwd>/w</cwd></environment_context>"),
            line("turn_context", model="gpt-5", effort="high"),
            said("user", "Fix it."),
            line("event_msg", type="user_message", message="Fix it."),
            line("response_item", type="reasoning", summary=[], content=None, encrypted_content="gAAA"),
            called("c1", arguments='{"command":["ls"]}'),
            called("c2", "apply_patch"),
            usage(10, 3),
            gave("c2", "patch rejected by user"),
            gave("c1", '{"output":"no\\n","metadata":{"exit_code":2,"duration_seconds":0.1}}'),
            line(
                "response_item", type="custom_tool_call", call_id="c3", name="exec", input="run()", status="completed"
            ),
            line("response_item", type="custom_tool_call_output", call_id="c3", output="Exit code: 0\nOutput:\nok"),
            said("assistant", "Fixed."),
            usage(20, 5),
            usage(20, 5),
            line("event_msg", type="task_complete", last_agent_message="Fixed."),
        ],
    )
    (trajectory,) = contents.trajectories
    assert outline(trajectory.messages) == [
        "s script You are Codex.",
        "d script <permissions instructions>none",
        "u script <environment_context><cwd>/w</cwd></environment_context>",
        "u human Fix it.",
        "a model  +c1 +c2",
        "t environment patch rejected by user",
        't environment {"output":"no\\n","metadata":{"exit_code":2,"duration_seconds":0.1}}',
        "a model  +c3",
        "t environment Exit code: 0\nOutput:\nok",
        "a model Fixed.",
    ]
    first, last = trajectory.messages[4], trajectory.messages[9]
    assert first.content == [ReasoningPart("", "gAAA", encrypted=True)]
    assert (first.usage, last.usage, first.producer.name) == (Usage(7, 3), Usage(7, 5), "gpt-5")
    assert [message.error for message in trajectory.messages if message.role == "tool"] == [
        MessageError("user_rejected"),
        MessageError("exit_code", "2"),
        None,
    ]
    assert trajectory.messages[7].tool_calls[0].arguments_raw == "run()"
    assert [(score.name, score.message_index) for score in trajectory.scores] == [("user_rejection", 4)]
    assert (trajectory.session_id, trajectory.terminated, trajectory.model) == (PARENT, True, "gpt-5")
    assert [i for i, fate in enumerate(fates(contents)) if fate == "set_apart"] == [1, 6, 10, 16, 17, 18]
    assert fates(contents).count("used") == 13


def test_a_compaction_with_its_replacement_begins_with_copies(tmp_path: Path) -> None:
    kept = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Build."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "So far: half."}]},
    ]
    contents = read(
        tmp_path,
        [
            line("session_meta", id=PARENT),
            said("user", "Build."),
            said("assistant", "Half."),
            line("compacted", message="half.", replacement_history=kept),
            said("assistant", "Whole."),
        ],
    )
    before, after = contents.trajectories
    assert outline(after.messages) == ["u copy Build.", "u summary So far: half.", "a model Whole."]
    assert (before.stop_reason, after.parent_trajectory_id) == ("compaction", before.trajectory_id)
    assert fates(contents) == ["used"] * 5


def fork(**lineage: Any) -> list[Record]:
    return [
        line("session_meta", 100, id=CHILD, **lineage),
        line("session_meta", 100, id=PARENT),
        line("turn_context", 100, turn_id=OLD_TURN, model="gpt-5"),
        said("user", "Start.", 100),
        said("assistant", "Started.", 100),
        line("event_msg", 100, type="task_started", turn_id=NEW_TURN),
        line("turn_context", 100, turn_id=NEW_TURN, model="gpt-5"),
        said("user", "Now differently.", 101),
        said("assistant", "Differently.", 102),
    ]


def test_the_history_that_a_fork_replays_is_context_and_not_counted_again(tmp_path: Path) -> None:
    parent = read(
        tmp_path,
        [line("session_meta", id=PARENT), said("user", "Start."), said("assistant", "Started.")],
        f"rollout-2026-06-05T04-00-00-{PARENT}.jsonl",
    ).trajectories[0]
    contents = read(tmp_path, fork(forked_from_id=PARENT), f"rollout-2026-06-05T04-01-40-{CHILD}.jsonl")
    (trajectory,) = contents.trajectories
    assert outline(trajectory.messages) == [
        "u copy Start.",
        "a copy Started.",
        "u human Now differently.",
        "a model Differently.",
    ]
    assert trajectory.branch == Branch(parent.trajectory_id, 2)
    assert (trajectory.session_id, trajectory.identifiers) == (CHILD, {"forked_from": PARENT})
    assert fates(contents) == ["used", *["duplicate"] * 4, "set_apart", *["used"] * 3]


def test_a_sub_agent_is_the_child_of_what_spawned_it(tmp_path: Path) -> None:
    spawn = {"subagent": {"thread_spawn": {"parent_thread_id": PARENT, "agent_role": "explorer"}}}
    records = fork(forked_from_id=PARENT, source=spawn, thread_source="subagent")
    contents = read(tmp_path, [*records[:2], *records[5:]], f"rollout-2026-06-05T04-01-40-{CHILD}.jsonl")
    (trajectory,) = contents.trajectories
    assert outline(trajectory.messages) == ["u human Now differently.", "a model Differently."]
    assert trajectory.branch is None
    assert trajectory.parent_trajectory_id is not None
    assert (trajectory.agent, trajectory.identifiers["parent_thread"]) == ("explorer", PARENT)
    assert fates(contents) == ["used", "duplicate", "set_apart", "used", "used", "used"]


def test_without_turn_ids_a_replay_ends_where_time_goes_on(tmp_path: Path) -> None:
    contents = read(
        tmp_path,
        [
            line("session_meta", 100, id="child", forked_from_id="parent"),
            line("session_meta", 100, id="parent"),
            said("user", "Start.", 100),
            said("assistant", "Started.", 100),
            said("user", "On.", 160),
            said("assistant", "Ok.", 161),
        ],
    )
    assert outline(contents.trajectories[0].messages) == [
        "u copy Start.",
        "a copy Started.",
        "u human On.",
        "a model Ok.",
    ]


def test_turns_that_were_taken_back_are_a_branch(tmp_path: Path) -> None:
    contents = read(
        tmp_path,
        [
            line("session_meta", id=PARENT),
            said("user", "One."),
            said("assistant", "1"),
            said("user", "Two."),
            said("assistant", "2"),
            line("event_msg", type="turn_aborted", reason="interrupted"),
            line("event_msg", type="thread_rolled_back", num_turns=1),
            said("user", "Three."),
            said("assistant", "3"),
        ],
    )
    first, second = contents.trajectories
    assert [m.text for m in first.messages] == ["One.", "1", "Two.", "2"]
    assert [m.text for m in second.messages] == ["One.", "1", "Three.", "3"]
    assert second.branch == Branch(first.trajectory_id, 2)
    assert not set(second.step_indices()) & set(range(2))  # the shared turns are steps of the first only
    assert first.messages[1].text == second.messages[1].text
    assert [(s.name, s.message_index) for s in first.scores] == [("user_interruption", 3)]


def test_the_layout_without_envelopes(tmp_path: Path) -> None:
    contents = read(
        tmp_path,
        [
            {"id": "old", "timestamp": "2025-06-01T00:00:00.000Z", "instructions": None, "git": {"branch": "main"}},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"record_type": "state"},
            {"type": "local_shell_call", "call_id": "c", "action": {"type": "exec", "command": ["ls"]}},
            {"type": "function_call_output", "call_id": "c", "output": "a"},
            {"type": "message", "role": "assistant", "content": "Done"},
        ],
    )
    assert set(contents.formats.values()) == {"codex_rollout"}
    (trajectory,) = contents.trajectories
    assert outline(trajectory.messages) == ["u human Hi", "a model  +c", "t environment a", "a model Done"]
    assert trajectory.session_id == "old"
    assert fates(contents) == ["used", "used", "set_apart", "used", "used", "used"]


def test_a_broken_item_is_refused_alone(tmp_path: Path) -> None:
    contents = read(
        tmp_path,
        [
            line("session_meta", id=PARENT),
            said("user", "Hi"),
            line("response_item", type="message", role="wizard", content=[]),
            {"type": "response_item", "payload": 7},
            '{"type":"response_item","payl',
            said("assistant", "Hello"),
        ],
    )
    assert outline(contents.trajectories[0].messages) == ["u human Hi", "a model Hello"]
    assert [item.reason for item in contents.fates if item.fate == "refused"] == [
        "payload[0].role: expected one of system, developer, user, assistant, got 'wizard'",
        "payload: expected an object, got a number",
        "invalid JSON: Input data was truncated",
    ]


def test_real_compaction() -> None:
    if not REAL_LOG.exists():
        pytest.skip(f"{REAL_LOG} is not here")
    contents = read_logs(REAL_LOG)
    before, after = contents.trajectories
    assert [m.role[0] for m in before.messages] == list("uatauaua")
    assert [m.role[0] for m in after.messages] == list("uuata")
    assert after.messages[0].producer == Producer("summary")
    assert after.messages[0].text.startswith("**Progress + Plan Status**")
    assert before.messages[1].reasoning == "Planning API endpoint structure"
    assert after.messages[3].content == [TextPart("")]
    assert after.messages[4].usage == Usage(2000, 1000)
    assert [call.name for t in (before, after) for m in t.messages for call in m.tool_calls] == ["shell", "shell"]
    assert fates(contents) == [*["used"] * 19, "set_apart"]


def test_an_event_stream_shows_what_was_done(tmp_path: Path) -> None:
    command = {"id": "item_1", "type": "command_execution", "command": "ls", "aggregated_output": "", "exit_code": None}
    contents = read(
        tmp_path,
        [
            {"type": "thread.started", "thread_id": "t"},
            {"type": "turn.started"},
            {"type": "item.completed", "item": {"id": "item_0", "type": "reasoning", "text": "Look."}},
            {"type": "item.started", "item": {**command, "status": "in_progress"}},
            {
                "type": "item.completed",
                "item": {**command, "aggregated_output": "a\n", "exit_code": 1, "status": "failed"},
            },
            {"type": "item.completed", "item": {"id": "item_2", "type": "agent_message", "text": "Failed."}},
            {"type": "turn.completed", "usage": {"input_tokens": 9, "cached_input_tokens": 4, "output_tokens": 2}},
        ],
    )
    assert set(contents.formats.values()) == {"codex_exec"}
    (trajectory,) = contents.trajectories
    assert outline(trajectory.messages) == ["a model  +item_1", "t environment a\n", "a model Failed."]
    assert trajectory.messages[0].reasoning == "Look."
    assert trajectory.messages[0].tool_calls[0].arguments == {"command": "ls"}
    assert trajectory.messages[1].error == MessageError("exit_code", "1")
    assert trajectory.messages[2].usage == Usage(9, 2)
    assert (trajectory.session_id, trajectory.stop_reason, trajectory.terminated) == ("t", "turn_completed", True)
    assert fates(contents) == ["used", "used", "used", "duplicate", "used", "used", "used"]
