"""How long a person waits for `--help`. Run by `make bench`."""

from __future__ import annotations

import subprocess
import sys
import time

LIMIT_S = 0.5
RUNS = 7


def test_help_takes_less_than_half_a_second() -> None:
    seconds = []
    for _ in range(RUNS):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "offline_arl.cli", "--help"], capture_output=True, check=True)
        seconds.append(time.perf_counter() - began)
    median = sorted(seconds)[RUNS // 2]
    print(f"offline-arl --help: median {median:.3f} s of {RUNS}, fastest {min(seconds):.3f} s")
    assert median < LIMIT_S
