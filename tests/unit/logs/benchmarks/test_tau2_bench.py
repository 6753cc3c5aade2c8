"""tau2-bench results and tau-bench transcripts: what the agent saw, and how it was judged."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from offline_arl.logs.adapter import adapter_named
from offline_arl.logs.convert import PiecePosition, assemble_group, group_place, split_record
from offline_arl.logs.reading import LogContents, read_logs
from offline_arl.logs.records import LogFile, read_records
from offline_arl.trajectories.schema import MessageError, Outcome, Producer, Trajectory, Usage

REAL_LOGS = Path(__file__).resolve().parents[5] / "shared/real_logs"
Value = dict[str, Any]
TOOL = {"name": "get", "doc": "Get a line.", "params": {"type": "object", "properties": {}}, "returns": {}}
INFO = {
    "git_commit": "c",
    "user_info": {"implementation": "user_simulator", "llm": "u"},
    "agent_info": {"implementation": "llm_agent", "llm": "lab/m"},
    "environment_info": {"domain_name": "telecom", "policy": "Be kind.", "tool_defs": {"get": TOOL}},
}
GREETING = {"role": "assistant", "content": "Hi! How can I help you today?", "turn_idx": 0, "cost": 0.0, "usage": None}


def tool_message(call_id: str, content: str, requestor: str = "assistant", **more: Any) -> Value:
    return {"role": "tool", "id": call_id, "content": content, "requestor": requestor, "error": False, **more}


def simulation(messages: list[Value] | None = None, **more: Any) -> Value:
    return {
        "id": "sim",
        "task_id": "7",
        "start_time": "2026-01-01T00:00:00",
        "end_time": "2026-01-01T00:01:00",
        "termination_reason": "user_stop",
        "messages": [GREETING, {"role": "user", "content": "Hello.", "turn_idx": 1}] if messages is None else messages,
        **more,
    }


def read(folder: Path, *simulations: Value, **more: Any) -> LogContents:
    path = folder / "results.json"
    run = {"timestamp": "t", "info": INFO, "tasks": [{"id": "7", "purpose": "p"}], "simulations": simulations, **more}
    path.write_text(json.dumps(run, indent=2))
    contents = read_logs(path)
    assert contents.formats == {str(path): "tau2_bench"}
    return contents


def only(folder: Path, value: Value) -> Trajectory:
    contents = read(folder, value)
    assert [fate.fate for fate in contents.fates] == ["used"]
    [trajectory] = contents.trajectories
    return trajectory


def test_a_simulation_is_what_the_agent_saw(tmp_path: Path) -> None:
    asked = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "name": "get", "arguments": {"id": 1}, "requestor": "assistant"},
            {"id": "c2", "name": "get", "arguments": {}, "requestor": "assistant"},
        ],
        "turn_idx": 2,
        "usage": {"prompt_tokens": 9, "completion_tokens": 4},
        "cost": 0.5,
        "raw_data": {"model": "m"},
    }
    users_call = {"id": "u1", "name": "toggle", "arguments": {}, "requestor": "user"}
    messages = [
        GREETING,
        {"role": "user", "content": "My phone is off.", "turn_idx": 1},
        asked,
        {"role": "tool", "tool_messages": [tool_message("c1", "one"), tool_message("c2", "Error: no", error=True)]},
        {"role": "user", "content": None, "tool_calls": [users_call], "turn_idx": 5},
        tool_message("u1", "on", "user"),
        {"role": "user", "content": "It is on. ###STOP###", "turn_idx": 7},
    ]
    trajectory = only(tmp_path, simulation(messages, trial=1, seed=3))
    assert [(message.role, message.producer.kind, message.text) for message in trajectory.messages] == [
        ("system", "script", "Be kind."),
        ("assistant", "script", "Hi! How can I help you today?"),
        ("user", "script", "My phone is off."),
        ("assistant", "model", ""),
        ("tool", "environment", "one"),
        ("tool", "environment", "Error: no"),
        ("user", "script", "It is on. ###STOP###"),
    ]
    assert trajectory.step_indices() == [3]
    step = trajectory.messages[3]
    assert (step.content, step.usage, step.producer) == (None, Usage(9, 4, 0.5), Producer("model", "lab/m"))
    assert [(call.id, call.arguments_raw) for call in step.tool_calls] == [("c1", '{"id":1}'), ("c2", "{}")]
    assert [message.tool_call_id for message in trajectory.messages[4:6]] == ["c1", "c2"]
    assert [message.error for message in trajectory.messages[4:6]] == [None, MessageError("error", "Error: no")]
    # What the user did at home is kept, and told to the agent by nobody.
    unseen = trajectory.metadata["unseen_by_agent"]
    assert [item["message"]["role"] for item in unseen] == ["user", "tool"]
    assert {item["before"] for item in unseen} == {5}
    assert trajectory.tools_at(0) == [
        {"type": "function", "function": {"name": "get", "description": "Get a line.", "parameters": TOOL["params"]}}
    ]
    assert (trajectory.task_id, trajectory.group_id, trajectory.task_type) == ("telecom/7", "telecom/7", "telecom")
    assert (trajectory.agent, trajectory.model, trajectory.episode_id) == ("llm_agent", "lab/m", "sim")
    assert (trajectory.started_at, trajectory.ended_at) == ("2026-01-01T00:00:00", "2026-01-01T00:01:00")
    assert (trajectory.metadata["trial"], trajectory.metadata["task"]) == (1, {"id": "7", "purpose": "p"})


def test_a_first_word_that_a_model_was_asked_for_is_a_step(tmp_path: Path) -> None:
    first = {**GREETING, "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
    assert only(tmp_path, simulation([first])).step_indices() == [1]


def test_the_reward_its_parts_and_every_check(tmp_path: Path) -> None:
    reward = {
        "reward": 0.0,
        "reward_breakdown": {"DB": 1.0, "COMMUNICATE": 0.0},
        "db_check": {"db_match": True, "db_reward": 1.0},
        "action_checks": [{"action": {"name": "get"}, "action_match": False}],
        "env_assertions": [{"env_assertion": {"func_name": "f"}, "met": True}],
        "nl_assertions": [{"nl_assertion": "is polite", "met": False, "justification": "It shouted."}],
        "communicate_checks": None,
    }
    review = {"errors": [{"severity": "critical", "reasoning": "Wrong line.", "turn_idx": 0, "source": "agent"}]}
    trajectory = only(tmp_path, simulation(reward_info=reward, review=review))
    assert trajectory.outcome == Outcome("scored", False, 0.0, {"DB": 1.0, "COMMUNICATE": 0.0}, "tau2_bench")
    rows = [
        (score.name, score.value, score.label, score.scorer_kind, score.direction, score.message_index, score.comment)
        for score in trajectory.scores
    ]
    assert rows == [
        ("db_check", 1.0, None, "environment", "higher_is_better", None, None),
        ("action_checks", 0.0, None, "environment", "higher_is_better", None, None),
        ("env_assertions", 1.0, None, "environment", "higher_is_better", None, None),
        ("nl_assertions", 0.0, None, "model", "higher_is_better", None, "It shouted."),
        ("review_error", None, "critical", "model", "lower_is_better", 1, "Wrong line."),
    ]


@pytest.mark.parametrize(
    ("reason", "terminated", "truncated", "status"),
    [
        ("user_stop", True, False, "scored"),
        ("agent_stop", True, False, "scored"),
        ("agent_error", True, False, "scored"),
        ("max_steps", False, True, "scored"),
        ("timeout", False, True, "scored"),
        ("too_many_errors", False, True, "scored"),
        ("context_window_exceeded", False, True, "scored"),
        ("infrastructure_error", False, False, "infrastructure_error"),
        ("unexpected_error", False, False, "infrastructure_error"),
        ("user_error", False, False, "infrastructure_error"),
        ("newly_invented", False, False, "scored"),
    ],
)
def test_endings(tmp_path: Path, reason: str, terminated: bool, truncated: bool, status: str) -> None:
    trajectory = only(tmp_path, simulation(termination_reason=reason, reward_info={"reward": 0.0}))
    assert (trajectory.terminated, trajectory.truncated, trajectory.stop_reason) == (terminated, truncated, reason)
    assert trajectory.outcome.status == status
    assert trajectory.outcome.score == (0.0 if status == "scored" else None)


def test_a_missing_reward_is_no_zero(tmp_path: Path) -> None:
    assert only(tmp_path, simulation(reward_info=None)).outcome == Outcome()


def test_ticks_of_a_voice_simulation(tmp_path: Path) -> None:
    def chunk(role: str, content: str, utterance: str, **more: Any) -> Value:
        return {"role": role, "content": content, "utterance_ids": [utterance], **more}

    ticks = [
        {"tick_id": 0, "timestamp": "1", "agent_chunk": chunk("assistant", "Hel", "a")},
        {"tick_id": 1, "timestamp": "2", "agent_chunk": chunk("assistant", "lo.", "a")},
        {"tick_id": 2, "timestamp": "3", "agent_chunk": chunk("assistant", "Who?", "b")},
        {
            "tick_id": 3,
            "timestamp": "4",
            "user_chunk": chunk("user", "AAAA", "u", is_audio=True, audio_script_gold="Me."),
        },
        {
            "tick_id": 4,
            "timestamp": "5",
            "agent_tool_calls": [{"id": "c1", "name": "get", "arguments": {}}],
            "agent_tool_results": [{"id": "c1", "content": "one"}],
            "user_tool_calls": [{"id": "u1", "name": "toggle", "arguments": {}}],
            "user_tool_results": [{"id": "u1", "content": "on"}],
        },
        {"tick_id": 5, "timestamp": "6", "agent_chunk": chunk("assistant", "Fine.", "c")},
    ]
    trajectory = only(tmp_path, {**simulation(), "messages": None, "ticks": ticks})
    assert [(message.role, message.producer.kind, message.text) for message in trajectory.messages[1:]] == [
        ("assistant", "model", "Hello. Who?"),
        ("user", "script", "Me."),
        ("assistant", "model", ""),
        ("tool", "environment", "one"),
        ("assistant", "model", "Fine."),
    ]
    assert len(trajectory.metadata["unseen_by_agent"]) == 2


def test_a_broken_simulation_does_not_take_the_others_with_it(tmp_path: Path) -> None:
    broken = simulation([{"role": "narrator"}], id="broken")
    contents = read(tmp_path, broken, simulation())
    assert [trajectory.episode_id for trajectory in contents.trajectories] == ["sim"]
    contents = read(tmp_path, broken)
    assert [(fate.fate, fate.reason) for fate in contents.fates] == [
        (
            "refused",
            "simulations[0].messages[0].role: expected one of system, user, assistant, tool, got 'narrator'",
        )
    ]


def test_a_header_is_joined_with_the_files_of_its_simulations(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "simulations").mkdir(parents=True)
    index = [{"id": "sim", "task_id": "7", "trial": 0}, {"id": "lost", "task_id": "7", "trial": 1}]
    header = {"info": INFO, "tasks": [{"id": "7"}], "simulation_index": index}
    (folder / "results.json").write_text(json.dumps(header))
    (folder / "simulations/sim.json").write_text(json.dumps(simulation()))
    groups: dict[str | None, list[tuple[PiecePosition, bytes]]] = {}
    for name in ("results.json", "simulations/sim.json"):
        for record in read_records(LogFile(folder / name, name, f"run/{name}")):
            split = split_record(adapter_named("tau2_bench"), record)
            for fragment in split.fragments:
                key, _ = group_place(fragment, record.label, str(folder / name))
                groups.setdefault(key, []).append((PiecePosition.of(record), fragment.payload))
    assembled = [assemble_group("tau2_bench", key, pieces) for key, pieces in groups.items()]
    [trajectory] = [trajectory for group in assembled for trajectory in group.trajectories]
    assert (trajectory.task_id, trajectory.model) == ("telecom/7", "lab/m")
    assert trajectory.messages[0].text == "Be kind."
    assert sorted(fate for group in assembled for fate in group.fates) == [
        ("set_apart", "the file of the simulation is not there"),
        ("used", ""),
        ("used", ""),
    ]


def test_a_simulation_without_its_header_is_read(tmp_path: Path) -> None:
    path = tmp_path / "sim.json"
    path.write_text(json.dumps(simulation()))
    [trajectory] = read_logs(path).trajectories
    assert (trajectory.task_id, trajectory.model, trajectory.contexts) == ("7", None, [])
    assert [message.role for message in trajectory.messages] == ["assistant", "user"]


@pytest.mark.parametrize("value", [None, [], {}, {"info": {}, "tasks": []}, {"id": 1, "task_id": 1, "messages": []}])
def test_other_records_are_not_recognized(value: Any) -> None:
    assert not adapter_named("tau2_bench").recognizes(value)
    assert not adapter_named("tau_transcripts").recognizes(value)


def test_the_real_header_holds_no_simulation() -> None:
    path = REAL_LOGS / "tau2-bench/results.json"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    contents = read_logs(path)
    assert contents.formats == {str(path): "tau2_bench"}
    assert [(fate.fate, fate.reason) for fate in contents.fates] == [
        ("set_apart", "the header of a run whose simulations are in other files")
    ]


def test_transcripts(tmp_path: Path) -> None:
    text = "user: Hi.\nassistant: None\ntool: line one\nline two\nassistant: user: said so\n\nuser: "
    path = tmp_path / "few_shot.jsonl"
    path.write_text(
        json.dumps({"messages_display": text, "note": 1}) + "\n" + json.dumps({"messages_display": 3}) + "\n"
    )
    contents = read_logs(path, format="tau_transcripts")
    [trajectory] = contents.trajectories
    assert [(message.role, message.text) for message in trajectory.messages] == [
        ("user", "Hi."),
        ("assistant", ""),
        ("tool", "line one\nline two"),
        ("assistant", "user: said so\n"),
        ("user", ""),
    ]
    silent = trajectory.messages[1]
    assert (silent.content, silent.trainable, silent.metadata) == (None, False, {"calls_not_logged": True})
    assert trajectory.metadata == {"note": 1}
    assert [(fate.fate, fate.reason) for fate in contents.fates] == [
        ("used", ""),
        ("refused", "messages_display: expected a string, got a number"),
    ]


def test_how_transcripts_end(tmp_path: Path) -> None:
    path = tmp_path / "few_shot.jsonl"
    ends = [
        "user: Thanks! ###STOP###",
        "tool: Transfer successful",
        "tool: ###STOP###",
        "assistant: Transfer successful",
    ]
    path.write_text("".join(json.dumps({"messages_display": f"user: Hi.\n{end}"}) + "\n" for end in ends))
    found = [(row.terminated, row.truncated, row.stop_reason) for row in read_logs(path).trajectories]
    assert found == [(True, False, "user_stop"), (True, False, "handover"), (False, False, None), (False, False, None)]


def test_the_real_transcripts() -> None:
    path = REAL_LOGS / "tau-bench/MockAirlineDomainEnv-few_shot.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    contents = read_logs(path)
    assert contents.formats == {str(path): "tau_transcripts"}
    assert [fate.fate for fate in contents.fates] == ["used"] * 19
    # Lines of the file that begin with a role: 136 of the user, 222 of the assistant, 105 of tools.
    roles = Counter(message.role for trajectory in contents.trajectories for message in trajectory.messages)
    assert roles == {"user": 136, "assistant": 222, "tool": 105}
    silent = [
        message for trajectory in contents.trajectories for message in trajectory.messages if message.trainable is False
    ]
    assert len(silent) == path.read_text().count("assistant: None\\n")
