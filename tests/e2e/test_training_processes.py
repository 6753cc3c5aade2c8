"""Training that is killed and resumed, and training that several processes share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from toys import toy_dataset, toy_rows
from toys.training_runs import RUNS, logged, train

from offline_arl.errors import DataError
from offline_arl.trainers.checkpoint import load_record
from offline_arl.workflows.ingest import ingest
from offline_arl.workflows.single import build_from_store, run_stage

pytestmark = pytest.mark.e2e
SCRIPT = Path(__file__).parents[1] / "toys" / "training_runs.py"
# Without ACCELERATE_USE_CPU and --multi_gpu, accelerate launch starts one process on a machine without GPUs.
LAUNCH = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--main_process_port", "0"]


def _run(command: list[str]) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"}
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


SHARED = {
    # An update of one batch is cut in two; one of three batches into six parts, three for each process.
    "one_batch": {"logging_steps": 1},
    "three_packed_batches": {"logging_steps": 1, "gradient_accumulation_steps": 3, "epochs": 9, "packing": True},
    "muon_with_adapters": {"logging_steps": 1, "optimizer": "muon", "lora_rank": 2},
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "one_batch" else pytest.mark.slow) for name in SHARED]
)
def test_two_processes_log_the_losses_of_one(name: str, tmp_path: Path) -> None:
    """`accelerate launch --num_processes 2` over gloo, against this process alone."""
    toy_dataset(tmp_path / "data", toy_rows(24))
    train(tmp_path / "one", SHARED[name])
    _run([*LAUNCH, "--num_processes", "2", str(SCRIPT), "shared", str(tmp_path / "two"), json.dumps(SHARED[name])])
    one, two = logged(tmp_path / "one"), logged(tmp_path / "two")
    assert len(list((tmp_path / "two/policy.checkpoints").glob("*/rng_state_1.pth"))) == 2  # they were two
    assert len(one) == len(two) > 10
    for alone, together in zip(one, two, strict=True):
        assert together["loss"] == pytest.approx(alone["loss"], rel=5e-6)
        assert together["grad_norm"] == pytest.approx(alone["grad_norm"], rel=5e-5)
        assert together["trained_tokens"] == alone["trained_tokens"]
        assert together["effective_tokens_per_update"] == pytest.approx(alone["effective_tokens_per_update"])
    metrics = [load_record(tmp_path / folder / "policy").metrics for folder in ("one", "two")]
    assert metrics[1]["loss"] == pytest.approx(metrics[0]["loss"], rel=5e-6)


@pytest.fixture
def built(tmp_path: Path) -> dict[str, Path]:
    lines = []
    for number in range(12):
        question = {"role": "user", "content": f"Where is parcel {number}?"}
        answer = {"role": "assistant", "content": "It comes tomorrow. " * (1 + number % 3)}
        lines.append(json.dumps({"messages": [question, answer], "success": True, "task_id": str(number)}))
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    ingest(tmp_path / "log.jsonl", tmp_path / "store")
    build_from_store(tmp_path / "store", tmp_path / "built", form="bc")
    return {"dataset": tmp_path / "built", "policy": tmp_path / "built"}


def test_a_stage_starts_processes_that_share_it(built: dict[str, Path], tmp_path: Path) -> None:
    """`train --processes 2`: the policy of one process, with progress passed on."""
    raw = {"kind": "train", "algorithm": "bc", "epochs": 2, "tokens_per_batch": 200}
    seen: list[tuple[str, float]] = []
    outputs = {
        processes: run_stage(
            raw, built, tmp_path / str(processes), name="bc", processes=processes,
            progress=lambda description, completed, _: seen.append((description, completed)),
        )
        for processes in (1, 2)
    }  # fmt: skip
    weights = [load_file(tmp_path / str(processes) / "policy/model.safetensors") for processes in (1, 2)]
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, atol=2e-5, rtol=0, msg=name)
    assert any(not torch.equal(value, weights[1][name]) for name, value in weights[0].items())  # they were two
    records = [load_record(tmp_path / str(processes) / "policy") for processes in (1, 2)]
    assert records[0].metrics["updates"] == records[1].metrics["updates"]
    assert outputs[2].notes[0].startswith(f"{records[1].metrics['updates']:.0f} updates, loss ")
    assert seen[-1] == ("updates", records[1].metrics["updates"])
    assert {path.name for path in tmp_path.iterdir()} == {"log.jsonl", "store", "built", "1", "2"}


@pytest.mark.slow
def test_what_a_process_refuses_is_raised_by_the_one_that_started_it(built: dict[str, Path], tmp_path: Path) -> None:
    raw = {"kind": "train", "algorithm": "bc", "epochs": 2}
    (built["dataset"] / "dataset/part-00000.parquet").write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"built/dataset: cannot read the dataset .* build it again"):
        run_stage(raw, built, tmp_path / "out", name="bc", processes=2)
    assert not list(tmp_path.glob("*out*"))
