"""How fast logs become a store, in megabytes of log per second of one process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from offline_arl.workflows.ingest import ingest
from tests.benchmarks.long_logs import write_long, write_short

MEGABYTES = 50


@pytest.mark.parametrize("write", [write_short, write_long])
def test_ingest_speed(tmp_path: Path, write: Callable[[Path, float], None]) -> None:
    path = tmp_path / "log.jsonl"
    write(path, MEGABYTES)
    started = time.process_time()
    report = ingest(path, tmp_path / "store")
    seconds = time.process_time() - started
    print(
        f"{write.__name__}: {report.records} records, {report.megabytes:.0f} MB, "
        f"{report.megabytes / report.seconds:.1f} MB/s, {report.megabytes / seconds:.1f} MB per CPU second"
    )
    assert report.records == report.trajectories
