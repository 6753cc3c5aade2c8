"""AgentTuning, xLAM, Toucan, APIGen-MT and open-instruct."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offline_arl.logs.reading import LogContents, read_logs
from offline_arl.trajectories.schema import Producer
from offline_arl.trajectories.validate import errors_of

REAL_LOGS = Path(__file__).resolve().parents[5] / "shared/real_logs"


def read(tmp_path: Path, *rows: Any, format: str) -> LogContents:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    contents = read_logs(path)
    assert list(contents.formats.values()) == [format]
    assert [errors_of(trajectory) for trajectory in contents.trajectories] == [[]] * len(contents.trajectories)
    return contents


BASH = "Think: I count them.\n\nAct: bash\n\n```bash\nls /etc | wc -l\n```"
ONE_SHOT: list[tuple[str, bool | None, str]] = [
    ("human", None, "You act on a system. Now, my problem is:\n\nHow many files are in /etc?"),
    ("gpt", False, BASH),
    ("human", None, "The output of the OS:\n\n220"),
    ("gpt", False, "Think: Done.\n\nAct: answer(220)"),
    ("human", None, "Now, I will start a new problem in a new OS. My problem is:\n\nWho am I?"),
    ("gpt", True, "Think: I ask.\n\nAct: bash\n\n```bash\nwhoami\n```"),
    ("human", None, "The output of the OS:\n\nroot"),
    ("gpt", True, "Think: It is root.\n\nAct: finish"),
]


@pytest.mark.parametrize("has_loss", [True, False])
def test_a_worked_example_is_not_what_the_agent_did(tmp_path: Path, has_loss: bool) -> None:
    turns = [{"from": role, "value": text, **({"loss": loss} if has_loss else {})} for role, loss, text in ONE_SHOT]
    (trajectory,) = read(tmp_path, {"id": "os_12", "conversations": turns}, format="agent_tuning").trajectories
    assert [message.producer.kind for message in trajectory.messages] == [
        "script",
        "demonstration",
        "environment",
        "demonstration",
        "script",
        "unknown",
        "environment",
        "unknown",
    ]
    assert trajectory.step_indices() == [5, 7]
    assert (trajectory.task_id, trajectory.task_type) == ("os_12", "os")
    # The text stays whole, and the action is beside it.
    assert trajectory.messages[1].text == BASH
    assert [trajectory.messages[index].metadata["action"] for index in (1, 3, 5, 7)] == [
        {"name": "bash", "input": "ls /etc | wc -l"},
        {"name": "answer", "input": "220"},
        {"name": "bash", "input": "whoami"},
        {"name": "finish"},
    ]
    assert trajectory.messages[5].trainable is (True if has_loss else None)


def test_text_actions_without_an_example(tmp_path: Path) -> None:
    turns = [
        {"from": "human", "value": "Interact with a household. Your task is to: put a mug on the desk."},
        {"from": "gpt", "value": "THOUGHT: I look.\nACTION: go to shelf 1"},
        {"from": "human", "value": "You see a mug."},
    ]
    (trajectory,) = read(tmp_path, {"id": "x", "conversations": turns}, format="agent_tuning").trajectories
    assert trajectory.step_indices() == [1]
    assert trajectory.messages[1].metadata["action"] == {"name": "go to shelf 1"}
    assert trajectory.messages[2].producer == Producer("environment")


def test_xlam_parameters_become_json_schema(tmp_path: Path) -> None:
    parameters = {
        "city": {"description": "Where.", "type": "str"},
        "days": {"description": "How long.", "type": "int, optional"},
        "units": {"type": "List[str]", "default": "[]"},
    }
    row = {
        "id": 7,
        "query": "Weather in Rome and Bern?",
        "answers": json.dumps(
            [{"name": "weather", "arguments": {"city": "Rome"}}, {"name": "weather", "arguments": {"city": "Bern"}}]
        ),
        "tools": json.dumps([{"name": "weather", "description": "Weather.", "parameters": parameters}]),
    }
    (trajectory,) = read(tmp_path, row, format="xlam").trajectories
    assert [message.role for message in trajectory.messages] == ["user", "assistant"]
    assert [call.arguments for call in trajectory.messages[1].tool_calls] == [{"city": "Rome"}, {"city": "Bern"}]
    tools = trajectory.tools_at(0)
    assert tools is not None
    assert tools[0]["function"]["parameters"] == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where."},
            "days": {"type": "integer", "description": "How long."},
            "units": {"type": "array", "default": "[]"},
        },
        "required": ["city"],
    }
    assert trajectory.metadata == {"id": 7, "tools": row["tools"]}


def test_toucan_rows_with_legacy_calls_and_tools_in_the_system_text(tmp_path: Path) -> None:
    declared = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    messages = [
        {"role": "system", "content": f"<|im_system|>tool_declare<|im_middle|>{json.dumps(declared)}<|im_end|>"},
        {"role": "user", "content": "Rome and Bern?"},
        {"role": "assistant", "content": "", "function_call": {"name": "weather", "arguments": '{"city": "Rome"}'}},
        {"role": "assistant", "content": "", "function_call": {"name": "weather", "arguments": '{"city": "Bern"}'}},
        {"role": "function", "name": "weather", "content": "sun"},
        {"role": "function", "name": "weather", "content": "rain"},
        {"role": "assistant", "content": "Sun and rain."},
    ]
    assessment = {"completeness": {"score": 4, "reasoning": "all"}, "overall_score": 4.5}
    row = {
        "uuid": "u",
        "subset_name": "multi-turn",
        "messages": json.dumps(messages),
        "target_tools": "weather",
        "response_quality_assessment": json.dumps(assessment),
    }
    (trajectory,) = read(tmp_path, row, format="toucan").trajectories
    calls = [call for message in trajectory.messages for call in message.tool_calls]
    assert [call.arguments for call in calls] == [{"city": "Rome"}, {"city": "Bern"}]
    results = [message for message in trajectory.messages if message.role == "tool"]
    assert [message.tool_call_id for message in results] == [call.id for call in calls]
    assert trajectory.tools_at(0) == declared
    assert [(score.name, score.value, score.comment, score.scorer_kind) for score in trajectory.scores] == [
        ("completeness", 4.0, "all", "model"),
        ("overall_score", 4.5, None, "model"),
    ]
    assert (trajectory.task_id, trajectory.task_type) == ("u", "multi-turn")


def test_toucan_rows_with_turns_for_calls(tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": "Rome?"},
        {"role": "tool_call", "content": "{'name': 'weather', 'arguments': '{\"city\": \"Rome\"}'}"},
        {"role": "tool_response", "content": "sun"},
        {"role": "assistant", "content": "Sun."},
    ]
    tools = json.dumps([{"type": "function", "function": {"name": "weather", "parameters": {}}}])
    row = {"uuid": "u", "subset_name": "single", "messages": json.dumps(messages), "tools": tools}
    (trajectory,) = read(tmp_path, row, format="toucan").trajectories
    assert [message.role for message in trajectory.messages] == ["user", "assistant", "tool", "assistant"]
    assert trajectory.messages[1].tool_calls[0].arguments == {"city": "Rome"}


def test_apigen_rows_are_sharegpt(tmp_path: Path) -> None:
    row = {
        "system": "Policy.",
        "tools": '[{"name": "find", "parameters": {"type": "object"}}]',
        "conversations": [
            {"from": "human", "value": "Find it."},
            {"from": "function_call", "value": '{"name": "find", "arguments": {}}'},
            {"from": "observation", "value": "found"},
            {"from": "gpt", "value": "Here."},
        ],
    }
    (trajectory,) = read(tmp_path, row, format="sharegpt").trajectories
    assert [message.role for message in trajectory.messages] == ["system", "user", "assistant", "tool", "assistant"]


def test_real_generation_of_open_instruct() -> None:
    path = REAL_LOGS / "open-instruct/generation_with_tools_expected.json"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    contents = read_logs(path)
    (trajectory,) = contents.trajectories
    logged = json.loads(path.read_text())
    assert [message.text for message in trajectory.messages] == [logged["prompt"], logged["expected_text"]]
    tokens = trajectory.messages[1].tokens
    assert tokens is not None
    assert len(tokens.token_ids) == 1024
    assert tokens.token_ids[:3] == [1350, 7, 16]
    assert trajectory.model == "Qwen/Qwen3-0.6B"
    assert trajectory.metadata == {"model": "Qwen/Qwen3-0.6B", "seed": 42, "temperature": 0.0, "use_tools": True}
