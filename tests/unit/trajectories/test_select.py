"""Conditions."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from offline_arl.trajectories import select
from offline_arl.trajectories.schema import Outcome, Source, Trajectory, text_message
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
