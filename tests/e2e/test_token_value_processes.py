"""Token-level value learning that two processes share: the losses and the heads of one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from toys import toy_dataset
from toys.token_runs import RUNS, train
from toys.token_transitions import transition_rows
from toys.training_runs import logged

from offline_arl.models.token_heads import load_token_heads

SCRIPT = Path(__file__).parents[1] / "toys" / "token_runs.py"
# Without ACCELERATE_USE_CPU and --multi_gpu, accelerate launch starts one process on a machine without GPUs.
LAUNCH = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--main_process_port", "0"]
LOSSES = ("loss", "q_loss", "value_loss", "conservative_loss", "mean_q", "mean_v")


@pytest.mark.e2e
@pytest.mark.slow
def test_two_processes_log_the_losses_of_one(tmp_path: Path) -> None:
    """`accelerate launch --num_processes 2` over gloo, against this process alone, in every way to get states."""
    toy_dataset(tmp_path / "data", transition_rows(12), kind="transitions")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"}
    command = [*LAUNCH, "--num_processes", "2", str(SCRIPT), str(tmp_path / "data"), str(tmp_path / "two")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for name, config in RUNS.items():
        alone = train(name, tmp_path / "data", tmp_path / "one")
        assert (tmp_path / "two" / name / "policy.checkpoints/checkpoint-11/rng_state_1.pth").is_file()  # they were two
        one, two = logged(tmp_path / "one" / name), logged(tmp_path / "two" / name)
        assert len(one) == len(two) == 11
        assert len({line["loss"] for line in one}) == 11
        for line, other in zip(one, two, strict=True):
            for loss in LOSSES:
                assert other[loss] == pytest.approx(line[loss], rel=2e-5, abs=1e-6), (name, loss)
            assert other["grad_norm"] == pytest.approx(line["grad_norm"], rel=1e-4)
        together = load_token_heads(tmp_path / "two" / name / "values")
        for value, other in zip(alone.heads.parameters(), together.parameters(), strict=True):
            torch.testing.assert_close(other, value, atol=2e-4, rtol=2e-4)
        if config.language_model == "trained":
            weights = [load_file(tmp_path / runs / name / "policy/model.safetensors") for runs in ("one", "two")]
            for key, value in weights[0].items():
                torch.testing.assert_close(weights[1][key], value, atol=2e-5, rtol=0, msg=key)
