"""The peak memory of `offline-arl ingest` must not grow with the log.

`OFFLINE_ARL_BENCH_SIZES` sets the sizes in megabytes (default 200,500,1000,2000).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.long_logs import write_short

SIZES = [int(size) for size in os.environ.get("OFFLINE_ARL_BENCH_SIZES", "200,500,1000,2000").split(",")]
LIMIT_MB = 600


def peak(log: Path, store: Path, workers: int) -> float:
    """Megabytes (10^6 bytes) that the largest of the processes held at most."""
    command = [
        sys.executable,
        "-m",
        "offline_arl.cli",
        "ingest",
        str(log),
        "--store",
        str(store),
        "--workers",
        str(workers),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss * 1024 / 1e6


def test_memory_is_bounded(tmp_path: Path) -> None:
    peaks: dict[tuple[int, int], float] = {}
    for size in SIZES:
        log = tmp_path / f"{size}.jsonl"
        write_short(log, size)
        for workers in (1, 2):
            peaks[size, workers] = peak(log, tmp_path / f"store-{size}-{workers}", workers)
            print(f"{size} MB, {workers} process(es): peak {peaks[size, workers]:.0f} MB", flush=True)
        log.unlink()
    assert max(peaks.values()) < LIMIT_MB
    for workers in (1, 2):
        assert peaks[SIZES[-1], workers] < 1.25 * peaks[SIZES[0], workers], "it grows with the log"
