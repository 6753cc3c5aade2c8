"""The records of each format, and finding the format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from offline_arl.environments.support_desk.logs import write_logs
from offline_arl.errors import DataError, UsageError
from offline_arl.logs.adapter import RawRecord, RecordRefusedError, adapter_named, adapters
from offline_arl.logs.benchmarks.tau_bench import TauBenchAdapter
from offline_arl.logs.detect import detect
from offline_arl.logs.providers.openai_chat import OpenAIChatAdapter
from offline_arl.trajectories.schema import Outcome, Producer, Source, Trajectory

CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


def raw(value: object, position: int = 4) -> RawRecord:
    return RawRecord("logs/a.jsonl", "a.jsonl", position, json.dumps(value).encode(), line=position + 1)


def convert(**fields: Any) -> Trajectory:
    (trajectory,) = OpenAIChatAdapter().convert(raw({"messages": CHAT, **fields}))
    return trajectory


def refusal(value: object) -> str:
    with pytest.raises(RecordRefusedError) as error:
        OpenAIChatAdapter().convert(raw(value))
    return str(error.value)


def test_a_bare_conversation() -> None:
    trajectory = convert()
    record = raw({"messages": CHAT})
    assert trajectory.source == Source("openai_chat", "logs/a.jsonl", 4, record.sha256)
    assert trajectory.outcome == Outcome()
    assert (trajectory.task_id, trajectory.group_id, trajectory.contexts, trajectory.metadata) == (None, None, [], {})


def test_ids_come_from_position_and_content() -> None:
    same = [OpenAIChatAdapter().convert(raw({"messages": CHAT}, position))[0].trajectory_id for position in (0, 1)]
    assert same[0] != same[1]
    assert convert(id="a").trajectory_id != convert(id="b").trajectory_id
    assert convert(id="a").trajectory_id == convert(id="a").trajectory_id


def test_every_field_of_a_record() -> None:
    trajectory = convert(
        id="run-1",
        trajectory_id="logged",
        task_id=7,
        group_id="g",
        episode_id="e",
        task_type="refund",
        agent="clerk",
        model="m",
        timestamp="2026-01-01",
        ended_at="2026-01-02",
        success=False,
        score=0.25,
        terminated=False,
        truncated=True,
        stop_reason="max_steps",
        tools=[{"name": "f"}],
        metadata={"seed": 1},
        temperature=0.7,
    )
    assert (trajectory.task_id, trajectory.group_id, trajectory.episode_id) == ("7", "g", "e")
    assert (trajectory.task_type, trajectory.agent, trajectory.model) == ("refund", "clerk", "m")
    assert (trajectory.started_at, trajectory.ended_at) == ("2026-01-01", "2026-01-02")
    assert trajectory.outcome == Outcome("scored", success=False, score=0.25)
    assert (trajectory.terminated, trajectory.truncated, trajectory.stop_reason) == (False, True, "max_steps")
    assert trajectory.tools_at(1) == [{"type": "function", "function": {"name": "f"}}]
    assert trajectory.trajectory_id == "logged"
    assert trajectory.metadata == {"seed": 1, "id": "run-1", "temperature": 0.7}


def test_attempts_at_a_task_are_a_group() -> None:
    assert convert(task_id="t").group_id == "t"


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({"success": True}, Outcome("scored", success=True)),
        ({"success": 0}, Outcome("scored", success=False)),
        ({"success": None}, Outcome()),
        ({"reward": 0}, Outcome("scored", score=0.0)),
        ({"reward": True}, Outcome("scored", success=True)),
        ({"score": 3, "reward": 1}, Outcome("scored", score=3.0, components={"reward": 1.0})),
        ({"reward": {"format": 1, "answer": 0}}, Outcome("scored", components={"format": 1.0, "answer": 0.0})),
        ({"outcome": "Success"}, Outcome("scored", success=True)),
        ({"outcome": "failed"}, Outcome("scored", success=False)),
        ({"outcome": False}, Outcome("scored", success=False)),
        ({"outcome": 0.5}, Outcome("scored", score=0.5)),
        ({"outcome": "infrastructure_error"}, Outcome("infrastructure_error")),
        (
            {"outcome": {"status": "infrastructure_error", "score": 0.0}},
            Outcome("infrastructure_error", score=0.0),
        ),
        (
            {"outcome": {"success": True, "score": 1, "components": {"a": 2}, "scorer": "judge"}},
            Outcome("scored", True, 1.0, {"a": 2.0}, "judge"),
        ),
    ],
)
def test_outcomes(fields: dict[str, Any], outcome: Outcome) -> None:
    trajectory = convert(**fields)
    assert trajectory.outcome == outcome
    assert trajectory.metadata == {}


def test_outcomes_with_more_to_say_are_kept_whole() -> None:
    logged = {"success": True, "explanation": "well done"}
    trajectory = convert(outcome=logged)
    assert trajectory.outcome == Outcome("scored", success=True)
    assert trajectory.metadata == {"outcome": logged}
    assert convert(outcome="abandoned by user").metadata == {"outcome": "abandoned by user"}


def test_messages_and_tools_may_be_json_text() -> None:
    text = convert(messages=json.dumps(CHAT), tools=json.dumps([{"name": "f"}]))
    assert text.messages == convert().messages
    assert text.tools_at(0) == [{"type": "function", "function": {"name": "f"}}]
    assert convert(functions=[{"name": "f"}]).contexts == text.contexts


def test_a_system_prompt_beside_the_messages_comes_first() -> None:
    assert [message.role for message in convert(system="Be kind.").messages] == ["system", "user", "assistant"]
    twice = convert(system="Be kind.", messages=[{"role": "system", "content": "Be brief."}, *CHAT])
    assert twice.messages[0].text == "Be brief."
    assert twice.metadata == {"system": "Be kind."}


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ([1], "expected an object with messages, got a list"),
        ("text", "expected an object with messages, got a string"),
        ({"prompt": "x"}, "no key messages; the record has: prompt"),
        ({"messages": "[{"}, "messages: the string is not JSON"),
        ({"messages": CHAT, "terminated": "yes"}, "terminated: expected true or false, got a string"),
        ({"messages": CHAT, "success": "maybe"}, "success: expected true or false, got 'maybe'"),
        ({"messages": CHAT, "reward": "high"}, "reward: expected a number, got a string"),
        ({"messages": CHAT, "outcome": {"components": [1]}}, "outcome.components: expected an object of numbers"),
    ],
)
def test_refused_records_say_why(record: object, reason: str) -> None:
    assert refusal(record).startswith(reason)


def test_support_desk_logs_are_read_without_loss(tmp_path: Path) -> None:
    path = tmp_path / "desk.jsonl"
    write_logs(path, 60, seed=5)
    invalid_json = 0
    for position, line in enumerate(path.read_bytes().splitlines()):
        logged = msgspec.json.decode(line)
        (trajectory,) = OpenAIChatAdapter().convert(RawRecord(str(path), path.name, position, line))
        assert trajectory.tools_at(0) == logged["tools"]
        for key in ("task_id", "group_id", "task_type", "agent", "terminated", "truncated", "stop_reason"):
            assert getattr(trajectory, key) == logged[key]
        assert trajectory.outcome == Outcome("scored", success=logged["success"], score=logged["score"])
        assert trajectory.metadata["id"] == logged["id"]
        for message, original in zip(trajectory.messages, logged["messages"], strict=True):
            assert message.role == original["role"]
            assert (message.text if message.content is not None else None) == original["content"]
            assert message.tool_call_id == original.get("tool_call_id")
            logged_calls = original.get("tool_calls", [])
            assert [(call.id, call.name, call.arguments_raw) for call in message.tool_calls] == [
                (call["id"], call["function"]["name"], call["function"]["arguments"]) for call in logged_calls
            ]
            invalid_json += sum(call.parse_error is not None for call in message.tool_calls)
    assert invalid_json > 0, "the logs of 60 episodes hold broken JSON somewhere"


def tau(**changes: Any) -> dict[str, Any]:
    traj = [
        {"role": "system", "content": "Policy"},
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "name": "f", "content": "ok"},
        {"role": "assistant", "content": "Done"},
        {"role": "user", "content": "Thanks ###STOP###"},
    ]
    return {"task_id": 3, "trial": 1, "reward": 1.0, "info": {"source": "user"}, "traj": traj, **changes}


def tau_trajectory(**changes: Any) -> Trajectory:
    (trajectory,) = TauBenchAdapter().convert(raw(tau(**changes)))
    return trajectory


def test_tau_bench_results() -> None:
    trajectory = tau_trajectory()
    assert (trajectory.task_id, trajectory.group_id) == ("3", "3")
    assert trajectory.outcome == Outcome("scored", success=True, score=1.0, scorer="tau_bench")
    assert trajectory.metadata == {"trial": 1, "info": {"source": "user"}}
    assert trajectory.tools_at(0) is None
    assert [message.producer for message in trajectory.messages] == [
        Producer("script"),
        Producer("script", "user_simulator"),
        Producer("model"),
        Producer("environment"),
        Producer("model"),
        Producer("script", "user_simulator"),
    ]
    assert trajectory.step_indices() == [2, 4]


def test_tau_bench_endings_are_kept_apart() -> None:
    def ending(**changes: Any) -> tuple[bool, bool, str | None]:
        trajectory = tau_trajectory(**changes)
        return trajectory.terminated, trajectory.truncated, trajectory.stop_reason

    handover = {"role": "tool", "tool_call_id": "c", "name": "transfer_to_human_agents", "content": "ok"}
    assert ending() == (True, False, "user_stop")
    assert ending(traj=[*tau()["traj"][:3], handover]) == (True, False, "handover")
    assert ending(traj=tau()["traj"][:4]) == (False, True, "max_steps")


def test_tau_bench_rewards() -> None:
    assert tau_trajectory(reward=0.0).outcome.success is False
    assert tau_trajectory(reward=None).outcome == Outcome()
    with pytest.raises(RecordRefusedError, match="reward: expected a number, got a string"):
        tau_trajectory(reward="1")


def test_formats_are_detected(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps([tau(), tau()]))
    assert detect(path) == "tau_bench"
    path.write_text(json.dumps({"messages": CHAT}))
    assert detect(path) == "openai_chat"
    path.write_text("broken\n" + json.dumps({"messages": CHAT}) + "\n")
    assert detect(path) == "openai_chat"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the file is empty"),
        ("not json", "log.jsonl:1: invalid JSON"),
        ('{"spams": []}\n', "not of a known log format; offline-arl formats lists them, --format names one"),
    ],
)
def test_files_of_no_known_format_are_told(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(text)
    with pytest.raises(DataError) as error:
        detect(path)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_adapters_are_found_by_name() -> None:
    assert set(adapters()) >= {"openai_chat", "tau_bench"}
    assert adapter_named("tau_bench").name == "tau_bench"
    with pytest.raises(UsageError, match=r"unknown log format 'xml'; known: auto, .*openai_chat, .*tau_bench"):
        adapter_named("xml")


def test_random_bytes_never_break_an_adapter() -> None:
    generator = np.random.default_rng(0)
    line = json.dumps(tau()).encode()
    for _ in range(300):
        damaged = bytearray(line)
        for position in generator.integers(0, len(line), size=3):
            damaged[position] = generator.integers(0, 256)
        for adapter in (OpenAIChatAdapter(), TauBenchAdapter()):
            try:
                adapter.convert(RawRecord("f", "f", 0, bytes(damaged)))
            except (RecordRefusedError, msgspec.DecodeError):
                continue
