"""Broken copies of the real logs: no crash, no hang, every record accounted for.

`make fuzz` runs 10,000 copies (`OFFLINE_ARL_MUTANTS=10000`); the default is a few hundred.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import pytest

from offline_arl.trajectories.store import Store
from offline_arl.workflows.ingest import IngestReport, ingest

sys.path.insert(0, str(Path(__file__).parent))
from mutations import mutations_of

REAL_LOGS = Path(__file__).resolve().parents[3] / "shared/real_logs"
MUTANTS = int(os.environ.get("OFFLINE_ARL_MUTANTS", "200"))
BATCH = 50
SECONDS_PER_BATCH = 120


def real_files() -> list[Path]:
    return sorted(path for path in REAL_LOGS.rglob("*") if path.is_file() and path.parent != REAL_LOGS)


@pytest.mark.skipif(not REAL_LOGS.exists(), reason="the real logs are not here")
@pytest.mark.parametrize("batch", range(-(-MUTANTS // BATCH)))
def test_mutated_logs_are_read_or_refused(batch: int, tmp_path: Path) -> None:
    rng = random.Random(batch)
    files = real_files()
    folder = tmp_path / "logs"
    for number in range(batch * BATCH, min(MUTANTS, (batch + 1) * BATCH)):
        original = files[number % len(files)]
        data = original.read_bytes()
        mutated = rng.choice(mutations_of(data))(data, rng)
        path = folder / f"{number:05}" / original.name
        path.parent.mkdir(parents=True)
        path.write_bytes(mutated)
    started = time.perf_counter()
    report = ingest(folder, tmp_path / "store")
    assert time.perf_counter() - started < SECONDS_PER_BATCH
    assert_adds_up(report)
    store = Store(tmp_path / "store")
    assert store.verify() == []
    assert sum(1 for _ in store.iter_trajectories()) == len(store)
    # The safety net that turns a fault of an adapter into a refusal must not be needed.
    faults = [reason for reason in store.quarantined.collect()["reason"] if reason.startswith("the adapter ")]
    assert not faults
    again = ingest(folder, tmp_path / "store")
    assert_adds_up(again)
    assert again.trajectories == again.records_used == 0
    assert again.records == report.records


def assert_adds_up(report: IngestReport) -> None:
    assert report.records == report.records_used + report.quarantined + report.duplicates + report.set_apart
    assert sum(report.by_format.values()) == report.records
