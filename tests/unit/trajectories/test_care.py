"""Compaction changes nothing that can be read, and deletion leaves nothing that can be found."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import polars as pl
import pytest
from toy_sessions import (
    add_piece,
    assemble_all,
    content,
    index_content,
    plain,
    record_key,
    rich_store,
    texts,
    trajectory,
)

from offline_arl.errors import UsageError
from offline_arl.trajectories.compaction import compact
from offline_arl.trajectories.deletion import delete
from offline_arl.trajectories.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return rich_store(tmp_path / "store", "ann", "bob", "cid")


def test_compaction_changes_nothing_that_can_be_read(store: Store) -> None:
    before = content(store)
    assert len(before["dirty"]) == 3
    report = compact(store)
    assert (report.parts_before > 8, report.parts_after) == (True, 1)
    assert report.bytes_after < report.bytes_before
    assert store.verify() == []
    assert content(store) == before
    on_disk = {path.relative_to(store.path).as_posix() for path in store.path.rglob("*") if path.is_file()}
    assert on_disk - {entry.path for entry in store.manifest.files()} == {"manifest.json", "index.sqlite", "lock"}
    manifest = store.manifest
    assert compact(store).parts_after == 1
    assert store.manifest == manifest


def test_parts_stay_bounded(store: Store) -> None:
    before = content(store)
    compact(store, max_part_trajectories=4)
    rows = [part.trajectories.rows for part in store.manifest.parts if part.trajectories]
    assert (sum(rows), max(rows)) == (9, 4)
    assert content(store) == before


def test_sessions_grow_after_compaction(store: Store) -> None:
    compact(store)
    with store.writer() as writer:
        assert not add_piece(writer, "cid:0", key="cid")
        assert add_piece(writer, "cid:3", key="cid", text="cid says more")
        assert sorted(map(str, assemble_all(writer))) == ["cid", "pending ann", "pending bob", "pending cid"]
    assert texts(store)["t-cid"] == ["cid says hello", "cid says more"]
    assert texts(store)["t-pending ann"] == ["ann waits"]
    judged = store.feedback.filter(pl.col("name") == "group").select("trajectory_id").collect()
    assert sorted(judged["trajectory_id"]) == ["t-ann", "t-bob"]  # the last assembly of cid's gave none


def places_of(store: Store, text: str) -> list[str]:
    """Where a text is found in the store's files, decompressed."""
    found = []
    for path in sorted(store.path.rglob("*")):
        if not path.is_file():
            continue
        data = path.read_bytes()
        if path.suffix == ".parquet":
            frame = pl.read_parquet(path)
            data += repr(frame.rows()).encode()
        if text.encode() in data:
            found.append(path.relative_to(store.path).as_posix())
    return found


def test_nothing_is_left_of_a_deleted_user(store: Store) -> None:
    kinds = {place.split("/")[0] for place in places_of(store, "ann")}
    assert kinds >= {"trajectories", "steps", "blobs", "findings", "scores", "identities"}
    assert kinds >= {"pieces", "assemblies", "fates", "feedback", "side_tables"}
    others = {name: found for name, found in texts(store).items() if "ann" not in name}
    report = delete(store, pl.col("user_id") == "ann")
    assert (report.trajectories, report.steps, report.pieces, report.quarantined) == (3, 3, 3, 1)
    assert (report.feedback, report.groups, report.detached_groups, report.related) == (3, 1, 0, ())
    assert report.records == 4  # three pieces and the record of feedback
    # The session that waits has no trajectory yet, and so no user: it stays.
    assert {place.split("/")[0] for place in places_of(store, "ann")} == {"pieces"}
    with store.writer() as writer:
        assert assemble_all(writer) == ["pending ann", "pending bob", "pending cid"]
    delete(store, pl.col("trajectory_id") == "t-pending ann")
    assert places_of(store, "ann") == []
    assert {name: found for name, found in texts(store).items() if "pending" not in name} == others
    assert store.verify() == []
    assert len(store) == store.manifest.counts.steps == 6 + 2
    assert store.side_table("splits").collect().height == 6
    copies = sorted(store.side_table("duplicates").collect().rows())
    assert copies == [("bob-2", "bob-1"), ("cid-2", "cid-1"), ("t-bob", "bob-1"), ("t-cid", "cid-1")]


def test_the_log_does_not_bring_it_back(store: Store) -> None:
    delete(store, pl.col("user_id") == "ann")
    (store.path / "index.sqlite").unlink()
    with store.writer() as writer:
        for position in (0, 1, 3, 4):  # 4 is new: the session has grown
            assert not add_piece(writer, f"ann:{position}", key="ann", text="ann again")
        writer.commit_if_full()
        assert [writer.record_state(record_key(f"ann:{n}")) for n in (0, 1, 3, 4)] == ["deleted"] * 4
        assert writer.record_state(record_key("feedback ann")) == "deleted"
        assert assemble_all(writer) == ["pending ann", "pending bob", "pending cid"]
    with store.writer() as writer:
        assert writer.record_state(record_key("ann:4")) == "deleted"
    assert "t-ann" not in texts(store)
    grown = index_content(store)
    (store.path / "index.sqlite").unlink()
    compact(store)
    assert index_content(store)["records"] == grown["records"]


