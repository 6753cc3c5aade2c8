"""One writer at a time, and a writer that is killed anywhere leaves a store that reads and goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offline_arl.errors import UsageError
from offline_arl.trajectories.schema import Trajectory
from offline_arl.trajectories.store import Store
from offline_arl.workflows.ingest import ingest

# Runs an ingestion in parts of 20 records and kills itself, as `kill -9` would, at the n-th file operation.
KILLED_INGESTION = """
    import os, signal, sys
    from offline_arl.trajectories import files, index, store
    from offline_arl.workflows.ingest import ingest

    source, target, deadline = sys.argv[1], sys.argv[2], int(sys.argv[3])
    store.MAX_PART_TRAJECTORIES = 20
    store.Store.writer.__kwdefaults__["max_part_trajectories"] = 20
    count = 0

    def counted(function):
        def wrapper(*arguments, **keywords):
            global count
            count += 1
            if count == deadline:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **keywords)
        return wrapper

    files.os.replace = counted(os.replace)
    files.write_manifest = counted(files.write_manifest)
    index.StoreIndex.add = counted(index.StoreIndex.add)
    ingest(source, target)
    print(count)
"""

HOLDER = """
    import sys, time
    from offline_arl.trajectories.store import Store

    with Store(sys.argv[1]).writer():
        print("holding", flush=True)
        time.sleep(60)
"""


def run(script: str, *arguments: str | Path | int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "log.jsonl"
    lines = [
        json.dumps(
            {
                "messages": [
                    {"role": "system", "content": f"Prompt {number // 2 % 3}"},
                    {"role": "user", "content": f"Question {number // 2}"},
                    {"role": "assistant", "content": "Answer"},
                ]
            }
        )
        for number in range(50)
    ]
    lines[7] = '{"messages": [broken'
    path.write_text("\n".join(lines) + "\n")
    return path


def content(store: Store) -> tuple[list[Trajectory], list[Any], list[Any]]:
    return (
        list(store.iter_trajectories()),
        store.quarantined.collect().rows(),
        sorted(store.side_table("duplicates").collect().rows()),
    )


def test_a_kill_at_any_file_operation_leaves_a_store_that_the_next_run_completes(source: Path, tmp_path: Path) -> None:
    whole = run(KILLED_INGESTION, source, tmp_path / "whole", 10**6)
    assert whole.returncode == 0, whole.stderr
    operations = int(whole.stdout)
    expected = content(Store(tmp_path / "whole"))
    assert len(expected[0]) == 49
    assert len(expected[1]) == 1
    assert len(expected[2]) > 0
    # Operation 1 makes the manifest; every third of the rest hits each kind of operation in some part.
    for deadline in sorted({1, 2, *range(3, operations, 3), operations}):
        target = tmp_path / f"killed-{deadline}"
        killed = run(KILLED_INGESTION, source, target, deadline)
        assert killed.returncode == -signal.SIGKILL
        if (target / "manifest.json").exists():
            left = Store(target)
            assert left.verify() == []
            assert len(list(left.iter_trajectories())) == len(left) < 49 or deadline == operations
        report = ingest(source, target)
        assert report.records == 50
        store = Store(target)
        assert content(store) == expected, f"after a kill at operation {deadline}"
        assert store.verify() == []
        listed = {entry.path for entry in store.manifest.files()}
        on_disk = {
            path.relative_to(target).as_posix() for path in target.rglob("*") if path.suffix in (".parquet", ".jsonl")
        }
        assert on_disk == listed


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[Store, subprocess.Popen[str]]]:
    store = Store.create(tmp_path / "held")
    command = [sys.executable, "-c", textwrap.dedent(HOLDER), str(store.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holding\n"
        yield store, process
        process.kill()


def test_a_second_writer_is_told_who_holds_the_store(held: tuple[Store, subprocess.Popen[str]]) -> None:
    store, process = held
    with pytest.raises(UsageError, match=f"being written by process {process.pid} on "), store.writer():
        pass
    assert list(store.iter_trajectories()) == []  # reading needs no lock


def test_the_lock_of_a_dead_process_is_taken_over(held: tuple[Store, subprocess.Popen[str]]) -> None:
    store, process = held
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert str(process.pid) in (store.path / "lock").read_text()
    with store.writer():
        assert str(os.getpid()) in (store.path / "lock").read_text()


def test_two_writers_in_one_process_exclude_one_another(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    with store.writer(), pytest.raises(UsageError, match="being written by"), store.writer():
        pass
    with store.writer():
        pass
