"""What a second process is worth in ingestion. Only a quiet machine can tell.

`OFFLINE_ARL_BENCH_MB` sets the size (default 400), `OFFLINE_ARL_BENCH_RUNS` the number of runs (default 5).
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from offline_arl.workflows.ingest import ingest
from tests.benchmarks.long_logs import write_long, write_short

MEGABYTES = int(os.environ.get("OFFLINE_ARL_BENCH_MB", "400"))
RUNS = int(os.environ.get("OFFLINE_ARL_BENCH_RUNS", "5"))


@pytest.mark.parametrize("write", [write_short, write_long])
def test_two_processes(tmp_path: Path, write: Callable[[Path, float], None]) -> None:
    log = tmp_path / "log.jsonl"
    write(log, MEGABYTES)
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for run in range(RUNS):
        for workers in seconds:
            report = ingest(log, tmp_path / f"store-{run}-{workers}", workers=workers)
            seconds[workers].append(report.seconds)
    one, two = (statistics.median(values) for values in seconds.values())
    cores = len(os.sched_getaffinity(0))
    busy = os.getloadavg()[0]
    print(
        f"{write.__name__}: {MEGABYTES} MB, one process {MEGABYTES / one:.1f} MB/s, two {MEGABYTES / two:.1f} MB/s, "
        f"ratio {one / two:.2f} ({cores} cores, load {busy:.1f} of which about 2 are this test)"
    )
