"""An ingestion that is killed at random moments, and run again, gives the store of an undisturbed one.

`OFFLINE_ARL_KILLS=20` kills as often as that; the default is a few times.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from offline_arl.environments.support_desk.logs import write_logs
from offline_arl.trajectories.store import Store

REAL_LOGS = Path(__file__).resolve().parents[3] / "shared/real_logs"
KILLS = int(os.environ.get("OFFLINE_ARL_KILLS", "4"))
# Small parts and an fsync for each make many moments to be killed at.
INGEST = """
import sys
from offline_arl.trajectories.store import Store
from offline_arl.workflows.ingest import ingest
Store.writer.__kwdefaults__["max_part_trajectories"] = 40
Store.writer.__kwdefaults__["max_part_bytes"] = 200_000
ingest(sys.argv[1], sys.argv[2])
"""


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs")
    write_logs(folder / "desk.jsonl", 1500, seed=0)
    if REAL_LOGS.exists():
        shutil.copytree(REAL_LOGS, folder / "real")
    return folder


def start(logs: Path, store: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", INGEST, str(logs), str(store)], stderr=subprocess.PIPE)


def content(folder: Path) -> Iterator[Any]:
    """Everything a store holds, without the numbers of its parts."""
    store = Store(folder)
    assert store.verify() == []
    yield sorted(msgspec.json.encode(trajectory) for trajectory in store.iter_trajectories())
    yield store.steps.collect().sort("trajectory_id", "step").rows()
    yield sorted(store.quarantined.collect().rows(), key=repr)
    yield sorted(store.trajectories.select("trajectory_id", "duplicate_of").collect().rows(), key=repr)
    yield sorted(store.feedback.collect().rows(), key=repr)
    yield store.manifest.counts


def test_killed_at_random_moments_and_run_again(logs: Path, tmp_path: Path) -> None:
    started = time.perf_counter()
    assert start(logs, tmp_path / "whole").wait() == 0
    whole_seconds = time.perf_counter() - started
    rng = random.Random(0)
    killed = 0
    for _ in range(10 * KILLS):
        process = start(logs, tmp_path / "killed")
        time.sleep(rng.uniform(0.3, 1.0) * whole_seconds)
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
        if killed == KILLS:
            break
        if process.returncode == 0:  # it was done already; begin anew
            shutil.rmtree(tmp_path / "killed")
    assert killed == KILLS
    final = start(logs, tmp_path / "killed")
    _, errors = final.communicate()
    assert final.returncode == 0, errors.decode()
    for undisturbed, disturbed in zip(content(tmp_path / "whole"), content(tmp_path / "killed"), strict=True):
        assert undisturbed == disturbed
