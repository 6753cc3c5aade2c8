"""Real log files, read in place: counts, and one trajectory compared message by message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from offline_arl.trajectories.select import successful
from offline_arl.trajectories.splits import assign_splits
from offline_arl.trajectories.store import Store
from offline_arl.trajectories.validate import problems_of
from offline_arl.workflows.ingest import ingest

REAL_LOGS = Path(__file__).resolve().parents[3] / "shared/real_logs"
TAU_BENCH = REAL_LOGS / "tau-bench/gpt-4o-airline.json"
CHAT = REAL_LOGS / "chat-messages-jsonl/tinker_conversations.jsonl"


def read(path: Path, folder: Path) -> Store:
    if not path.exists():
        pytest.skip(f"{path} is not here")
    report = ingest(path, folder / "store")
    assert report.records == report.trajectories
    assert report.quarantined == report.set_apart == 0
    return Store(folder / "store")


@pytest.fixture(scope="module")
def airline(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return read(TAU_BENCH, tmp_path_factory.mktemp("airline"))


def test_tau_bench_airline_counts(airline: Store) -> None:
    table = airline.trajectories.collect()
    assert table.height == 200
    assert table["task_id"].n_unique() == 50
    assert table.filter(successful()).height == 84
    assert table["duplicate_of"].null_count() == 200
    # 147 conversations that the user ended, 48 handovers, 5 cut after 30 steps.
    endings = table.group_by("stop_reason", "terminated", "truncated").len().sort("len").rows()
    assert endings == [("max_steps", False, True, 5), ("handover", True, False, 48), ("user_stop", True, False, 147)]
    assert table.filter("truncated")["n_steps"].to_list() == [30] * 5
    assert table["n_messages"].sum() == 5308
    assert table["n_steps"].sum() == airline.steps.collect().height == 2454
    assert table["n_tool_calls"].sum() == 1164
    assert table["n_invalid_calls"].sum() == 0


def test_tau_bench_airline_trajectory_is_the_logged_one(airline: Store) -> None:
    logged: list[dict[str, Any]] = json.loads(TAU_BENCH.read_bytes())
    for record, trajectory in zip(logged, airline.iter_trajectories(), strict=True):
        assert trajectory.task_id == str(record["task_id"])
        assert trajectory.outcome.score == record["reward"]
        assert trajectory.metadata == {"trial": record["trial"], "info": record["info"]}
        for message, original in zip(trajectory.messages, record["traj"], strict=True):
            assert message.role == original["role"]
            assert (None if message.content is None else message.text) == original["content"]
            assert message.tool_call_id == original.get("tool_call_id")
            assert [(call.id, call.name, call.arguments_raw) for call in message.tool_calls] == [
                (call["id"], call["function"]["name"], call["function"]["arguments"])
                for call in original.get("tool_calls") or []
            ]
        # The last call of an episode that was handed over may stay without a result; nothing else is odd.
        assert {problem.severity for problem in problems_of(trajectory)} <= {"warning"}


def test_tau_bench_airline_splits_share_no_task(airline: Store) -> None:
    assign_splits(airline, {"train": 0.8, "validation": 0.2}, seed=0)
    table = airline.trajectories.select("task_id", "split").unique().collect()
    assert table.group_by("split").len().sort("split").rows() == [("train", 40), ("validation", 10)]
    validation = list(airline.iter_trajectories(pl.col("split") == "validation"))
    assert len(validation) == 40


def test_chat_messages(tmp_path: Path) -> None:
    store = read(CHAT, tmp_path)
    assert len(store) == 128
    for line, trajectory in zip(CHAT.read_text().splitlines(), store.iter_trajectories(), strict=True):
        logged = json.loads(line)["messages"]
        assert [(message.role, message.text) for message in trajectory.messages] == [
            (message["role"], message["content"]) for message in logged
        ]
        assert trajectory.outcome.status == "unscored"
