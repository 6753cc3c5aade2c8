"""A selection holds what belongs to it and nothing else; a merged store is as if all had been written to it."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from toy_sessions import add_piece, assemble_all, content, plain, record_key, rich_store, texts, trajectory

from offline_arl.errors import UsageError
from offline_arl.trajectories.combining import MergeReport, merge, select_into
from offline_arl.trajectories.deletion import delete
from offline_arl.trajectories.encoding import encode_trajectory
from offline_arl.trajectories.schema import Branch
from offline_arl.trajectories.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return rich_store(tmp_path / "store", "ann", "bob", "cid")


def test_a_selection_of_everything_reads_the_same(store: Store, tmp_path: Path) -> None:
    selection = select_into(store, pl.lit(value=True), tmp_path / "selection")
    assert list(selection.iter_trajectories()) == list(store.iter_trajectories())
    for name in ("trajectories", "steps", "findings"):
        assert getattr(selection, name).collect().rows() == getattr(store, name).collect().rows()
    known = store.feedback.filter(pl.col("trajectory_id").is_not_null()).collect().rows()
    assert sorted(map(repr, selection.feedback.collect().rows())) == sorted(map(repr, known))
    assert selection.side_table("splits").collect().equals(store.side_table("splits").collect())
    assert len(selection) == len(store)
    assert selection.verify() == []


def test_a_selection_holds_what_belongs_to_it(store: Store, tmp_path: Path) -> None:
    selection = select_into(store, (pl.col("user_id") == "bob") & (pl.col("trajectory_id") != "bob-1"), tmp_path / "s")
    assert list(selection.iter_trajectories()) == [store.get("bob-2"), store.get("t-bob")]
    copies = selection.trajectories.select("trajectory_id", "duplicate_of").collect().rows()
    assert copies == [("bob-2", None), ("t-bob", "bob-2")]  # the original was not selected
    judged = set(selection.feedback.select("name", "trajectory_id").collect().rows())
    assert judged == {
        *((name, target) for name in ("own", "thumb", "quality") for target in ("bob-2", "t-bob")),
        ("group", "t-bob"),
    }
    assert selection.side_table("splits").collect().height == 2
    assert set(selection.findings.collect()["trajectory_id"]) == {"bob-2", "t-bob"}
    assert all(part.pieces is None and part.quarantine is None for part in selection.manifest.parts)
    for path in selection.path.rglob("*.parquet"):
        assert "ann" not in repr(pl.read_parquet(path).rows())


def test_an_outcome_that_came_later_stays_apart(store: Store, tmp_path: Path) -> None:
    verdict = {"trajectory_id": ["ann-1"], "status": ["scored"], "success": [True], "score": [1.0], "scorer": ["me"]}
    store.write_side_table("outcomes", pl.DataFrame(verdict))
    selection = select_into(store, pl.col("success").fill_null(value=False), tmp_path / "selection")
    assert [t.outcome.scorer for t in selection.iter_trajectories()] == ["me"]
    assert selection.logged_trajectories.collect()["status"].to_list() == ["unscored"]


def test_an_output_that_is_in_use_is_refused(store: Store) -> None:
    with pytest.raises(UsageError, match="there is a store already"):
        select_into(store, pl.lit(value=True), store.path)
    with pytest.raises(UsageError, match="there is a store already"):
        merge([store], store.path)
    with pytest.raises(UsageError, match="merge: no stores"):
        merge([], store.path)


def test_a_merge_of_one_is_a_copy(store: Store, tmp_path: Path) -> None:
    merged, report = merge([store], tmp_path / "merged")
    assert report == MergeReport(trajectories=9, identical=0, renamed=0, joined_groups=0)
    before, after = content(store), content(merged)
    assert after == before
    assert merged.verify() == []
    (merged.path / "index.sqlite").unlink()
    assert content(merged) == before


def test_stores_of_different_logs_are_put_one_after_another(tmp_path: Path) -> None:
    parts = [rich_store(tmp_path / user, user) for user in ("ann", "bob", "cid")]
    merged, report = merge(parts, tmp_path / "merged")
    assert report == MergeReport(trajectories=9, identical=0, renamed=0, joined_groups=0)
    assert list(merged.iter_trajectories()) == [t for part in parts for t in part.iter_trajectories()]
    for name in ("steps", "findings"):
        expected = [row for part in parts for row in getattr(part, name).collect().rows()]
        assert getattr(merged, name).collect().rows() == expected
    judged = [row for part in parts for row in part.feedback.collect().rows()]
    assert sorted(map(repr, merged.feedback.collect().rows())) == sorted(map(repr, judged))
    assert merged.side_table("splits").collect().height == 9
    with merged.writer() as writer:
        assert [writer.record_state(record_key(f"bob:{n}")) for n in range(3)] == ["used", "used", "pending"]
        for user in ("ann", "bob", "cid"):
            assert not add_piece(writer, f"{user}:0", key=user)
        assert add_piece(writer, "cid:4", key="cid", text="cid goes on")
        done = assemble_all(writer)
        assert done == ["pending ann", "pending bob", "cid", "pending cid"]
    assert texts(merged)["t-cid"] == ["cid says hello", "cid says more", "cid goes on"]


def test_what_two_stores_hold_is_held_once(store: Store, tmp_path: Path) -> None:
    merged, report = merge([store, store], tmp_path / "merged")
    assert report == MergeReport(trajectories=9, identical=9, renamed=0, joined_groups=6)
    expected = content(store)
    found = content(merged)
    # Feedback that came without a record (a group's) and what waits are the same too: only what is new comes in.
    assert found == expected


def test_sessions_of_which_each_store_saw_a_part_are_assembled_again(tmp_path: Path) -> None:
    first, second = Store.create(tmp_path / "first"), Store.create(tmp_path / "second")
    for store, seen in ((first, ["0", "1"]), (second, ["1", "2"])):
        with store.writer() as writer:
            add_piece(writer, f"{store.path.name}:0", key=store.path.name, text="of one alone")
            for position in seen:
                add_piece(writer, f"log:{position}", text=f"message {position}")
            assemble_all(writer)
    merged, report = merge([first, second], tmp_path / "merged")
    assert report == MergeReport(trajectories=3, identical=1, renamed=0, joined_groups=1)
    assert texts(merged)["t-s"] == ["message 0", "message 1"]
    with merged.writer() as writer:
        assert writer.record_state(record_key("log:2")) == "pending"
        assert assemble_all(writer) == ["s"]
    assert texts(merged) == {
        "t-first": ["of one alone"],
        "t-second": ["of one alone"],
        "t-s": ["message 0", "message 1", "message 2"],
    }


def test_ids_that_mean_different_things_are_told_apart(tmp_path: Path) -> None:
    """Records of files of one name: the same record is known by its key, another one gets a new id."""
    first, second = Store.create(tmp_path / "first"), Store.create(tmp_path / "second")
    for number, store in enumerate((first, second)):
        with store.writer() as writer:
            same = encode_trajectory(trajectory("same record", "x"))
            writer.add_encoded(same, record_key=b"same")
            writer.add(trajectory("same content", "y"))
            writer.add(trajectory("other content", f"z{number}"))
            writer.add_encoded(encode_trajectory(trajectory("twin", "t")), record_key=b"%d" % number)
            branch = trajectory(f"branch {number}", "z", branch=Branch("other content", 0), parent_trajectory_id="twin")
            writer.add(branch)
        store.write_side_table("splits", pl.DataFrame({"trajectory_id": ["other content"], "split": [f"s{number}"]}))
    merged, report = merge([first, second], tmp_path / "merged")
    assert report == MergeReport(trajectories=8, identical=2, renamed=2, joined_groups=0)
    found = texts(merged)
    new_other, new_twin = list(found)[5:7]
    assert (found["other content"], found[new_other]) == (["z0"], ["z1"])
    assert merged.get("branch 0").branch == Branch("other content", 0)
    assert merged.get("branch 1").branch == Branch(new_other, 0)
    assert merged.get("branch 1").parent_trajectory_id == new_twin
    table = merged.trajectories.select("trajectory_id", "duplicate_of", "split").collect().rows()
    assert (new_twin, "twin", None) in table  # two honest attempts stay two
    assert {row[2] for row in table if row[0] in ("other content", new_other)} == {"s0", "s1"}


def test_a_deletion_holds_in_the_merged_store(store: Store, tmp_path: Path) -> None:
    delete(store, pl.col("user_id") == "ann")
    merged, _ = merge([store, rich_store(tmp_path / "dan", "dan")], tmp_path / "merged")
    with merged.writer() as writer:
        assert writer.record_state(record_key("ann:0")) == "deleted"
        assert not add_piece(writer, "ann:7", key="ann", text="more")
        writer.commit()
        assert writer.record_state(record_key("ann:7")) == "deleted"
        assert writer.add(plain("eve-1", "eve"))
    assert not any("ann" in name for name in texts(merged) if "pending" not in name)


def test_redacted_and_other_stores_are_not_merged(tmp_path: Path) -> None:
    stores = [
        Store.create(tmp_path / "one", configuration={"redaction": {"key_id": "a"}}),
        Store.create(tmp_path / "two"),
    ]
    with pytest.raises(UsageError, match=r"two: is redacted in another way than .*one, or only one of them is"):
        merge(stores, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()
