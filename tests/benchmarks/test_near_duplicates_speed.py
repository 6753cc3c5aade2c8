"""How many trajectories per second the search for near duplicates reads, hashes and compares, in one process."""

from __future__ import annotations

import time
from pathlib import Path

from offline_arl.environments.support_desk.logs import write_logs
from offline_arl.trajectories.near_duplicates import mark_near_duplicates
from offline_arl.trajectories.store import Store
from offline_arl.workflows.ingest import ingest


def test_near_duplicate_speed(tmp_path: Path) -> None:
    write_logs(tmp_path / "log.jsonl", 20_000, seed=0)
    ingest(tmp_path / "log.jsonl", tmp_path / "store")
    store = Store(tmp_path / "store")
    started = time.perf_counter()
    found = mark_near_duplicates(store)
    seconds = time.perf_counter() - started
    print(f"{len(store)} trajectories, {found.height} near duplicates, {len(store) / seconds:,.0f} trajectories/s")
