"""Records that became nothing are told by the store later: where they were, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from toy_sessions import Fates, add_piece, finish, index_content, plain, record_key, trajectory

from offline_arl.trajectories.combining import merge
from offline_arl.trajectories.compaction import compact
from offline_arl.trajectories.deletion import delete
from offline_arl.trajectories.index import FILE
from offline_arl.trajectories.select import of_task_type
from offline_arl.trajectories.store import Store
from offline_arl.trajectories.writer import RefusedRecord, StoreWriter

ALONE = ("test", "logs/log", 3, 4, "a title")
FILE_OF_ITS_OWN = (None, "logs/README.md", None, None, "the file is not a log")
IN_SESSION = ("test", "logs/a", 0, 1, "a header")


def set_apart(writer: StoreWriter, row: tuple[Any, ...] = ALONE) -> None:
    format, file, record, line, reason = row
    writer.set_apart(record_key(str(row)), format=format, file=file, record=record, line=line, reason=reason)


def finish_all(writer: StoreWriter, fates: dict[str, tuple[str, str]]) -> None:
    """One trajectory for each group; `fates` says what became of each payload, where it was not used."""
    for batch in writer.dirty_groups():
        for group in batch:
            told: Fates = [
                (piece.record_key, *fates.get(f"{group.key} {piece.payload.decode()}", ("used", "")))  # type: ignore[misc]
                for piece in group.pieces
            ]
            finish(writer, group, [trajectory(f"t-{group.key}", "hello", task_type="session")], told)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.create(tmp_path / "store")
    for _ in range(2):  # what is known is not written again
        with store.writer() as writer:
            writer.add(plain("plain", "ann"))
            set_apart(writer)
            set_apart(writer)
            set_apart(writer, FILE_OF_ITS_OWN)
            for position, text in enumerate(("head", "hello", "hello again", "bad")):
                add_piece(writer, f"a:{position}", text=text)
            for key in ("s", "other"):  # a record of two sessions: a header in one, used in the other
                add_piece(writer, "b:0", key=key, text="shared")
            finish_all(
                writer,
                {
                    "s head": ("set_apart", "a header"),
                    "s hello again": ("duplicate", "the same uuid"),
                    "s bad": ("refused", "no"),
                    "s shared": ("set_apart", "a header"),
                },
            )
    return store


def told(store: Store) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    return store.set_apart.collect().rows(), store.repeated.collect().rows()


EXPECTED = ([ALONE, FILE_OF_ITS_OWN, IN_SESSION], [("test", "logs/a", 2, 3, "the same uuid")])


def test_each_is_told_once(store: Store) -> None:
    assert told(store) == EXPECTED
    assert [part.set_apart.rows for part in store.manifest.parts if part.set_apart is not None] == [2]
    with store.writer() as writer:
        assert writer.record_state(record_key(str(ALONE))) == "set_apart"
        assert writer.record_state(record_key("b:0")) == "used"


def test_a_later_assembly_has_the_last_word(store: Store) -> None:
    with store.writer() as writer:
        add_piece(writer, "a:4", text="more")
        finish_all(writer, {"s hello again": ("set_apart", "a copy"), "s bad": ("refused", "no")})
    assert told(store) == (
        [ALONE, FILE_OF_ITS_OWN, ("test", "logs/a", 2, 3, "a copy")],
        [],
    )


def test_a_record_that_was_refused_can_be_set_apart_later_but_not_one_that_was_used(store: Store) -> None:
    key = record_key(str(row := ("test", "logs/late", 3, 4, "no interaction after all")))
    with store.writer() as writer:
        writer.refuse(RefusedRecord.of(b"{", file="logs/late", record=3, line=4, format="test", reason="no", key=key))
        set_apart(writer, row)
        writer.set_apart(record_key("b:0"), format="test", file="logs/b", record=0, line=1, reason="no")
    assert told(store)[0] == [ALONE, FILE_OF_ITS_OWN, row, IN_SESSION]


def test_they_outlive_the_index_compaction_merging_and_deletion(store: Store, tmp_path: Path) -> None:
    before = index_content(store)
    (store.path / FILE).unlink()
    with store.writer():
        pass
    assert index_content(store)["records"] == before["records"]

    merged, _ = merge([store, store], tmp_path / "merged")
    assert told(merged) == EXPECTED
    assert index_content(merged)["records"] == before["records"]

    with store.writer() as writer:
        set_apart(writer, ("test", "logs/later", 0, 1, "a title"))
    later = ("test", "logs/later", 0, 1, "a title")
    compact(store)
    assert len(store.manifest.parts) == 1
    assert told(store) == ([ALONE, FILE_OF_ITS_OWN, later, IN_SESSION], EXPECTED[1])
    assert store.verify() == []

    delete(store, of_task_type("session"))  # the records of the session go, with what is known of them
    assert told(store) == ([ALONE, FILE_OF_ITS_OWN, later], [])


def test_a_store_that_never_set_anything_apart(tmp_path: Path) -> None:
    empty = Store.create(tmp_path / "store")
    assert told(empty) == ([], [])
    assert empty.set_apart.collect().columns == ["format", "file", "record", "line", "reason"]
