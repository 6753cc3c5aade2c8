"""Online training that is killed and goes on, and that two processes share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from toys.online_runs import RUNS, train

from offline_arl.datasets.segments import SegmentDataset
from offline_arl.trajectories.store import Store

pytestmark = pytest.mark.e2e
SCRIPT = Path(__file__).parents[1] / "toys" / "online_runs.py"
LAUNCH = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--main_process_port", "0"]
SECONDS = "seconds"


def _run(command: list[str]) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def _lines(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != SECONDS} for line in lines]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "reused" else pytest.mark.slow) for name in RUNS]
)
def test_a_killed_run_goes_on_to_the_very_same_losses_and_weights(
    name: str, lookup_policy: Path, tmp_path: Path
) -> None:
    """SIGKILL one step behind a state. Every number of every step and validation, and the policy, bit for bit."""
    _run([sys.executable, str(SCRIPT), "killed", str(lookup_policy), str(tmp_path), name])
    straight, resumed = _lines(tmp_path / "straight"), _lines(tmp_path / "resumed")
    assert [line["step"] for line in straight if line["kind"] == "step"] == [1, 2, 3, 4, 5, 6]
    assert resumed == straight
    weights = [(tmp_path / run / "out/policy/model.safetensors").read_bytes() for run in ("straight", "resumed")]
    assert weights[0] == weights[1]
    played = [
        sorted(trajectory.trajectory_id for trajectory in Store(tmp_path / run / "state/store").iter_trajectories())
        for run in ("straight", "resumed")
    ]
    assert played[0] == played[1]
    if name == "replay":  # else nothing of its own would have been there to come back
        kept = sorted((tmp_path / "resumed/state").glob("checkpoint-*/own_successes"))[-1]
        assert len(SegmentDataset.load(kept)) > 0


def test_two_processes_have_the_losses_of_one(lookup_policy: Path, tmp_path: Path) -> None:
    """`accelerate launch --num_processes 2` over gloo: the same episodes, and the same first step to 1e-5."""
    train(lookup_policy, tmp_path / "one", steps=2, validation_every=2)
    _run([*LAUNCH, "--num_processes", "2", str(SCRIPT), "shared", str(lookup_policy), str(tmp_path / "two")])
    one, two = _lines(tmp_path / "one"), _lines(tmp_path / "two")
    assert [line["kind"] for line in two] == [line["kind"] for line in one]
    assert one[:2] == two[:2]  # the settings, and the validation of the warm start
    alone, together = one[2], two[2]
    for key in (
        "success",
        "mean_return",
        "mean_steps",
        "mean_tokens",
        "environment_steps",
        "idle_groups",
        "n_episodes",
    ):
        assert together[key] == alone[key]
    assert together["loss"] == pytest.approx(alone["loss"], abs=1e-5)
    assert together["gradient_norm"] == pytest.approx(alone["gradient_norm"], rel=1e-3)
    assert together["kl"] == alone["kl"] == 0.0
    assert alone["gradient_norm"] > 0.0
