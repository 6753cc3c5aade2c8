"""Every real log file, ingested, equals its oracle (see `oracle.py`)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from offline_arl.logs.reading import LogContents, read_logs
from offline_arl.trajectories.schema import Message, Trajectory, is_policy_message

sys.path.insert(0, str(Path(__file__).parent))
import oracle

FILES = oracle.oracle_files()
pytestmark = pytest.mark.skipif(not FILES, reason="the real logs are not here")


def test_every_file_has_an_oracle() -> None:
    missing = [file for file in FILES if not (oracle.ORACLES / f"{file}.json").exists()]
    assert not missing
    assert len(FILES) == 82


def test_at_least_sixty_files_hold_trajectories_and_the_others_are_argued() -> None:
    oracles = {file: json.loads((oracle.ORACLES / f"{file}.json").read_text()) for file in FILES}
    without = {file: value.get("no_trajectory") for file, value in oracles.items() if not value["trajectories"]}
    assert len(oracles) - len(without) >= 60
    assert all(without.values()), without


@pytest.mark.parametrize("file", FILES)
def test_a_real_log_equals_its_oracle(file: str) -> None:
    expected = json.loads((oracle.ORACLES / f"{file}.json").read_text())
    contents = read_logs(oracle.REAL_LOGS / file)
    found = [_row(trajectory) for trajectory in contents.trajectories]
    order = _match([row["messages"] for row in found], [row["messages"] for row in expected["trajectories"]])
    places = {contents.trajectories[index].trajectory_id: place for place, index in enumerate(order)}
    groups = [contents.trajectories[index].group_id for index in order]
    for index, wanted in zip(order, expected["trajectories"], strict=True):
        row = _with_links(found[index], contents.trajectories[index], places)
        row["group"] = None if row["group_id"] is None else groups.index(row["group_id"])
        if isinstance(wanted["messages"], str):
            row["messages"] = oracle.compact(row["messages"])
        assert {key: row.get(key) for key in wanted} == wanted
    assert _fates(contents) == {"used": 0, "refused": 0, "set_apart": 0, "duplicate": 0} | expected["records"]


def _row(trajectory: Trajectory) -> dict[str, Any]:
    outcome = trajectory.outcome
    last_tools = trajectory.tools_at(len(trajectory.messages))
    return {
        "messages": _messages(trajectory.messages),
        "outcome": {"status": outcome.status, "success": outcome.success, "score": outcome.score},
        "scores": [
            {"name": score.name, "value": score.value, "label": score.label, "message_index": score.message_index}
            for score in trajectory.scores
        ],
        "terminated": trajectory.terminated,
        "truncated": trajectory.truncated,
        "tools": None if last_tools is None else [tool["function"]["name"] for tool in last_tools],
        "task_id": trajectory.task_id,
        "group_id": trajectory.group_id,
        "model": trajectory.model,
    }


def _messages(messages: list[Message]) -> list[dict[str, Any]]:
    calls: dict[str, int] = {}  # an id that is used again means the latest call
    rows = []
    for index, message in enumerate(messages):
        rows.append(_message(message, calls))
        calls.update({call.id: index for call in message.tool_calls if call.id is not None})
    return rows


def _message(message: Message, calls: dict[str, int]) -> dict[str, Any]:
    return oracle.message(
        message.role,
        message.text,
        reasoning=message.reasoning,
        calls=[
            (call.name, call.arguments_raw if call.arguments is None else call.arguments) for call in message.tool_calls
        ],
        answers=calls.get(message.tool_call_id) if message.tool_call_id is not None else None,
        error=message.error is not None,
        trained=is_policy_message(message),
    )


def _with_links(row: dict[str, Any], trajectory: Trajectory, places: dict[str, int]) -> dict[str, Any]:
    branch = trajectory.branch
    linked = dict(row)
    linked["branch"] = None if branch is None else {"of": places[branch.trajectory_id], "at": branch.message_index}
    parent = trajectory.parent_trajectory_id
    linked["parent"] = None if parent is None else places.get(parent, parent)
    return linked


def _match(found: list[Any], wanted: list[Any]) -> list[int]:
    """Indices into `found` in the order of `wanted`, by equal messages; what does not match is shown."""
    if wanted and isinstance(wanted[0], str):
        found = [oracle.compact(messages) for messages in found]
    free = list(range(len(found)))
    order = []
    for index, messages in enumerate(wanted):
        equal = next((candidate for candidate in free if found[candidate] == messages), None)
        if equal is None:
            assert [found[candidate] for candidate in free] == wanted[index:]
            raise AssertionError(f"trajectory {index} was not found")
        free.remove(equal)
        order.append(equal)
    assert not [found[index] for index in free], "trajectories that the oracle does not have"
    return order


def _fates(contents: LogContents) -> dict[str, int]:
    return {fate: contents.count(fate) for fate in ("used", "refused", "set_apart", "duplicate")}