def test_what_shares_text_with_the_deleted_is_named(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    with store.writer() as writer:
        for name in ("first", "copy", "another"):
            writer.add(trajectory(name, "same"))
        writer.add(trajectory("child", "x", parent_trajectory_id="first"))
        add_piece(writer, "a:0", key="p", text="shared line")
        add_piece(writer, "a:0", key="q", text="shared line")
        add_piece(writer, "a:1", key="q", text="q alone")
        add_piece(writer, "a:2", key="r", text="r alone")
        assert assemble_all(writer) == ["p", "q", "r"]
    report = delete(store, pl.col("trajectory_id").is_in(["first", "t-p"]))
    assert report.related == ("copy", "another", "child")
    assert store.side_table("duplicates").collect().rows() == [("another", "copy")]
    assert (report.groups, report.detached_groups, report.records) == (1, 1, 1)
    # The shared line is gone from q's pieces too; q's trajectory was made of it and stays until it is deleted.
    assert {place.split("/")[0] for place in places_of(store, "shared line")} == {"trajectories"}
    with store.writer() as writer:
        assert [writer.record_state(record_key(f"a:{n}")) for n in range(3)] == ["deleted", "deleted", "used"]
        add_piece(writer, "a:3", key="q", text="q goes on")
        add_piece(writer, "a:4", key="r", text="r goes on")
        assert assemble_all(writer) == ["r", "q"]  # q is seen as if for the first time
    found = texts(store)
    assert found["t-q"] == ["shared line", "q alone"]
    assert found["t-r"] == ["r alone", "r goes on"]
    assert [found[name] for name in found if not name.startswith("t-")][-1] == ["q goes on"]


def test_deleting_nothing_changes_nothing(store: Store) -> None:
    manifest = store.manifest
    report = delete(store, pl.col("user_id") == "nobody")
    assert (report.trajectories, report.pieces, report.related) == (0, 0, ())
    assert store.manifest == manifest


def test_everything_can_be_deleted(store: Store) -> None:
    delete(store, pl.lit(value=True))
    assert (len(store), list(store.iter_trajectories()), store.steps.collect().height) == (0, [], 0)
    assert store.feedback.select("name").unique().collect()["name"].to_list() == ["day"]  # of a session not here
    with store.writer() as writer:
        assert writer.add(plain("new", "dan"))
    assert texts(store).keys() == {"new"}


def test_care_waits_for_no_writer(store: Store) -> None:
    with store.writer():
        for act in (lambda: compact(store), lambda: delete(store, pl.col("user_id") == "ann")):
            with pytest.raises(UsageError, match="being written by"):
                act()


KILLED_CARE = """
    import os, signal, sys
    from pathlib import Path
    import polars as pl
    from offline_arl.trajectories import files, index
    from offline_arl.trajectories.compaction import compact
    from offline_arl.trajectories.deletion import delete
    from offline_arl.trajectories.store import Store

    target, act, deadline = sys.argv[1], sys.argv[2], int(sys.argv[3])
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
    Path.unlink = counted(Path.unlink)
    index.StoreIndex.commit = counted(index.StoreIndex.commit)
    store = Store(target)
    compact(store) if act == "compact" else delete(store, pl.col("user_id") == "ann")
    print(count)
"""


@pytest.mark.parametrize("act", ["compact", "delete"])
def test_killed_anywhere_the_store_is_as_before_or_as_after(store: Store, tmp_path: Path, act: str) -> None:
    def run(target: Path, deadline: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", textwrap.dedent(KILLED_CARE), str(target), act, str(deadline)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    whole = shutil.copytree(store.path, tmp_path / "whole")
    done = run(whole, 10**6)
    assert done.returncode == 0, done.stderr
    operations = int(done.stdout)
    before, after = texts(store), texts(Store(whole))
    final = content(Store(whole))
    for deadline in sorted({1, *range(2, operations, max(1, operations // 7)), operations}):
        target = shutil.copytree(store.path, tmp_path / f"killed-{deadline}")
        assert run(target, deadline).returncode == -signal.SIGKILL
        left = Store(target)
        assert left.verify() == []
        assert texts(left) in (before, after)
        assert run(target, 10**6).returncode == 0
        assert content(left) == final
        on_disk = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
        assert on_disk - {entry.path for entry in left.manifest.files()} == {"manifest.json", "index.sqlite", "lock"}
