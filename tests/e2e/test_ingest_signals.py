"""Ingestion under signals, with closed streams, and with worker processes that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from offline_arl.environments.support_desk.logs import write_logs
from offline_arl.trajectories.store import Store

ROOT = Path(__file__).parents[2]


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "offline_arl.cli", "ingest", *map(str, arguments), "--json"]


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    """In a session of its own, so that a signal to its group is what Ctrl-C in a terminal is."""
    return subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
    )


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
            state, _, group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if group == str(process.pid) and b"spawn_main" in words and state != "Z":
            found.append(int(folder.name))
    return found


def wait_for(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, f"waited in vain for: {what}"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("logs") / "desk.jsonl"
    write_logs(path, 500, seed=0)
    path.write_bytes(path.read_bytes() * 60)
    return path


@pytest.fixture(scope="module")
def long_log(log: Path) -> Path:
    """So long that no machine is through with it before it is interrupted."""
    path = log.with_name("long.jsonl")
    path.write_bytes(log.read_bytes() * 5)
    return path


@pytest.mark.parametrize("at", ["start", "middle"])
def test_an_interrupt_of_all_processes_is_told_in_one_line(long_log: Path, tmp_path: Path, at: str) -> None:
    process = start(long_log, "--store", tmp_path / "store", "--workers", "2")
    wait_for(lambda: workers_of(process), "workers")
    if at == "middle":
        wait_for(lambda: list((tmp_path / "store").glob("trajectories/*.parquet")), "work that is done")
    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, json.loads(stdout), stderr) == (130, {"error": "interrupted"}, "error: interrupted\n")
    assert Store(tmp_path / "store").verify() == []
    wait_for(lambda: not workers_of(process), "the end of the workers")


def test_workers_end_with_the_process_that_started_them(long_log: Path, tmp_path: Path) -> None:
    process = start(long_log, "--store", tmp_path / "store", "--workers", "3")
    wait_for(lambda: workers_of(process), "workers")  # the second one starts when the first is busy
    time.sleep(1)
    process.kill()
    process.communicate(timeout=60)
    wait_for(lambda: not workers_of(process), "the end of the workers")
    assert Store(tmp_path / "store").verify() == []


def test_a_worker_that_is_killed_is_an_error_in_one_line(long_log: Path, tmp_path: Path) -> None:
    process = start(long_log, "--store", tmp_path / "store", "--workers", "2")
    wait_for(lambda: list((tmp_path / "store").glob("trajectories/*.parquet")), "work that is done")
    os.kill(workers_of(process)[0], signal.SIGKILL)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "was killed" in json.loads(stdout)["error"]
    assert stderr.count("\n") == 1


def test_closed_streams_do_no_harm(log: Path, tmp_path: Path) -> None:
    """The files of the store must not take the place of closed streams, to which libraries write."""
    words = " ".join(f"'{word}'" for word in command(log, "--store", tmp_path / "store"))
    for streams in (">&-", "2>&-", "<&- >&- 2>&-"):
        done = subprocess.run(["sh", "-c", f"{words} {streams}"], capture_output=True, check=False, cwd=ROOT)
        assert (done.returncode, done.stderr) == (0, b"")
    assert Store(tmp_path / "store").verify() == []


def test_a_store_with_a_name_that_is_not_utf8_is_refused(log: Path, tmp_path: Path) -> None:
    store = tmp_path / os.fsdecode(b"\xff")
    done = subprocess.run(command(log, "--store", store), capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 2
    assert "is not UTF-8" in json.loads(done.stdout)["error"]
    assert not store.exists()
