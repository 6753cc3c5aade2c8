"""How fast logs become a store, in megabytes of log per second of one process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from offline_arl.environments.support_desk.logs import write_logs
from offline_arl.workflows.ingest import ingest

TARGET_BYTES = 50_000_000
AIRLINE = Path(__file__).resolve().parents[3] / "shared/real_logs/tau-bench/gpt-4o-airline.json"


def write_support_desk(path: Path) -> None:
    """Short conversations: about 2 kB a record, most of it tools; about 150 bytes a message."""
    small = path.with_suffix(".small")
    write_logs(small, 3000, seed=0)
    data = small.read_bytes()
    path.write_bytes(data * (TARGET_BYTES // len(data) + 1))


def write_airline(path: Path) -> None:
    """Real conversations in chat form: about 18 kB a record, 27 messages, tool results of every length."""
    if not AIRLINE.exists():
        pytest.skip(f"{AIRLINE} is not here")
    results = json.loads(AIRLINE.read_bytes())
    size = number = 0
    with path.open("w") as stream:
        while size < TARGET_BYTES:
            result = results[number % len(results)]
            record = {
                "messages": result["traj"],
                "task_id": result["task_id"],
                "reward": result["reward"],
                "id": number,
            }
            size += stream.write(json.dumps(record) + "\n")
            number += 1


@pytest.mark.parametrize("write", [write_support_desk, write_airline])
def test_ingest_speed(tmp_path: Path, write: Callable[[Path], None]) -> None:
    path = tmp_path / "log.jsonl"
    write(path)
    started = time.process_time()
    report = ingest(path, tmp_path / "store")
    seconds = time.process_time() - started
    print(
        f"{write.__name__}: {report.records} records, {report.megabytes:.0f} MB, "
        f"{report.megabytes / report.seconds:.1f} MB/s, {report.megabytes / seconds:.1f} MB per CPU second"
    )
    assert report.records == report.trajectories
