"""Pieces come in, groups go out, and what they became takes the place of what they became before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from toy_sessions import add_piece, assemble_all, finish, index_content, record_key, texts, trajectory

from offline_arl.trajectories import pieces as pieces_module
from offline_arl.trajectories.schema import Branch, Feedback, Score, Trajectory
from offline_arl.trajectories.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


@pytest.fixture
def rebuilt(store: Store) -> Iterator[None]:
    """After the test: an index made from the parts alone equals the one that grew with them."""
    yield
    with store.writer():
        pass
    grown = index_content(store)
    (store.path / "index.sqlite").unlink()
    with store.writer():
        pass
    assert index_content(store) == grown


@pytest.mark.usefixtures("rebuilt")
def test_pieces_wait_until_their_group_is_assembled(store: Store) -> None:
    with store.writer() as writer:
        add_piece(writer, "b:0", text="three")
        add_piece(writer, "a:1", text="two")
        add_piece(writer, "a:0", text="one")
        add_piece(writer, "a:2", key="other", text="alone")
        assert writer.record_state(record_key("a:1")) == "pending"
    assert list(store.iter_trajectories()) == []
    with store.writer() as writer:
        assert writer.record_state(record_key("a:1")) == "pending"
        assert writer.record_state(record_key("a:9")) is None
        (batch,) = writer.dirty_groups()
        first, second = batch
        assert [(piece.file, piece.position, piece.line, piece.payload) for piece in first.pieces] == [
            ("logs/a", 0, 1, b"one"),
            ("logs/a", 1, 2, b"two"),
            ("logs/b", 0, 1, b"three"),
        ]
        assert (first.format, first.key, first.scope) == ("test", "s", "")
        assert (second.key, [piece.sha256 for piece in second.pieces]) == ("other", ["a:2"])
        assert assemble_all(writer) == ["s", "other"]
        assert assemble_all(writer) == []
        assert writer.record_state(record_key("a:1")) == "used"
    assert texts(store) == {"t-s": ["one", "two", "three"], "t-other": ["alone"]}
    assert store.verify() == []


@pytest.mark.usefixtures("rebuilt")
def test_a_session_that_grew_is_assembled_again_and_replaced(store: Store) -> None:
    with store.writer() as writer:
        for session in ("s", "quiet"):
            add_piece(writer, f"{session}:0", key=session, text="one")
        assert assemble_all(writer) == ["s", "quiet"]
    with store.writer() as writer:
        assert not add_piece(writer, "s:0", text="one")
        assert add_piece(writer, "s:1", text="two")
        assert assemble_all(writer) == ["s"]
        assert texts(store) == {"t-s": ["one"], "t-quiet": ["one"]}  # as of the last commit
    assert texts(store) == {"t-quiet": ["one"], "t-s": ["one", "two"]}
    assert (len(store), store.manifest.counts.steps, store.steps.collect().height) == (2, 3, 3)
    assert store.trajectories.collect()["trajectory_id"].to_list() == ["t-quiet", "t-s"]
    assert store.get("t-s").messages[1].text == "two"
    parts = store.manifest.parts
    with store.writer() as writer:
        assert not add_piece(writer, "s:1", text="two")
        assert assemble_all(writer) == []
    assert store.manifest.parts == parts


@pytest.mark.usefixtures("rebuilt")
def test_only_what_changed_is_written_again(store: Store) -> None:
    def assembled(last: Trajectory, *more: Trajectory) -> dict[str, int]:
        with store.writer() as writer:
            add_piece(writer, f"a:{len(store.manifest.parts)}")
            for batch in writer.dirty_groups():
                finish(writer, batch[0], [trajectory("same", "x"), last, *more])
        part = store.manifest.parts[-1]
        return {
            kind: 0 if getattr(part, kind) is None else getattr(part, kind).rows for kind in ("trajectories", "removed")
        }

    assert assembled(trajectory("grows", "a"), trajectory("vanishes", "v")) == {"trajectories": 3, "removed": 0}
    assert assembled(trajectory("grows", "a", metadata={"k": 1})) == {"trajectories": 1, "removed": 2}
    assert assembled(trajectory("grows", "a", metadata={"k": 1})) == {"trajectories": 0, "removed": 0}
    assert assembled(trajectory("grows", "a"), trajectory("vanishes", "v")) == {"trajectories": 2, "removed": 1}
    assert sorted(texts(store)) == ["grows", "same", "vanishes"]
    assert len(store) == 3


@pytest.mark.usefixtures("rebuilt")
def test_copies_follow_when_their_original_changes_or_goes(store: Store) -> None:
    def assembled(session: str, *records: Trajectory) -> None:
        with store.writer() as writer:
            add_piece(writer, f"{session}:{len(store.manifest.parts)}", key=session)
            for batch in writer.dirty_groups():
                finish(writer, batch[0], records)

    def copies() -> dict[str, str]:
        frame = store.trajectories.select("trajectory_id", "duplicate_of").collect()
        return {name: original for name, original in frame.iter_rows() if original is not None}

    assembled("a", trajectory("a", "x"))
    assembled("b", trajectory("b", "x"))
    assembled("c", trajectory("c", "x"))
    assert copies() == {"b": "a", "c": "a"}
    assembled("a", trajectory("a", "x", "y"))
    assert copies() == {"c": "b"}
    assembled("a", trajectory("a", "x"))
    assert copies() == {"a": "b", "c": "b"}
    assembled("b")
    assert copies() == {"a": "c"}  # c was written before the a that is there now
    assembled("a", trajectory("a", "x", metadata={"judged": True}))  # still a copy
    assert copies() == {"a": "c"}
    assembled("c", trajectory("c", "z"))
    assert copies() == {}
    assembled("d", trajectory("d", "x"))
    assert copies() == {"d": "a"}


@pytest.mark.usefixtures("rebuilt")
def test_refused_pieces_are_in_quarantine_once_and_tried_again(store: Store) -> None:
    for _ in range(2):
        with store.writer() as writer:
            for position, text in enumerate(["head", "one", "bad"]):
                add_piece(writer, f"a:{position}", text=text)
            assert assemble_all(writer) == ["s"]
            assert [writer.record_state(record_key(f"a:{n}")) for n in range(3)] == ["set_apart", "used", "refused"]
            writer.commit()
            assert assemble_all(writer) == []
    assert [part.pieces is not None for part in store.manifest.parts] == [True, False]
    (row,) = store.quarantined.collect().to_dicts()
    assert (row["file"], row["record"], row["line"], row["format"], row["reason"], row["raw"]) == (
        "logs/a",
        2,
        3,
        "test",
        "bad!",
        "bad",
    )
    with store.writer() as writer:  # an adapter that can read it
        assert not add_piece(writer, "a:2", text="bad")
        ((group,),) = writer.dirty_groups()
        finish(writer, group, [trajectory("t-s", "one", "better")])
        assert writer.record_state(record_key("a:2")) == "used"
    assert texts(store) == {"t-s": ["one", "better"]}


@pytest.mark.usefixtures("rebuilt")
def test_a_record_of_several_groups_is_used_if_one_of_them_uses_it(store: Store) -> None:
    with store.writer() as writer:
        for record in ("a:0", "a:1"):
            for key in ("p", "q", "p"):
                assert add_piece(writer, record, key=key, text=f"{record} in {key}")
            writer.commit_if_full()
        ((p, q),) = writer.dirty_groups()
        assert [len(p.pieces), len(q.pieces)] == [4, 2]
        finish(writer, p, [], [(record_key("a:0"), "refused", "no"), (record_key("a:1"), "set_apart", "no")])
        finish(writer, q, [], [(record_key("a:0"), "used", ""), (record_key("a:1"), "duplicate", "")])
        assert writer.record_state(record_key("a:0")) == "used"
        assert writer.record_state(record_key("a:1")) == "set_apart"


@pytest.mark.usefixtures("rebuilt")
def test_a_taken_id_is_replaced_in_the_same_way_at_every_assembly(store: Store) -> None:
    def family(*texts: str) -> list[Trajectory]:
        child = trajectory("child", *texts, parent_trajectory_id="root", branch=Branch("root", 1))
        return [trajectory("root", *texts), child]

    with store.writer() as writer:
        writer.add(trajectory("root", "of another log"))
        add_piece(writer, "a:0")
        ((group,),) = writer.dirty_groups()
        new, child = finish(writer, group, family("x"))
    assert new not in ("root", "child")
    assert child == "child"
    with store.writer() as writer:
        add_piece(writer, "a:1")
        ((group,),) = writer.dirty_groups()
        assert finish(writer, group, family("x", "y")) == [new, child]
    assert texts(store) == {"root": ["of another log"], new: ["x", "y"], "child": ["x", "y"]}
    read = store.get("child")
    assert read.parent_trajectory_id == new
    assert read.branch == Branch(new, 1)


@pytest.mark.usefixtures("rebuilt")
def test_the_pieces_of_one_file_keep_their_first_label(store: Store) -> None:
    """Read again by another path, a grown file gives pieces of the same group under the same names."""
    with store.writer() as writer:
        add_piece(writer, "z:0", key=None, text="one")
        add_piece(writer, "z:0", key=None, scope="/elsewhere/z", record_key=b"e" * 16, text="of another file")
    with store.writer() as writer:
        add_piece(writer, "z:1", key=None, label="a/z", file="/logs/z", text="two")
        ((group, other),) = writer.dirty_groups()
    assert [(piece.label, piece.file, piece.payload) for piece in group.pieces] == [
        ("z", "logs/z", b"one"),
        ("z", "logs/z", b"two"),
    ]
    assert (group.key, group.scope, len(other.pieces)) == (None, "/logs/z", 1)


@pytest.mark.usefixtures("rebuilt")
def test_groups_come_in_batches_of_bounded_size(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces_module, "BATCH_BYTES", 100)
    monkeypatch.setattr(pieces_module, "_GROUPS_AT_A_TIME", 3)
    with store.writer(max_part_bytes=150) as writer:
        for position in range(12):
            for session in range(6):
                add_piece(writer, f"{session}:{position}", key=str(session), text=str(position % 10) * (session + 1))
                writer.commit_if_full()
        add_piece(writer, "9:0", key="large", text="x" * 500)
        sizes = [
            [(group.key, sum(len(piece.payload) for piece in group.pieces)) for group in batch]
            for batch in writer.dirty_groups()
        ]
        assert sizes == [
            [("0", 12), ("1", 24), ("2", 36)],
            [("3", 48)],
            [("4", 60)],
            [("5", 72)],
            [("large", 500)],
        ]
        assert assemble_all(writer) == ["0", "1", "2", "3", "4", "5", "large"]
    assert texts(store)["t-4"] == [str(position % 10) * 5 for position in range(12)]


def test_pieces_that_come_while_groups_are_assembled_make_them_dirty_again(store: Store) -> None:
    with store.writer() as writer:
        add_piece(writer, "a:0", text="one")
        ((group,),) = writer.dirty_groups()
        add_piece(writer, "a:1", text="two")
        writer.commit()
        finish(writer, group, [trajectory("t-s", "one")])
        assert assemble_all(writer) == ["s"]
    assert texts(store) == {"t-s": ["one", "two"]}


@pytest.mark.usefixtures("rebuilt")
def test_feedback_of_a_group_is_replaced_with_it(store: Store) -> None:
    def judged(value: float) -> Feedback:
        return Feedback("session", "s", Score("quality", value))

    def rows() -> int:
        return sum(part.feedback.rows for part in store.manifest.parts if part.feedback)

    with store.writer() as writer:
        add_piece(writer, "a:0")
        ((group,),) = writer.dirty_groups()
        finish(writer, group, [trajectory("t", "x")], feedback=[judged(1.0)])
        writer.add_feedback([judged(0.5)], record_key=record_key("b:0"))
        assert writer.record_state(record_key("b:0")) == "used"
    assert rows() == 2
    with store.writer() as writer:
        add_piece(writer, "a:1")
        ((group,),) = writer.dirty_groups()
        finish(writer, group, [trajectory("t", "x")], feedback=[judged(1.0)])
    assert rows() == 2
    with store.writer() as writer:
        add_piece(writer, "a:2")
        ((group,),) = writer.dirty_groups()
        finish(writer, group, [trajectory("t", "x")], feedback=[judged(0.0)])
    assert rows() == 3
    assert store.manifest.parts[-1].removed is not None


def test_file_names_that_are_not_text_are_kept_readable(store: Store) -> None:
    with store.writer() as writer:
        add_piece(writer, "a:0", key=None, scope="/logs/\udcff", label="\udcff", file="logs/\\xff")
        ((group,),) = writer.dirty_groups()
    assert (group.pieces[0].label, group.scope) == ("\\udcff", "/logs/\\udcff")
