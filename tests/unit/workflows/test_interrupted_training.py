"""Training stages that are interrupted go on from their checkpoint, in pipelines and on their own."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from offline_arl.errors import GateError, UsageError
from offline_arl.workflows.config import Pipeline, parse_pipeline
from offline_arl.workflows.launch import Launched
from offline_arl.workflows.run import run_pipeline
from offline_arl.workflows.single import resumable, run_stage

BC = {
    "kind": "train", "algorithm": "bc", "max_steps": 12, "epochs": 12, "tokens_per_batch": 300, "save_steps": 4,
    "packing": True,
}  # fmt: skip


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.jsonl"
    with path.open("w") as lines:
        for number in range(12):
            question = {"role": "user", "content": f"Where is parcel {number}?"}
            answer = {"role": "assistant", "content": "It comes tomorrow. " * (1 + number % 3)}
            lines.write(json.dumps({"messages": [question, answer], "success": True, "task_id": str(number)}) + "\n")
    return path


def _pipeline(log: Path, **settings: Any) -> Pipeline:
    stages = {
        "store": {"kind": "ingest"},
        "start": {"kind": "initial_policy", "store": "store", "vocabulary_size": 300},
        "data": {"kind": "dataset", "form": "bc", "store": "store", "policy": "start"},
        "bc": {**BC, "dataset": "data", "policy": "start", **settings},
    }
    return parse_pipeline({"name": "interrupted", "source": str(log), "stages": stages}, "test")


class _Updates:
    """A progress callback that interrupts training at an update and keeps those that it saw."""

    def __init__(self, stop_at: int = 0) -> None:
        self.seen: list[int] = []
        self._stop_at = stop_at

    def __call__(self, description: str, completed: float, total: float | None, /) -> None:
        if description == "updates":
            assert total == 12
            self.seen.append(int(completed))
            if completed == self._stop_at:
                raise KeyboardInterrupt


def test_a_pipeline_goes_on_in_the_middle_of_a_stage(log: Path, tmp_path: Path) -> None:
    run_pipeline(_pipeline(log), tmp_path / "straight")
    output, updates = tmp_path / "run", _Updates(stop_at=10)
    with pytest.raises(KeyboardInterrupt):
        run_pipeline(_pipeline(log), output, progress=updates)
    assert not (output / "stages/bc").exists()
    assert {path.name for path in (output / "training/bc/checkpoints").glob("checkpoint-*")} == {
        "checkpoint-4", "checkpoint-8",
    }  # fmt: skip
    updates = _Updates()
    told: list[str] = []
    result = run_pipeline(_pipeline(log), output, progress=updates, tell=told.append)
    assert result.executed == ("bc",)
    assert told == [f"bc: going on after update 8, from {output / 'training/bc/checkpoints/checkpoint-8'}"]
    assert updates.seen == [9, 10, 11, 12]
    weights = [
        (folder / "stages/bc/policy/model.safetensors").read_bytes() for folder in (output, tmp_path / "straight")
    ]
    assert weights[0] == weights[1]
    assert not (output / "training").exists() or not any((output / "training").iterdir())


@pytest.mark.parametrize("fresh", [False, True], ids=["another learning rate", "fresh"])
def test_what_has_to_start_anew_starts_anew(fresh: bool, log: Path, tmp_path: Path) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        run_pipeline(_pipeline(log), tmp_path / "run", progress=_Updates(stop_at=6))
    updates = _Updates()
    changed = {} if fresh else {"learning_rate": 1e-4}
    run_pipeline(_pipeline(log, **changed), tmp_path / "run", progress=updates, fresh=fresh)
    assert updates.seen == list(range(1, 13))


def test_the_train_command_goes_on_too_and_keeps_what_tensorboard_shows(log: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run_pipeline(_pipeline(log, max_steps=1), tmp_path / "run")
    stages, updates = tmp_path / "run/stages", _Updates(stop_at=10)
    inputs = {"dataset": stages / "data", "policy": stages / "start"}
    raw = {**BC, "report_to": ["tensorboard"], "logging_steps": 1}
    with pytest.raises(KeyboardInterrupt):
        run_stage(raw, inputs, tmp_path / "out", name="bc", progress=updates)
    assert not (tmp_path / "out").exists()
    assert resumable(tmp_path / "out") == tmp_path / "out.training"
    told: list[str] = []
    with pytest.raises(UsageError, match=r"holds an interrupted training that differs in learning_rate, seed;"):
        run_stage({**raw, "learning_rate": 1e-4}, inputs, tmp_path / "out", name="bc", seed=1, tell=told.append)
    assert told == []
    updates = _Updates()
    inputs = {name: path / ".." / path.name for name, path in inputs.items()}  # the same from another directory
    run_stage({**raw, "logging_steps": 2}, inputs, tmp_path / "out", name="bc", progress=updates, tell=told.append)
    assert [line.partition(", from")[0] for line in told] == ["going on after update 8"]
    assert updates.seen == [9, 10, 11, 12]
    assert not (tmp_path / "out.training").exists()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"policy", "training", "results.json", "summary.md"}
    assert any((tmp_path / "out/training/tensorboard").iterdir())


def test_an_interrupted_training_goes_on_where_it_was_moved_with_its_inputs(log: Path, tmp_path: Path) -> None:
    run_pipeline(_pipeline(log, max_steps=1), tmp_path / "here/run")

    def train(place: Path, updates: _Updates) -> None:
        stages = place / "run/stages"
        run_stage(
            BC, {"dataset": stages / "data", "policy": stages / "start"}, place / "out", name="bc", progress=updates
        )

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "here", _Updates(stop_at=10))
    there = (tmp_path / "here").rename(tmp_path / "there")
    updates = _Updates()
    train(there, updates)
    assert updates.seen == [9, 10, 11, 12]


def test_a_stage_that_fails_before_its_first_checkpoint_leaves_nothing(log: Path, tmp_path: Path) -> None:
    run_pipeline(_pipeline(log, max_steps=1), tmp_path / "run")
    stages = tmp_path / "run/stages"
    inputs = {"dataset": stages / "data", "policy": stages / "start"}
    with pytest.raises(KeyboardInterrupt):
        run_stage(BC, inputs, tmp_path / "out", name="bc", progress=_Updates(stop_at=2))
    assert resumable(tmp_path / "out") is None
    online = {"kind": "online", "algorithm": "grpo", "environment": "support_desk", "validation_tasks": 100, "steps": 1}
    with pytest.raises(GateError):
        run_stage(online, {"policy": stages / "bc"}, tmp_path / "grpo", name="grpo")
    assert not (tmp_path / "grpo.training").exists()


def test_a_stage_that_cannot_be_shared_refuses_more_processes(log: Path, tmp_path: Path) -> None:
    run_pipeline(_pipeline(log, max_steps=1), tmp_path / "run")
    stages = tmp_path / "run/stages"
    raw = {"kind": "evaluate", "environment": "support_desk"}
    for options in ({"processes": 2}, {"launched": Launched(1, 2)}):
        with pytest.raises(UsageError, match="eval runs in one process"):
            run_stage(raw, {}, tmp_path / "out", name="eval", policies={"bc": stages / "bc"}, **options)
