"""Preference training that two processes share: the losses and the monitors of one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from toys.preferences import answer_dataset, pair_dataset, toy_answers, toy_pairs

SCRIPT = Path(__file__).parents[1] / "toys" / "preference_runs.py"
LAUNCH = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_machines", "1", "--mixed_precision", "no"]


def lines(algorithm: str, data: Path, output: Path, processes: int) -> list[dict[str, Any]]:
    """The log of a run."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [*LAUNCH, "--num_processes", str(processes), str(SCRIPT), algorithm, str(data), str(output)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in (output / "policy" / "monitors.jsonl").read_text().splitlines()]


@pytest.mark.e2e
@pytest.mark.parametrize("algorithm", ["dpo", "kto"])
def test_two_processes_log_what_one_does(algorithm: str, tmp_path: Path) -> None:
    """KTO's reference point is that of both; three batches of an update are cut in six."""
    data = tmp_path / "data"
    if algorithm == "dpo":
        pair_dataset(data, toy_pairs(30))
    else:
        answer_dataset(data, toy_answers(60))
    one = lines(algorithm, data, tmp_path / "one", 1)
    two = lines(algorithm, data, tmp_path / "two", 2)
    assert len(one) == len(two) > 3
    names = ["loss", "grad_norm", "kl_to_reference", "end_log_ratio"]
    names += ["reference_point"] if algorithm == "kto" else ["log_ratio/chosen", "margin_length_correlation"]
    for alone, together in zip(one, two, strict=True):
        for name in names:
            assert together[name] == pytest.approx(alone[name], rel=1e-4, abs=1e-5), name
    if algorithm == "kto":
        assert max(line["reference_point"] for line in one) > 0.1
