"""The log generator: mixed quality, real mistakes, reproducible, nothing half-written."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from offline_arl.environments.support_desk import family
from offline_arl.environments.support_desk.logs import write_logs
from offline_arl.errors import UsageError
from offline_arl.trajectories.calls import call_problem
from offline_arl.trajectories.schema import tool_call

COUNT = 3_000


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    path = tmp_path_factory.mktemp("logs") / "logs.jsonl"
    family.write_logs(path, COUNT, seed=0)
    return [json.loads(line) for line in path.read_text().splitlines()]


def rate(records: list[dict[str, Any]]) -> float:
    return sum(record["success"] for record in records) / len(records)


def test_success_lies_between_30_and_45_percent(records: list[dict[str, Any]]) -> None:
    assert 0.30 <= rate(records) <= 0.45


def test_compound_requests_are_seldom_finished_though_each_part_is_solved_elsewhere(
    records: list[dict[str, Any]],
) -> None:
    by_type = defaultdict(list)
    for record in records:
        by_type[record["task_type"]].append(record)
    assert rate(by_type["compound"]) < 0.2
    assert all(rate(by_type[kind]) > 0.4 for kind in ("address", "refund", "complaint"))


def test_the_logs_hold_the_mistakes_that_agents_make(records: list[dict[str, Any]]) -> None:
    problems: set[str] = set()
    errors: set[str] = set()
    for record in records:
        for message in record["messages"]:
            for call in message.get("tool_calls", ()):
                function = call["function"]
                problem = call_problem(tool_call(function["name"], function["arguments"]), record["tools"])
                if problem is not None:
                    problems.add(problem.kind)
            if message["role"] == "tool" and "error" in message["content"]:
                errors.add(json.loads(message["content"])["error"])
    assert {"invalid_json", "unknown_tool"} <= problems
    assert "no such order" in errors
    promised = [
        record
        for record in records
        if record["task_type"] == "refund"
        and len(record["messages"]) == 3
        and "refund" in record["messages"][-1]["content"]
    ]
    assert promised
    assert not any(record["success"] for record in promised)
    assert any("tomorrow" in (record["messages"][-1]["content"] or "") for record in records)  # gave up


def test_attempts_at_one_task_share_its_group(records: list[dict[str, Any]]) -> None:
    groups = defaultdict(list)
    for record in records:
        groups[record["group_id"]].append(record)
    assert {len(group) for group in groups.values()} == {2}
    assert all(len({record["messages"][1]["content"] for record in group}) == 1 for group in groups.values())
    assert len({record["id"] for record in records}) == COUNT


def test_the_same_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_logs(tmp_path / name, 30, seed=seed)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (tmp_path / "a").read_bytes() != (tmp_path / "c").read_bytes()


def test_a_failure_leaves_no_file(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_logs(tmp_path / "logs.jsonl", 10, seed=0, progress=stop)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="positive"):
        write_logs(tmp_path / "logs.jsonl", 0, seed=0)
