"""Deletion reaches what was built from a store, or names it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

pytest.importorskip("torch", reason="needs the extra train")

from offline_arl.datasets import SegmentDataset
from offline_arl.errors import DataError, UsageError
from offline_arl.trajectories.lineage import derived_from
from offline_arl.trajectories.store import Store
from offline_arl.workflows import care
from offline_arl.workflows.config import load_pipeline
from offline_arl.workflows.deletion import DerivedData, execute, plan_deletion
from offline_arl.workflows.export import export
from offline_arl.workflows.filters import Filters
from offline_arl.workflows.ingest import ingest
from offline_arl.workflows.run import run_pipeline
from offline_arl.workflows.single import build_from_store

USERS = ("ann", "bob", "eve")


def write_log(path: Path, **fields: Any) -> Path:
    """Two attempts of each user at tasks of their own; each text names its user."""
    rows = []
    for number in range(6):
        user = USERS[number % 3]
        messages = [
            {"role": "user", "content": f"I am {user}, order {number}?"},
            {"role": "assistant", "content": f"Hello {user}, it is on its way."},
        ]
        rows.append({"messages": messages, "user_id": user, "task_id": str(number), "success": True, **fields})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def store(tmp_path: Path) -> Path:
    ingest(write_log(tmp_path / "log.jsonl"), tmp_path / "store")
    return tmp_path / "store"


def by_path(items: tuple[DerivedData, ...]) -> dict[str, DerivedData]:
    return {Path(item.path).parent.name if item.kind == "dataset" else Path(item.path).name: item for item in items}


def users_of(store: Path) -> set[str]:
    return set(Store(store).trajectories.collect()["user_id"])


def ids_of(store: Path, user: str) -> set[str]:
    return set(Store(store).trajectories.filter(pl.col("user_id") == user).collect()["trajectory_id"])


def ids_in(dataset: Path) -> set[str]:
    return set(SegmentDataset.load(dataset).column("trajectory_id"))


def test_a_dataset_names_its_store_and_the_store_its_datasets(store: Path, tmp_path: Path) -> None:
    build_from_store(store, tmp_path / "one", form="bc")
    lineage = SegmentDataset.load(tmp_path / "one/dataset").manifest.lineage
    assert lineage is not None
    assert lineage.path == str(store)
    assert (tmp_path / "one/dataset" / lineage.relative).resolve() == store.resolve()
    kinds = {(entry.kind, entry.path) for entry in derived_from(store)}
    assert kinds == {("policy", str(tmp_path / "one/policy")), ("dataset", str(tmp_path / "one/dataset"))}


def test_a_plan_changes_nothing_and_says_all(store: Path, tmp_path: Path) -> None:
    ann = ids_of(store, "ann")
    build_from_store(store, tmp_path / "all", form="bc")
    care.select(store, tmp_path / "annas", Filters(users=("ann",)))
    care.select(store, tmp_path / "bobs", Filters(users=("bob",)))
    build_from_store(store, tmp_path / "gone", form="bc", model=str(tmp_path / "all/policy"))
    shutil.rmtree(tmp_path / "gone")
    export(store, tmp_path / "export.jsonl", format="openai_chat")
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    plan = plan_deletion(store, Filters(users=("ann",)))
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before
    assert (set(plan.trajectory_ids), plan.steps, plan.users, set(plan.tasks)) == (ann, 2, ("ann",), {"0", "3"})
    found = by_path(plan.derived)
    assert {name: item.state for name, item in found.items()} == {
        "policy": "unknown",
        "all": "holds",
        "annas": "holds",
        "bobs": "free",
        "gone": "missing",
        "export.jsonl": "unknown",
    }
    assert (found["all"].trajectories, found["all"].rows, found["annas"].trajectories) == (2, 2, 2)
    assert found["all"].beside == (tmp_path / "all/policy",)


def test_datasets_lose_the_rows_and_the_store_the_texts(store: Path, tmp_path: Path) -> None:
    ann = ids_of(store, "ann")
    build_from_store(store, tmp_path / "all", form="bc")
    dataset = tmp_path / "all/dataset"
    weights = (tmp_path / "all/policy/model.safetensors").read_bytes()
    done = execute(plan_deletion(store, Filters(users=("ann",))), datasets=True)
    assert (done.report.trajectories, done.report.records) == (2, 2)
    (item,) = (item for item in done.derived if item.kind == "dataset")
    assert (item.state, item.trajectories) == ("rewritten", 2)
    assert users_of(store) == {"bob", "eve"}
    assert ids_in(dataset).isdisjoint(ann)
    manifest = SegmentDataset.load(dataset).manifest
    assert (manifest.counts["trajectories"], manifest.deleted) == (4, 2)
    assert (tmp_path / "all/policy/model.safetensors").read_bytes() == weights
    assert not [path for path in store.rglob("*") if path.is_file() and b"I am ann" in path.read_bytes()]
    assert ingest(tmp_path / "log.jsonl", store).trajectories == 0, "reading the logs again brings nothing back"
    again = plan_deletion(store, Filters(users=("ann",)))
    assert {item.state for item in again.derived if item.kind == "dataset"} == {"free"}


def test_what_was_deleted_before_can_be_taken_out_of_datasets_later(store: Path, tmp_path: Path) -> None:
    build_from_store(store, tmp_path / "all", form="bc")
    execute(plan_deletion(store, Filters(users=("ann",))))
    assert len(ids_in(tmp_path / "all/dataset")) == 6
    plan = plan_deletion(store, Filters(users=("ann",)))
    assert (plan.trajectory_ids, plan.changes_anything(datasets=False)) == ((), False)
    assert plan.changes_anything(datasets=True)
    execute(plan, datasets=True)
    assert len(ids_in(tmp_path / "all/dataset")) == 4


def test_an_interrupted_deletion_is_completed_by_the_same_command(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_from_store(store, tmp_path / "all", form="bc")
    plan = plan_deletion(store, Filters(users=("ann",)))
    with monkeypatch.context() as patch:
        patch.setattr("offline_arl.workflows.deletion.delete", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            execute(plan, datasets=True)
    assert users_of(store) == set(USERS)
    execute(plan_deletion(store, Filters(users=("ann",))), datasets=True)
    assert users_of(store) == {"bob", "eve"}
    assert len(ids_in(tmp_path / "all/dataset")) == 4


def test_a_dataset_that_was_made_anew_of_another_store_is_left_alone(store: Path, tmp_path: Path) -> None:
    build_from_store(store, tmp_path / "data", form="bc")
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "other").mkdir()
    ingest(write_log(tmp_path / "other/log.jsonl"), tmp_path / "other/store")
    build_from_store(tmp_path / "other/store", tmp_path / "data", form="bc")
    before = ids_in(tmp_path / "data/dataset")
    done = execute(plan_deletion(store, Filters(users=("ann", "bob", "eve"))), datasets=True)
    (item,) = (item for item in done.derived if item.kind == "dataset")
    assert (item.state, "is made from another store by now" in item.note) == ("free", True)
    assert ids_in(tmp_path / "data/dataset") == before


def test_a_pipeline_records_its_datasets_and_what_was_trained_is_named(tmp_path: Path) -> None:
    pipeline = tmp_path / "pipeline.yaml"
    pipeline.write_text(
        f"name: small\nsource: {write_log(tmp_path / 'log.jsonl')}\nmodel: tiny\nstages:\n"
        "  store: {kind: ingest}\n"
        "  start: {kind: initial_policy, store: store}\n"
        "  data: {kind: dataset, form: bc, store: store, policy: start}\n"
    )
    run_pipeline(load_pipeline(pipeline), tmp_path / "run")
    stages = tmp_path / "run/stages"
    shutil.move(tmp_path / "run", tmp_path / "moved")
    stages = tmp_path / "moved/stages"
    plan = plan_deletion(stages / "store/store", Filters(users=("bob",)))
    (item,) = (item for item in plan.derived if item.kind == "dataset")
    assert (item.path, item.state, item.trajectories) == (stages / "data/dataset", "holds", 2)
    assert item.beside == (stages / "start/policy",)


def test_what_cannot_be_looked_into_is_named(store: Path, tmp_path: Path) -> None:
    build_from_store(store, tmp_path / "all", form="bc")
    (tmp_path / "all/dataset/manifest.json").write_text("{")
    (item,) = (i for i in plan_deletion(store, Filters(users=("ann",))).derived if i.kind == "dataset")
    assert (item.state, "manifest.json" in item.note) == ("unknown", True)


def test_splits_stay_and_their_counts_follow(store: Path) -> None:
    care.split(store, fractions={"train": 0.5, "test": 0.5})
    before = dict(Store(store).trajectories.select("trajectory_id", "split").collect().iter_rows())
    execute(plan_deletion(store, Filters(users=("ann",))))
    after = dict(Store(store).trajectories.select("trajectory_id", "split").collect().iter_rows())
    assert after == {name: split for name, split in before.items() if name in after}
    counts = Store(store).manifest.configuration["splits"]["counts"]
    assert sum(split["trajectories"] for split in counts.values()) == 4


def test_nothing_is_deleted_without_a_filter_or_by_a_wrong_one(store: Path) -> None:
    with pytest.raises(UsageError, match="say which trajectories"):
        plan_deletion(store, Filters())
    with pytest.raises(UsageError, match="conversion from `str`"):
        plan_deletion(store, Filters(where="user_id::int = 3"))
    with pytest.raises(DataError, match="no trajectory store here"):
        plan_deletion(store.parent, Filters(users=("ann",)))
    plan = plan_deletion(store, Filters(users=("nobody",)))
    assert not plan.changes_anything(datasets=True)
    assert execute(plan).report.trajectories == 0
    assert users_of(store) == set(USERS)
