"""Training that is killed and resumed, and training that several processes share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from toys import toy_dataset, toy_rows
from toys.training_runs import RUNS, logged

from offline_arl.trainers.checkpoint import load_record

pytestmark = pytest.mark.e2e
SCRIPT = Path(__file__).parents[1] / "toys" / "training_runs.py"
LAUNCH = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_machines", "1", "--mixed_precision", "no"]


def _run(command: list[str]) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    toy_dataset(folder / "data", toy_rows(24))
    _run([sys.executable, str(SCRIPT), "killed", str(folder)])
    return folder


@pytest.mark.parametrize("name", RUNS)
def test_a_killed_run_goes_on_to_the_very_same_weights_and_losses(killed: Path, name: str) -> None:
    """Killed with SIGKILL two updates behind a checkpoint; bit for bit."""
    straight, resumed = killed / f"{name}_straight", killed / f"{name}_resumed"
    weights = [(folder / "policy" / "model.safetensors").read_bytes() for folder in (straight, resumed)]
    assert weights[0] == weights[1]
    lines = [[(line["step"], line["loss"], line["grad_norm"]) for line in logged(f)] for f in (straight, resumed)]
    assert lines[0] == lines[1]
    records = [load_record(folder / "policy") for folder in (straight, resumed)]
    assert records[0].weights_sha256 == records[1].weights_sha256
    for metric in ("loss", "last_loss", "updates", "trained_tokens"):
        assert records[0].metrics[metric] == records[1].metrics[metric]


@pytest.fixture(scope="module")
def shared_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shared")
    toy_dataset(folder / "data", toy_rows(24))
    return folder


@pytest.mark.parametrize(
    "settings",
    [
        # An update of one batch is cut in two; one of three batches into six parts, three for each process.
        pytest.param({"gradient_accumulation_steps": 1}, id="one batch"),
        pytest.param({"gradient_accumulation_steps": 3, "epochs": 9, "packing": True}, id="three batches, packed"),
    ],
)
def test_two_processes_log_the_losses_of_one(shared_data: Path, settings: dict[str, Any], request: Any) -> None:
    """`accelerate launch --num_processes 2` over gloo, against one process."""
    folders = {}
    for processes in (1, 2):
        folders[processes] = shared_data / f"{request.node.callspec.id.split()[0]}_{processes}"
        command = [*LAUNCH, "--num_processes", str(processes), str(SCRIPT), "shared", str(folders[processes])]
        _run([*command, json.dumps({**settings, "logging_steps": 1})])
    one, two = (logged(folders[processes]) for processes in (1, 2))
    assert len(one) == len(two) > 10
    for alone, together in zip(one, two, strict=True):
        assert together["loss"] == pytest.approx(alone["loss"], rel=2e-6)
        assert together["grad_norm"] == pytest.approx(alone["grad_norm"], rel=2e-5)
        assert together["trained_tokens"] == alone["trained_tokens"]
    assert load_record(folders[2] / "policy").metrics["loss"] == pytest.approx(
        load_record(folders[1] / "policy").metrics["loss"], rel=2e-6
    )
