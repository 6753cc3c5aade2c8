"""SWE-agent and mini-swe-agent: the history, what steps add to it, and how runs end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offline_arl.logs.adapter import adapter_named
from offline_arl.logs.reading import read_logs
from offline_arl.trajectories.schema import Outcome, Producer, Trajectory, Usage
from offline_arl.trajectories.validate import problems_of

REAL_LOGS = Path(__file__).resolve().parents[5] / "shared/real_logs/swe-agent"
Value = dict[str, Any]


def only(folder: Path, value: Value, name: str = "repo__issue-1.traj") -> Trajectory:
    path = folder / name
    path.write_text(json.dumps(value, indent=2))
    contents = read_logs(path)
    assert [fate.fate for fate in contents.fates] == ["used"]
    [trajectory] = contents.trajectories
    assert [str(problem) for problem in problems_of(trajectory) if problem.severity == "error"] == []
    return trajectory


def action(text: str, call_id: str, command: str, **more: Any) -> Value:
    call = {"id": call_id, "type": "function", "function": {"name": "bash", "arguments": f'{{"command": "{command}"}}'}}
    entry = {"role": "assistant", "content": text, "thought": text, "action": command, "agent": "main"}
    return {**entry, "tool_calls": [call], "message_type": "action", **more}


def step(response: str, command: str, observation: str, **more: Any) -> Value:
    return {"response": response, "action": command, "observation": observation, "thought": response, **more}


SYSTEM = {"role": "system", "content": "You fix bugs.", "agent": "main", "message_type": "system_prompt"}
TASK = {"role": "user", "content": "Fix it.", "agent": "main", "message_type": "observation"}
RESULT = {"role": "tool", "content": "a.py", "agent": "main", "tool_call_ids": ["c1"], "message_type": "observation"}


def run(history: list[Value], steps: list[Value], status: str | None = "submitted", **more: Any) -> Value:
    return {"history": history, "trajectory": steps, "info": {"exit_status": status, "submission": "diff"}, **more}


def test_the_history_is_the_conversation_and_steps_add_what_was_measured(tmp_path: Path) -> None:
    prompt = [SYSTEM, TASK]
    history = [*prompt, action("I look.", "c1", "ls"), RESULT]
    steps = [step("I look.", "ls", "a.py", execution_time=0.5, state={"open_file": "n/a"}, query=prompt)]
    config = {"agent": {"model": {"name": "lab/m"}, "history_processors": [{"type": "last_n_observations", "n": 5}]}}
    trajectory = only(tmp_path, run(history, steps, replay_config=json.dumps(config), environment="main"))
    assert [(message.role, message.producer.kind, message.text) for message in trajectory.messages] == [
        ("system", "script", "You fix bugs."),
        ("user", "script", "Fix it."),
        ("assistant", "model", "I look."),
        ("tool", "environment", "a.py"),
    ]
    asked, answered = trajectory.messages[2:]
    assert [(call.id, call.name, call.arguments_raw) for call in asked.tool_calls] == [
        ("c1", "bash", '{"command": "ls"}')
    ]
    assert asked.metadata == {
        "action": "ls",
        "message_type": "action",
        "execution_time": 0.5,
        "state": {"open_file": "n/a"},
    }
    assert answered.tool_call_id == "c1"
    assert asked.producer == Producer("model", "lab/m")
    assert (trajectory.task_id, trajectory.agent, trajectory.model) == ("repo__issue-1", "main", "lab/m")
    assert trajectory.metadata["history_processors"] == [{"type": "last_n_observations", "n": 5}]
    assert trajectory.metadata["info"]["submission"] == "diff"
    assert "last_observation" in trajectory.metadata or steps[0]["observation"] == answered.text
    # Whether the patch is right is for an evaluation to say.
    assert trajectory.outcome == Outcome()


def test_an_observation_of_several_calls_answers_each(tmp_path: Path) -> None:
    asked = action("I look.", "c1", "ls")
    asked["tool_calls"].append({"id": "c2", "function": {"name": "bash", "arguments": "{}"}})
    trajectory = only(tmp_path, run([SYSTEM, TASK, asked, {**RESULT, "tool_call_ids": ["c1", "c2"]}], []))
    assert [message.tool_call_id for message in trajectory.messages[3:]] == ["c1", "c2"]


def test_the_last_step_where_the_history_ends_before_it(tmp_path: Path) -> None:
    history = [SYSTEM, TASK, action("I look.", "c1", "ls"), RESULT]
    steps = [step("I look.", "ls", "a.py"), step("Done.", "submit", "diff")]
    trajectory = only(tmp_path, run(history, steps))
    last = trajectory.messages[-1]
    assert (last.text, [(call.name, call.arguments) for call in last.tool_calls]) == ("Done.", [("submit", {})])
    assert (last.trainable, trajectory.metadata["last_observation"]) == (None, "diff")
    # A command line is not the call that it was: kept, and not trained on.
    last = only(tmp_path, run(history, [steps[0], step("I edit.", "edit 1:2 x", "ok")])).messages[-1]
    assert (last.text, last.tool_calls, last.trainable, last.metadata["action"]) == ("I edit.", [], False, "edit 1:2 x")


def test_a_step_that_only_tells_of_the_end_is_no_answer(tmp_path: Path) -> None:
    history = [SYSTEM, TASK, action("I look.", "c1", "ls"), RESULT]
    for exit_step in (step("Exit due to cost limit", "exit_cost", ""), step("", "", "")):
        trajectory = only(tmp_path, run(history, [step("I look.", "ls", "a.py"), exit_step], "exit_cost"))
        assert len(trajectory.messages) == 4


def test_text_actions_and_demonstrations(tmp_path: Path) -> None:
    demonstration = {"role": "user", "content": "Here is a demonstration.", "is_demo": True, "agent": "primary"}
    shown = {"role": "assistant", "content": "shown", "is_demo": True, "agent": "primary"}
    history = [
        {"role": "system", "content": "You fix bugs.", "agent": "primary"},
        demonstration,
        shown,
        {"role": "user", "content": "Fix it.", "agent": "primary"},
        {
            "role": "assistant",
            "content": "I look.\n```\nls\n```",
            "thought": "I look.",
            "action": "ls",
            "agent": "primary",
        },
        {"role": "user", "content": "a.py", "agent": "primary"},
    ]
    trajectory = only(tmp_path, run(history, [step("I look.\n```\nls\n```", "ls", "a.py", state="{}")]))
    assert [(message.role, message.producer.kind) for message in trajectory.messages] == [
        ("system", "script"),
        ("user", "demonstration"),
        ("assistant", "demonstration"),
        ("user", "script"),
        ("assistant", "model"),
        ("user", "environment"),
    ]
    assert trajectory.step_indices() == [4]
    assert trajectory.messages[4].metadata == {"thought": "I look.", "action": "ls", "state": "{}"}


def test_messages_of_another_agent_are_its_own_trajectory(tmp_path: Path) -> None:
    history = [SYSTEM, TASK, {"role": "assistant", "content": "Review.", "agent": "reviewer"}]
    path = tmp_path / "a.traj"
    path.write_text(json.dumps(run(history, []), indent=1))
    main, reviewer = read_logs(path).trajectories
    assert (main.agent, reviewer.agent, reviewer.parent_trajectory_id) == ("main", "reviewer", main.trajectory_id)
    assert [len(main.messages), len(reviewer.messages)] == [2, 1]


@pytest.mark.parametrize(
    ("status", "terminated", "truncated", "outcome"),
    [
        ("submitted", True, False, "unscored"),
        ("submitted (exit_cost)", False, True, "unscored"),
        ("exit_context", False, True, "unscored"),
        ("exit_total_execution_time", False, True, "unscored"),
        ("exit_format", True, False, "unscored"),
        ("exit_environment_error", False, False, "infrastructure_error"),
        ("exit_api", False, False, "infrastructure_error"),
        (None, False, False, "unscored"),
    ],
)
def test_endings(tmp_path: Path, status: str | None, terminated: bool, truncated: bool, outcome: str) -> None:
    trajectory = only(tmp_path, run([SYSTEM, TASK], [], status))
    assert (trajectory.terminated, trajectory.truncated, trajectory.stop_reason) == (terminated, truncated, status)
    assert trajectory.outcome.status == outcome


def test_what_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.traj"
    for history, reason in (
        ([], "history: expected a list of messages, got a list"),
        ([1], "history[0]: expected an object, got a number"),
        ([SYSTEM, {"role": "x", "agent": "main"}], "history[1].role: expected one of"),
    ):
        path.write_text(json.dumps(run(history, []), indent=1))
        [fate] = read_logs(path).fates
        assert fate.fate == "refused"
        assert fate.reason.startswith(reason)


# Of the files themselves: messages of the history (and the last step where it is not among them), answers, calls,
# results, the task and the model.
REAL = {
    "6e44b9__sweagenttestrepo-1c2844.traj": (11, 5, 5, 4, "SWE-agent__test-repo-i1", "gpt-4o"),
    "marshmallow-1867.from_source_1x.traj": (28, 13, 13, 13, "marshmallow-code__marshmallow-1867", "replay"),
    "marshmallow-1867.function_calling.traj": (24, 11, 11, 11, "marshmallow-code__marshmallow-1867", "gpt-4o"),
    "pydicom__pydicom-1458.traj": (26, 12, 0, 0, "pydicom__pydicom-1458", None),
}


@pytest.mark.parametrize("name", REAL)
def test_real_files(name: str) -> None:
    path = REAL_LOGS / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    contents = read_logs(path)
    assert contents.formats == {str(path): "swe_agent"}
    assert [fate.fate for fate in contents.fates] == ["used"]
    [trajectory] = contents.trajectories
    assert (
        len(trajectory.messages),
        len(trajectory.step_indices()),
        sum(len(message.tool_calls) for message in trajectory.messages),
        sum(message.role == "tool" for message in trajectory.messages),
        trajectory.task_id,
        trajectory.model,
    ) == REAL[name]
    logged = json.loads(path.read_text())
    for message, entry in zip(trajectory.messages, logged["history"], strict=False):
        assert (message.role, message.text) == (entry["role"], entry["content"])
        assert message.tool_call_id == next(iter(entry.get("tool_call_ids") or [None]))
    assert [trajectory.messages[index].text for index in trajectory.step_indices()] == [
        item["response"] for item in logged["trajectory"]
    ]
    assert (trajectory.terminated, trajectory.truncated, trajectory.stop_reason) == (True, False, "submitted")
    assert trajectory.outcome == Outcome()


def mini(messages: list[Value], status: str = "Submitted") -> Value:
    end = {"role": "exit", "content": "patch", "extra": {"exit_status": status, "submission": "patch"}}
    info = {"exit_status": status, "submission": "patch", "config": {"model": {"model_name": "lab/m"}}}
    return {"info": info, "messages": [*messages, end], "trajectory_format": "mini-swe-agent-1.1"}


PROMPT = [{"role": "system", "content": "You help."}, {"role": "user", "content": "Fix it."}]


def test_mini_swe_agent_with_tool_calls(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
    asked = {
        "role": "assistant",
        "content": None,
        "tool_calls": [call],
        "extra": {
            "actions": [{"command": "ls", "tool_call_id": "c1"}],
            "cost": 0.25,
            "timestamp": 1795982735.5,
            "response": {"id": "r", "usage": {"prompt_tokens": 7, "completion_tokens": 3}},
        },
    }
    given = {"role": "tool", "tool_call_id": "c1", "content": "a.py", "extra": {"returncode": 0, "raw_output": "a.py"}}
    trajectory = only(tmp_path, mini([*PROMPT, asked, given]), "repo__issue-1.traj.json")
    assert [(message.role, message.producer.kind, message.text) for message in trajectory.messages] == [
        ("system", "script", "You help."),
        ("user", "script", "Fix it."),
        ("assistant", "model", ""),
        ("tool", "environment", "a.py"),
    ]
    step = trajectory.messages[2]
    assert (step.usage, step.timestamp) == (Usage(7, 3, 0.25), "2026-11-29T20:05:35.500Z")
    assert step.metadata == {"actions": [{"command": "ls", "tool_call_id": "c1"}]}
    assert trajectory.messages[3].metadata == {"returncode": 0, "raw_output": "a.py"}
    assert (trajectory.task_id, trajectory.model) == ("repo__issue-1", "lab/m")
    assert (trajectory.terminated, trajectory.stop_reason, trajectory.outcome) == (True, "Submitted", Outcome())


def test_mini_swe_agent_with_text_actions_and_limits(tmp_path: Path) -> None:
    messages = [*PROMPT, {"role": "assistant", "content": "ls"}, {"role": "user", "content": "a.py"}]
    trajectory = only(tmp_path, mini(messages, "LimitsExceeded"))
    assert [message.producer.kind for message in trajectory.messages] == ["script", "script", "model", "environment"]
    assert (trajectory.terminated, trajectory.truncated) == (False, True)
    assert only(tmp_path, mini(messages, "RateLimitError")).outcome == Outcome("infrastructure_error")
    assert only(tmp_path, mini(messages, "RepeatedFormatError")).terminated


def test_mini_swe_agent_on_the_responses_api(tmp_path: Path) -> None:
    output = [
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": '{"command": "ls"}'},
    ]
    answered = {"type": "function_call_output", "call_id": "c1", "output": "a.py"}
    trajectory = only(tmp_path, mini([*PROMPT, {"object": "response", "output": output}, answered]))
    assert [(message.role, message.text, len(message.tool_calls)) for message in trajectory.messages[2:]] == [
        ("assistant", "I look.", 1),
        ("tool", "a.py", 0),
    ]
    assert trajectory.messages[3].tool_call_id == "c1"


@pytest.mark.parametrize("value", [None, {}, {"messages": []}, {"history": [], "trajectory": {}, "info": {}}])
def test_other_records_are_not_recognized(value: Any) -> None:
    assert not adapter_named("swe_agent").recognizes(value)
    assert not adapter_named("mini_swe_agent").recognizes(value)
