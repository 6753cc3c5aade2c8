"""A part is written at the side while the next one is being made; what the writer promises stays the same."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from offline_arl.errors import DataError
from offline_arl.trajectories import files
from offline_arl.trajectories.encoding import encode_trajectory
from offline_arl.trajectories.files import FileEntry
from offline_arl.trajectories.schema import Source, Trajectory, text_message
from offline_arl.trajectories.store import Store
from offline_arl.trajectories.writer import StoreWriter


def trajectory(name: str, text: str = "hi") -> Trajectory:
    return Trajectory(name, [text_message("assistant", text)], Source("test"))


def put(writer: StoreWriter, name: str, text: str = "hi") -> str:
    return writer.add_encoded(encode_trajectory(trajectory(name, text)), record_key=name.encode())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Files of parts are not written until it is set."""
    opened = threading.Event()
    write = files.write_parquet

    def wait_and_write(root: Path, name: str, frame: pl.DataFrame, *, row_group_size: int | None = None) -> FileEntry:
        assert opened.wait(timeout=60)
        return write(root, name, frame, row_group_size=row_group_size)

    monkeypatch.setattr(files, "write_parquet", wait_and_write)
    yield opened
    opened.set()


def test_the_writer_goes_on_meanwhile_and_knows_what_is_in_flight(store: Store, gate: threading.Event) -> None:
    with store.writer(max_part_trajectories=1) as writer:
        put(writer, "first")
        writer.commit_if_full()
        assert len(store) == 0  # its files are not there yet
        assert writer.record_state(b"first") == "used"
        assert writer.record_state(b"second") is None
        assert put(writer, "first", "other") != "first"  # the id is taken
        put(writer, "copy")
        gate.set()
    assert [item.trajectory_id for item in store.iter_trajectories()][0::2] == ["first", "copy"]
    assert store.side_table("duplicates").collect().rows() == [("copy", "first")]
    assert [part.number for part in store.manifest.parts] == [1, 2]


def test_a_commit_waits_for_what_is_in_flight(store: Store) -> None:
    with store.writer(max_part_trajectories=1) as writer:
        put(writer, "a")
        writer.commit_if_full()
        writer.commit()
        assert len(store) == 1
        put(writer, "b", "b")
        writer.commit()
        assert len(store) == 2


def test_a_file_that_cannot_be_written_is_told_and_ends_the_writing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.writer() as writer:
        put(writer, "kept")

    def fail(root: Path, name: str, frame: pl.DataFrame, *, row_group_size: int | None = None) -> FileEntry:
        raise DataError(f"{root / name}: cannot be written (disk full)")

    def write() -> None:
        with store.writer(max_part_trajectories=1) as writer:
            with monkeypatch.context() as broken:
                broken.setattr(files, "write_parquet", fail)
                put(writer, "lost", "lost")
                writer.commit_if_full()
                with pytest.raises(DataError, match="disk full"):
                    writer.commit()
            put(writer, "late", "late")  # a part must not be skipped, so neither this one can be published

    with pytest.raises(DataError, match="disk full"):
        write()
    assert [item.trajectory_id for item in store.iter_trajectories()] == ["kept"]
    with store.writer() as writer:
        assert writer.record_state(b"lost") is None
        put(writer, "lost", "lost")
    assert len(store) == 2
    assert store.verify() == []


def test_a_manifest_that_could_not_be_written_is_tried_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(root: Path, manifest: files.Manifest) -> None:
        raise DataError("no room")

    with store.writer() as writer:
        put(writer, "a")
        with monkeypatch.context() as broken:
            broken.setattr(files, "write_manifest", fail)
            with pytest.raises(DataError, match="no room"):
                writer.commit()
        assert len(store) == 0
        writer.commit()
        assert len(store) == 1


def test_an_error_in_the_block_leaves_no_thread_and_no_part(store: Store, gate: threading.Event) -> None:
    def write() -> None:
        with store.writer(max_part_trajectories=1) as writer:
            put(writer, "a")
            writer.commit_if_full()
            gate.set()
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("part")]
    assert len(store) == 0
    with store.writer():
        pass
    assert not list(store.path.rglob("*.parquet"))
