"""Deletion from a store and from what was made of it: first a plan that says what goes, then the deed."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from offline_arl.errors import OfflineArlError, UsageError
from offline_arl.optional import require
from offline_arl.trajectories.deletion import DeletionReport, delete
from offline_arl.trajectories.lineage import DerivedKind, derived_from, store_id
from offline_arl.trajectories.splits import extend_splits
from offline_arl.trajectories.store import Store
from offline_arl.workflows.filters import Filters, told_conditions
from offline_arl.workflows.redacted_stores import is_redacted
from offline_arl.workflows.stores import reading

logger = logging.getLogger(__name__)

_WEIGHTS = ("*.safetensors", "tokenizer.json")


@dataclass(frozen=True)
class DerivedData:
    """What was made from the store, as far as it matters to a deletion.

    Attributes:
        kind: What it is.
        path: Where it lies, or lay.
        state: "holds" deleted trajectories, "free" of them, "missing" (nothing there), "unknown" (it cannot be
            looked into: an export, or a folder that cannot be read), "rewritten".
        trajectories: How many it holds of those to be deleted, and of those that the store does not hold any more.
        rows: Rows of a dataset that are about them.
        note: Why the state is unknown, or what to do.
        beside: Trained weights and cached features that lie beside a dataset that holds some, and remain.
    """

    kind: DerivedKind
    path: Path
    state: str
    trajectories: int = 0
    rows: int = 0
    note: str = ""
    beside: tuple[Path, ...] = ()

    @property
    def is_to_be_rewritten(self) -> bool:
        """Whether it is a dataset with rows that have to go."""
        return (self.kind, self.state) == ("dataset", "holds")

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {
            "kind": self.kind, "path": str(self.path), "state": self.state, "trajectories": self.trajectories,
            "rows": self.rows, "note": self.note, "beside": [str(path) for path in self.beside],
        }  # fmt: skip


@dataclass(frozen=True)
class DeletionPlan:
    """What a deletion would remove. `users` and `tasks` are those of the trajectories, without null."""

    store: Path
    filters: Filters
    trajectory_ids: tuple[str, ...]
    steps: int
    users: tuple[str, ...]
    tasks: tuple[str, ...]
    derived: tuple[DerivedData, ...]
    of_redacted: bool = False  # the store holds redacted records: ids may be placeholders

    def changes_anything(self, *, datasets: bool) -> bool:
        """Whether there is something to do; `datasets` as for `execute`."""
        return bool(self.trajectory_ids) or (datasets and any(item.is_to_be_rewritten for item in self.derived))

    def as_dict(self) -> dict[str, Any]:
        """The plan as a JSON object."""
        return {
            "store": str(self.store),
            "filters": self.filters.as_dict(),
            "trajectories": len(self.trajectory_ids),
            "steps": self.steps,
            "users": list(self.users),
            "tasks": list(self.tasks),
            "derived": [item.as_dict() for item in self.derived],
        }


@dataclass(frozen=True)
class Deleted:
    """What a deletion removed. `derived` tells the state of what was made from the store after it."""

    report: DeletionReport
    derived: tuple[DerivedData, ...]

    def as_dict(self) -> dict[str, Any]:
        """The report as a JSON object."""
        report = self.report
        return {
            "trajectories": report.trajectories,
            "steps": report.steps,
            "pieces": report.pieces,
            "feedback": report.feedback,
            "quarantined": report.quarantined,
            "records": report.records,
            "groups": report.groups,
            "detached_groups": report.detached_groups,
            "related": list(report.related),
            "derived": [item.as_dict() for item in self.derived],
        }


def plan_deletion(path: str | Path, filters: Filters) -> DeletionPlan:
    """Find out what a deletion would remove, and what was made of it. Nothing is changed.

    Raises:
        UsageError: No filter is given, or one is wrong.
        DataError: There is no store, or it is damaged.
    """
    if filters.condition() is None:
        raise UsageError("delete: say which trajectories, for example --user ID; to delete all, remove the store")
    with reading(path) as store:
        condition = filters.for_store(store).condition()
        assert condition is not None
        is_stored_redacted = is_redacted(store)
        with told_conditions(store):
            columns = ("trajectory_id", "n_steps", "user_id", "task_id")
            chosen = store.trajectories.filter(condition).select(columns).collect()
        derived = tuple(_derived(store, chosen["trajectory_id"].to_list()))
    return DeletionPlan(
        store=Path(path),
        filters=filters,
        trajectory_ids=tuple(chosen["trajectory_id"]),
        steps=int(chosen["n_steps"].sum()),
        users=tuple(chosen["user_id"].drop_nulls().unique(maintain_order=True)),
        tasks=tuple(chosen["task_id"].drop_nulls().unique(maintain_order=True)),
        derived=derived,
        of_redacted=is_stored_redacted,
    )


def execute(plan: DeletionPlan, *, datasets: bool = False) -> Deleted:
    """Delete what a plan names, and nothing that came after it.

    The datasets come first: a deletion that is interrupted is completed by the same command, because the store still
    says what is to go.

    Args:
        plan: From `plan_deletion`.
        datasets: Rewrite the datasets that hold some of the trajectories, or some that the store holds no more.

    Raises:
        UsageError: A writer is at work.
        DataError: The store or a dataset is damaged.
    """
    derived = plan.derived
    with reading(plan.store) as store:
        if datasets:
            kept = _kept(store, plan.trajectory_ids)
            derived = tuple(_rewritten(item, kept) for item in derived)
        report = delete(store, pl.col("trajectory_id").is_in(list(plan.trajectory_ids)))
        extend_splits(store)
    return Deleted(report, derived)


def _kept(store: Store, deleted: Sequence[str]) -> pl.DataFrame:
    """The ids of the trajectories that remain."""
    return store.trajectories.select("trajectory_id").filter(~pl.col("trajectory_id").is_in(list(deleted))).collect()


def _derived(store: Store, deleted: Sequence[str]) -> Iterator[DerivedData]:
    kept: pl.DataFrame | None = None
    for entry in derived_from(store.path):
        path = entry.locate(store.path)
        if path is None:
            yield DerivedData(entry.kind, Path(entry.path), "missing", note="nothing lies there any more")
        elif entry.kind == "dataset":
            kept = _kept(store, deleted) if kept is None else kept
            yield _look_into_dataset(store, path, kept)
        elif entry.kind == "store":
            yield _look_into_store(path, deleted)
        elif entry.kind == "policy":
            yield DerivedData("policy", path, "unknown", note="its vocabulary was learned from texts of the store")
        else:
            yield DerivedData(entry.kind, path, "unknown", note="make it again where it is older than the deletion")


def _look_into_dataset(store: Store, path: Path, kept: pl.DataFrame) -> DerivedData:
    try:
        require("pyarrow", extra="train")
        from offline_arl.datasets.deletion import rows_by_trajectory
        from offline_arl.datasets.manifest import load_manifest

        lineage = load_manifest(path).lineage
        if lineage is not None and lineage.store_id != store_id(store.path):
            return DerivedData("dataset", path, "free", note=f"is made from another store by now: {lineage.path}")
        gone = rows_by_trajectory(path).join(kept, on="trajectory_id", how="anti")
    except OfflineArlError as error:
        return DerivedData("dataset", path, "unknown", note=str(error))
    if gone.is_empty():
        return DerivedData("dataset", path, "free")
    note = "rewrite it with: delete --datasets"
    return DerivedData("dataset", path, "holds", gone.height, int(gone["rows"].sum()), note, _beside(path))


def _look_into_store(path: Path, deleted: Sequence[str]) -> DerivedData:
    note = f"delete there too: offline-arl delete {path}"
    if not deleted:  # maybe they were deleted here before
        return DerivedData("store", path, "unknown", note=note)
    try:
        with reading(path) as other:
            held = other.trajectories.filter(pl.col("trajectory_id").is_in(list(deleted)))
            number = held.select(pl.len()).collect().item()
    except OfflineArlError as error:
        return DerivedData("store", path, "unknown", note=str(error))
    if not number:
        return DerivedData("store", path, "free")
    return DerivedData("store", path, "holds", number, note=note)


def _beside(dataset: Path) -> tuple[Path, ...]:
    """Folders of weights and of cached features in the run or the folder that a dataset lies in."""
    root = dataset.parent.parent if dataset.parent.parent.name == "stages" else dataset.parent
    found = {path.parent for depth in ("*/", "*/*/", "*/*/*/") for name in _WEIGHTS for path in root.glob(depth + name)}
    return tuple(sorted(folder for folder in found if dataset not in (folder, *folder.parents)))


def _rewritten(item: DerivedData, kept: pl.DataFrame) -> DerivedData:
    if not item.is_to_be_rewritten:
        return item
    from offline_arl.datasets.deletion import remove_trajectories, rows_by_trajectory

    gone = rows_by_trajectory(item.path).join(kept, on="trajectory_id", how="anti")
    remove_trajectories(item.path, gone["trajectory_id"].to_list())
    logger.info("%s: rewritten without %d trajectories", item.path, gone.height)
    return replace(item, state="rewritten", note="what was trained on it has seen them" if item.beside else "")
