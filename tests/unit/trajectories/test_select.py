"""Conditions and splits."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from offline_arl.errors import UsageError
from offline_arl.trajectories import select
from offline_arl.trajectories.schema import Branch, Outcome, Source, Trajectory, text_message
from offline_arl.trajectories.store import Store


def attempt(name: str, **fields: object) -> Trajectory:
    messages = [text_message("user", name), text_message("assistant", "done")]
    return Trajectory(name, messages, Source("test"), **fields)  # type: ignore[arg-type]


def store_of(tmp_path: Path, *trajectories: Trajectory) -> Store:
    store = Store.create(tmp_path / "store")
    with store.writer() as writer:
        for trajectory in trajectories:
            writer.add(trajectory)
    return store


def names(store: Store, where: pl.Expr) -> list[str]:
    return [trajectory.trajectory_id for trajectory in store.iter_trajectories(where)]


def test_outcomes_are_three_valued(tmp_path: Path) -> None:
    store = store_of(
        tmp_path,
        attempt("won", outcome=Outcome("scored", success=True)),
        attempt("lost", outcome=Outcome("scored", success=False)),
        attempt("graded", outcome=Outcome("scored", score=0.25)),
        attempt("unknown"),
        attempt("crashed", outcome=Outcome("infrastructure_error", success=False)),
    )
    assert names(store, select.successful()) == ["won"]
    assert names(store, select.failed()) == ["lost"]
    assert names(store, select.scored()) == ["won", "lost", "graded"]
    assert names(store, ~select.successful()) == ["lost", "graded", "unknown", "crashed"]


def test_conditions_combine(tmp_path: Path) -> None:
    store = store_of(
        tmp_path,
        attempt("a", task_type="refund", task_id="1"),
        attempt("b", task_type="status", task_id="2"),
        attempt("c", task_id="3"),
    )
    store.write_side_table("splits", pl.DataFrame({"trajectory_id": ["a", "c"], "split": ["train", "test"]}))
    assert names(store, select.of_task_type("refund", "status") & ~select.in_split("train")) == ["b"]
    assert names(store, select.in_split("train", "test")) == ["a", "c"]
    assert names(store, select.original()) == ["a", "b", "c"]


def test_splits_never_share_a_task_and_have_the_asked_for_sizes(tmp_path: Path) -> None:
    kinds = ("address", "complaint", "refund", "status")
    store = store_of(
        tmp_path,
        *(
            attempt(f"{task}-{trial}", task_id=str(task), task_type=kinds[task % 4])
            for task in range(100)
            for trial in range(3)
        ),
    )
    splits = select.assign_splits(store, {"train": 0.7, "validation": 0.2, "test": 0.1}, seed=3)
    assert splits.height == 300
    table = store.trajectories.select("task_id", "task_type", "split").unique().collect()
    assert table.height == 100, "a task is in two splits"
    assert Counter(table["split"]) == {"train": 70, "validation": 20, "test": 10}
    for kind in kinds:
        counts = Counter(table.filter(pl.col("task_type") == kind)["split"])
        assert 16 <= counts["train"] <= 19
        assert min(counts["validation"], counts["test"]) >= 2


def test_splits_depend_on_the_seed_alone(tmp_path: Path) -> None:
    trajectories = [attempt(str(number), task_id=str(number)) for number in range(40)]
    one = store_of(tmp_path / "one", *trajectories)
    other = store_of(tmp_path / "other", *reversed(trajectories))
    halves = {"train": 0.5, "test": 0.5}
    first = dict(select.assign_splits(one, halves, seed=0).iter_rows())
    assert dict(select.assign_splits(other, halves, seed=0).iter_rows()) == first
    assert dict(select.assign_splits(one, halves, seed=1).iter_rows()) != first


def test_whatever_belongs_together_is_in_one_split(tmp_path: Path) -> None:
    """A chain: task 1 and task 2 share an episode, a branch hangs on the second, a copy of it has no task."""
    chain = [
        attempt("a", task_id="1", episode_id="e"),
        attempt("b", task_id="2", episode_id="e"),
        attempt("c", branch=Branch("b", 1)),
        attempt("d", parent_trajectory_id="c"),
    ]
    others = [attempt(f"other-{number}", task_id=f"other-{number}") for number in range(20)]
    store = store_of(tmp_path, *chain, *others)
    with store.writer() as writer:
        copy = Trajectory("e", chain[2].messages, Source("test"))
        writer.add(copy)
    for seed in range(5):
        splits = dict(select.assign_splits(store, {"train": 0.5, "test": 0.5}, seed=seed).iter_rows())
        assert len({splits[name] for name in "abcde"}) == 1
        assert len(set(splits.values())) == 2


@pytest.mark.parametrize("fractions", [{}, {"train": 0.5}, {"train": 1.2, "test": -0.2}])
def test_fractions_that_are_no_shares_are_refused(tmp_path: Path, fractions: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="must be positive and sum to 1"):
        select.assign_splits(store_of(tmp_path, attempt("a")), fractions, seed=0)
