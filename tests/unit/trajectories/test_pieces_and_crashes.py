"""A writer of pieces that is killed anywhere leaves each group dirty or finished, and the next one completes it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from toy_sessions import index_content, texts

from offline_arl.trajectories.store import Store

# Adds a log of sessions, assembles, adds what it grew by, and assembles again; kills itself, as `kill -9` would, at
# the n-th operation on files.
KILLED_WRITER = """
    import os, signal, sys
    from offline_arl.trajectories import files, index
    from offline_arl.trajectories.store import Store
    from toy_sessions import add_piece, assemble_all

    target, deadline = sys.argv[1], int(sys.argv[2])
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
    index.StoreIndex.add = counted(index.StoreIndex.add)
    index.StoreIndex.commit = counted(index.StoreIndex.commit)
    store = Store.create(target, exist_ok=True)
    for length in (4, 7):
        with store.writer(max_part_bytes=40, max_part_trajectories=3) as writer:
            for position in range(length):
                for session in range(6):
                    text = "bad" if (session, position) == (2, 3) else f"message {position}"
                    add_piece(writer, f"{session}:{position}", key=f"s{session}", text=text)
                    writer.commit_if_full()
            assemble_all(writer)
    print(count)
"""


def run(target: Path, deadline: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(KILLED_WRITER), str(target), str(deadline)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


def content(store: Store) -> dict[str, Any]:
    index = index_content(store)
    copies = store.trajectories.select("trajectory_id", "duplicate_of").collect()
    return {
        "trajectories": texts(store),
        "copies": copies.sort("trajectory_id").rows(),
        "quarantined": store.quarantined.collect().rows(),
        "counts": store.manifest.counts,
        "records": index["records"],
        "groups": [(row[0], row[1]) for row in index["groups"]],
    }


def test_a_kill_at_any_operation_leaves_a_store_that_the_next_run_completes(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", 10**6)
    assert whole.returncode == 0, whole.stderr
    operations = int(whole.stdout)
    expected = content(Store(tmp_path / "whole"))
    assert expected["trajectories"]["t-s2"] == [f"message {n}" for n in range(7) if n != 3]
    assert len(expected["trajectories"]) == 6
    assert len(expected["quarantined"]) == 1
    for deadline in sorted({2, *range(3, operations, operations // 20), operations}):
        target = tmp_path / f"killed-{deadline}"
        assert run(target, deadline).returncode == -signal.SIGKILL
        left = Store(target)
        assert left.verify() == []
        assert len(texts(left)) == len(left)
        finished = run(target, 10**6)
        assert finished.returncode == 0, finished.stderr
        store = Store(target)
        assert content(store) == expected, f"after a kill at operation {deadline} of {operations}"
        assert store.verify() == []
        with store.writer():
            pass  # removes replaced side tables
        listed = {entry.path for entry in store.manifest.files()}
        on_disk = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
        assert on_disk - listed == {"manifest.json", "index.sqlite", "lock"}
