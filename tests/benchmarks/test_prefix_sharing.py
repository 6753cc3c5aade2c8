"""Wall time and memory of a DPO step on pairs whose prompt is 80 % of the tokens, against TRL's trainer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from toys.preference_step import seconds_of_steps

LIMIT = 0.65


def megabytes(way: str, length: int, pairs: int) -> float:
    """Of one step, above model, data and optimizer, in a process of its own."""
    arguments = [sys.executable, "-m", "toys.preference_step", way, str(length), str(pairs)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
    return float(done.stdout.split()[-1])


@pytest.mark.parametrize(("length", "pairs"), [(500, 4), (2_000, 2)])
def test_a_step_takes_at_most_two_thirds_of_trls_time_and_no_more_memory(
    length: int, pairs: int, tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    theirs, ours = seconds_of_steps(length, pairs, tmp_path)
    memory = {way: megabytes(way, length, pairs) for way in ("trl", "ours")}
    print(
        f"\n{pairs} pairs of {length} tokens: TRL {theirs:.3f} s and {memory['trl']:.0f} MiB, "
        f"ours {ours:.3f} s ({ours / theirs:.2f}) and {memory['ours']:.0f} MiB"
    )
    assert ours <= LIMIT * theirs
    assert memory["ours"] <= memory["trl"]
