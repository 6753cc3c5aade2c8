"""ART: trajectories, groups of them, what it prints, and rows of its Parquet files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from offline_arl.logs.reading import LogContents, read_logs
from offline_arl.trajectories.schema import Outcome
from offline_arl.trajectories.validate import errors_of


def read(tmp_path: Path, *rows: Any) -> LogContents:
    path = tmp_path / "rollouts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    contents = read_logs(path)
    assert list(contents.formats.values()) == ["art"]
    assert [errors_of(trajectory) for trajectory in contents.trajectories] == [[]] * len(contents.trajectories)
    return contents


def choice(text: str | None, *token_ids: int, **message: Any) -> dict[str, Any]:
    logprobs = {"content": [{"token": f"token_id:{token}", "logprob": -0.5, "bytes": None} for token in token_ids]}
    return {
        "finish_reason": "stop",
        "index": 0,
        "logprobs": logprobs if token_ids else None,
        "message": {"role": "assistant", "content": text, **message},
    }


TRAJECTORY: dict[str, Any] = {
    "messages_and_choices": [
        {"role": "system", "content": "Add."},
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "2+3?"},
        choice("5", 7, 8),
    ],
    "tools": [{"type": "function", "function": {"name": "add", "parameters": {}}}],
    "reward": 0.75,
    "metrics": {"correct": True, "duration": 1.5},
    "metadata": {"scenario_id": "sum-7"},
    "logs": ["started"],
}


def test_choices_are_sampled_and_messages_are_context(tmp_path: Path) -> None:
    (trajectory,) = read(tmp_path, TRAJECTORY).trajectories
    kinds = [message.producer.kind for message in trajectory.messages]
    assert kinds == ["script", "script", "copy", "script", "model"]
    assert trajectory.step_indices() == [4]
    tokens = trajectory.messages[4].tokens
    assert tokens is not None
    assert (tokens.token_ids, tokens.logprobs) == ([7, 8], [-0.5, -0.5])
    assert trajectory.outcome == Outcome("scored", score=0.75, scorer="art")
    assert [(score.name, score.value, score.direction) for score in trajectory.scores] == [
        ("correct", 1.0, "higher_is_better"),
        ("duration", 1.5, "lower_is_better"),
    ]
    assert (trajectory.task_id, trajectory.metadata["logs"]) == ("sum-7", ["started"])


def test_a_line_may_be_a_group(tmp_path: Path) -> None:
    other = TRAJECTORY | {"metadata": {}, "reward": 0.0}
    contents = read(tmp_path, {"trajectories": [TRAJECTORY, other]}, {"trajectories": [other]}, {"trajectories": []})
    groups = [trajectory.group_id for trajectory in contents.trajectories]
    assert groups[0] == groups[1] != groups[2]
    assert len({trajectory.trajectory_id for trajectory in contents.trajectories}) == 3
    assert [fate.fate for fate in contents.fates] == ["used", "used", "set_apart"]


def test_additional_histories_belong_to_their_trajectory(tmp_path: Path) -> None:
    history = {"messages_and_choices": [{"role": "user", "content": "Sum up."}, choice("Sums.")], "tools": None}
    main, side = read(tmp_path, TRAJECTORY | {"additional_histories": [history]}).trajectories
    assert side.parent_trajectory_id == main.trajectory_id
    assert side.episode_id == main.episode_id
    assert [message.text for message in side.messages] == ["Sum up.", "Sums."]
    assert side.contexts == []


def test_the_console_form_says_what_is_trainable(tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    row = {
        "reward": 1.0,
        "metrics": {},
        "metadata": {},
        "tools": None,
        "logs": [],
        "messages": [
            {"role": "user", "content": "2+3?", "trainable": False},
            {"role": "assistant", "content": None, "tool_calls": [call], "trainable": True},
            {"role": "tool", "content": "5", "tool_call_id": "c", "trainable": False},
            {"role": "assistant", "content": "5", "trainable": True},
        ],
    }
    (trajectory,) = read(tmp_path, row).trajectories
    kinds = [message.producer.kind for message in trajectory.messages]
    assert kinds == ["script", "model", "environment", "model"]
    assert trajectory.messages[1].tool_calls[0].name == "add"


def test_rows_of_its_parquet_files(tmp_path: Path) -> None:
    call = '[{"id": "c", "type": "function", "function": {"name": "add", "arguments": "{\\"a\\": 2}"}}]'
    message = pa.struct(
        [
            ("role", pa.string()),
            ("content", pa.string()),
            ("tool_calls", pa.string()),
            ("tool_call_id", pa.string()),
            ("trainable", pa.bool_()),
        ]
    )
    rows = [
        {
            "group_index": group,
            "group_metadata": None,
            "reward": reward,
            "metrics": '{"correct": true}',
            "metadata": None,
            "tools": '[{"type": "function", "function": {"name": "add"}}]',
            "logs": None,
            "messages": [
                {"role": "user", "content": "2+3?", "trainable": False},
                {"role": "assistant", "content": None, "tool_calls": call, "trainable": True},
                {"role": "tool", "content": "5", "tool_call_id": "c", "trainable": False},
            ],
        }
        for group, reward in ((0, 1.0), (0, 0.0), (1, 1.0))
    ]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    table = pa.table({**columns, "messages": pa.array(columns["messages"], pa.list_(message))})
    path = tmp_path / "step-0.parquet"
    pyarrow.parquet.write_table(table, path)
    contents = read_logs(path)
    assert list(contents.formats.values()) == ["art"]
    assert [trajectory.outcome.score for trajectory in contents.trajectories] == [1.0, 0.0, 1.0]
    groups = [trajectory.group_id for trajectory in contents.trajectories]
    assert groups == ["step-0.parquet#0", "step-0.parquet#0", "step-0.parquet#1"]
    first = contents.trajectories[0]
    assert first.messages[1].tool_calls[0].arguments == {"a": 2}
    assert first.messages[2].tool_call_id == "c"
    tools = first.tools_at(0)
    assert tools is not None
    assert tools[0]["function"]["name"] == "add"


def test_a_trajectory_without_messages_is_refused(tmp_path: Path) -> None:
    group = {"trajectories": [TRAJECTORY, {"reward": 1.0}]}
    (fate,) = read(tmp_path, group).fates
    assert (fate.fate, fate.reason) == ("refused", "trajectories[1].messages: expected a list, got null")
