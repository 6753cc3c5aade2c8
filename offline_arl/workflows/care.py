"""Care of a store: splits, near duplicates, outcomes from judgements, selections, merging, compaction."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from offline_arl.errors import DataError, UsageError
from offline_arl.trajectories import combining, compaction
from offline_arl.trajectories.lineage import remember_derived
from offline_arl.trajectories.near_duplicates import mark_near_duplicates
from offline_arl.trajectories.outcomes import Verdict, label_outcomes
from offline_arl.trajectories.splits import (
    DEFAULT_FRACTIONS,
    SplitBy,
    SplitReport,
    assign_splits,
    extend_splits,
    read_recipe,
)
from offline_arl.trajectories.store import Store
from offline_arl.workflows.filters import Filters, told_conditions
from offline_arl.workflows.single import new_folder
from offline_arl.workflows.stores import reading

logger = logging.getLogger(__name__)

_EXAMPLES = 5


def split(
    path: str | Path,
    *,
    by: SplitBy | None = None,
    fractions: Mapping[str, float] | None = None,
    seed: int | None = None,
    fresh: bool = False,
) -> dict[str, Any]:
    """Split a store, or assign what is new in one that is split (see `splits.assign_splits` and `extend_splits`).

    Args:
        path: Folder of the store.
        by: What stays together; None: as before, or by task.
        fractions: Share of each split; None: as before, or 0.8, 0.1 and 0.1.
        seed: None: as before, or 0.
        fresh: Split anew a store that is split already, so that trajectories change their split.

    Raises:
        UsageError: The store is split in another way, and `fresh` is not set; or see `assign_splits`.
        DataError: There is no store, or it is damaged.
    """
    with reading(path) as store:
        recipe = read_recipe(store)
        asked = {"by": by, "seed": seed, "fractions": None if fractions is None else dict(fractions)}
        report = None
        if recipe is not None and not fresh:
            for name, value in asked.items():
                if value is not None and value != getattr(recipe, name):
                    raise UsageError(
                        f"{path}: is split with {name} {_plain(getattr(recipe, name))}; leave it out to assign what is "
                        "new, or give --fresh to split anew, which moves trajectories from one split to another"
                    )
            report = extend_splits(store)
        if report is None:
            report = assign_splits(store, fractions or DEFAULT_FRACTIONS, seed or 0, by=by or "task")
            return {"store": str(path), "extended": False, **_split_report(report)}
        return {"store": str(path), "extended": True, **_split_report(report)}


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={share:g}" for name, share in value.items())
    return str(value)


def _split_report(report: SplitReport) -> dict[str, Any]:
    recipe: dict[str, Any] = msgspec.to_builtins(report.recipe)
    counts = recipe.pop("counts")
    return {
        **recipe,
        "splits": counts,
        "assigned": report.assigned,
        "moved": report.moved,
        "unassigned": report.unassigned,
        "not_everywhere": {
            name: {"families": number, "missing": list(missing)}
            for name, (number, missing) in report.not_everywhere.items()
        },
        "straddling": report.straddling,
        "straddlers": list(report.straddlers),
        "without_key": report.without_key,
        "largest_family": report.largest_family,
        "shared": dict(report.shared),
    }


def duplicates(path: str | Path, *, threshold: float = 0.8) -> dict[str, Any]:
    """Mark near duplicates (see `near_duplicates.mark_near_duplicates`) and say what they are like.

    Returns:
        `near_duplicates` counts the marked trajectories, `clusters` what they belong to, `largest_cluster` its
        members with the first one; `across_tasks` counts those whose first one has another task, `across_splits`
        those whose first one is in another split; `examples` has the most similar of other tasks, then others.

    Raises:
        UsageError: The threshold is out of range, or a writer is at work.
        DataError: There is no store, or it is damaged.
    """
    with reading(path) as store:
        marked = mark_near_duplicates(store, threshold=threshold)
        known = store.trajectories.select("trajectory_id", "task_id", "split").collect()
    first = known.rename({name: f"first_{name}" for name in known.columns})
    frame = marked.join(known, on="trajectory_id", how="left", maintain_order="left").join(
        first, left_on="near_duplicate_of", right_on="first_trajectory_id", how="left", maintain_order="left"
    )
    other_task = pl.col("task_id").ne_missing(pl.col("first_task_id"))
    other_split = pl.col("split").ne_missing(pl.col("first_split"))
    sizes: list[int] = frame.group_by("near_duplicate_of").len()["len"].to_list()
    shown = frame.with_columns(other_task.alias("other")).sort(
        ["other", "similarity"], descending=True, maintain_order=True
    )
    columns = ("trajectory_id", "near_duplicate_of", "similarity", "task_id", "first_task_id")
    return {
        "store": str(path),
        "threshold": threshold,
        "trajectories": known.height,
        "near_duplicates": frame.height,
        "clusters": len(sizes),
        "largest_cluster": 1 + max(sizes) if sizes else 0,
        "across_tasks": frame.filter(other_task).height,
        "across_splits": frame.filter(other_split).height,
        "examples": shown.select(columns).head(_EXAMPLES).to_dicts(),
    }


def judgement_names(path: str | Path) -> list[dict[str, Any]]:
    """The judgements that a store has, by name, the most frequent first.

    Each has `name`, `judgements`, `trajectories` (that have some), `numbers` (of judgements with one), `low`, `mean`,
    `high`, `directions` and `scorer_kinds`.

    Raises:
        DataError: There is no store, or it is damaged.
    """
    with reading(path) as store:
        known = store.feedback.filter(pl.col("trajectory_id").is_not_null())
        value = pl.col("value")
        frame = known.group_by("name").agg(
            pl.len().alias("judgements"),
            pl.col("trajectory_id").n_unique().alias("trajectories"),
            value.count().alias("numbers"),
            value.min().alias("low"),
            value.mean().alias("mean"),
            value.max().alias("high"),
            pl.col("direction").unique().sort().alias("directions"),
            pl.col("scorer_kind").unique().sort().alias("scorer_kinds"),
        )
        return frame.sort(["judgements", "name"], descending=[True, False]).collect().to_dicts()


def label(
    path: str | Path, name: str, *, threshold: float | None = None, direction: Verdict | None = None
) -> dict[str, Any]:
    """Make the judgements of one name the outcomes (see `outcomes.label_outcomes`).

    Returns:
        `labeled` counts trajectories, `successes` and `failures` those with a verdict, `low`, `mean` and `high` are
        of their scores; `outcomes` counts all trajectories of the store by what they have now.

    Raises:
        UsageError: There are no numbers of this name, or what they mean is not clear (see `label_outcomes`).
        DataError: There is no store, or it is damaged.
    """
    with reading(path) as store:
        table = label_outcomes(store, name, threshold=threshold, direction=direction)
        success = pl.col("success").fill_null(value=False)
        scored = pl.col("status") == "scored"
        now = store.trajectories.select(
            (scored & success).sum().alias("success"),
            (scored & ~pl.col("success").fill_null(value=True)).sum().alias("failure"),
            (scored & pl.col("success").is_null()).sum().alias("score alone"),
            (pl.col("status") == "unscored").sum().alias("unscored"),
            (pl.col("status") == "infrastructure_error").sum().alias("error"),
        ).collect()
    return {
        "store": str(path),
        "outcome": name,
        "threshold": threshold,
        "labeled": table.height,
        "successes": int(table["success"].sum() or 0),
        "failures": table.height - table["success"].null_count() - int(table["success"].sum() or 0),
        "low": table["score"].min(),
        "mean": table["score"].mean(),
        "high": table["score"].max(),
        "outcomes": now.to_dicts()[0],
    }


def select(path: str | Path, output: str | Path, filters: Filters) -> dict[str, Any]:
    """Copy some trajectories to a new store (see `combining.select_into`); the old one remembers it.

    Raises:
        UsageError: The output is not an empty folder, or a filter is wrong.
        DataError: Nothing fits the filters; there is no store, or it is damaged.
    """
    filters.condition()  # what is wrong with it is told before the store is looked at
    with reading(path) as store, told_conditions(store):
        condition = filters.for_store(store).condition()
        if condition is None:
            condition = pl.lit(value=True)
        if not store.trajectories.filter(condition).select(pl.len()).collect().item():
            raise DataError(f"{path}: no trajectory fits; look at what there is with: offline-arl show {path}")
        with new_folder(output) as work:
            combining.select_into(store, condition, work)
        remember_derived(store.path, "store", Path(output))
        selection = Store(output)
        extend_splits(selection)
    return {
        "store": str(path),
        "output": str(output),
        "filters": filters.as_dict(),
        "trajectories": len(selection),
        "of": len(store),
    }


def merge(paths: Sequence[str | Path], output: str | Path) -> dict[str, Any]:
    """Copy several stores to a new one (see `combining.merge`); each of them remembers it.

    Where the first of the stores is split, the merged one is split in the same way: what is new to it is assigned,
    and families that were parted between stores are brought together.

    Raises:
        UsageError: The output is not an empty folder.
        DataError: There is no store at one of the paths, or it is damaged.
    """
    stores = [_opened(path) for path in paths]
    with new_folder(output) as work:
        _, report = combining.merge(stores, work)
    for store in stores:
        remember_derived(store.path, "store", Path(output))
    merged = Store(output)
    split_report = extend_splits(merged)
    return {
        "stores": [str(path) for path in paths],
        "output": str(output),
        "trajectories": report.trajectories,
        "identical": report.identical,
        "renamed": report.renamed,
        "joined_groups": report.joined_groups,
        "moved": 0 if split_report is None else split_report.moved,
        "splits_by_hand": split_report is None and "splits" in merged.side_tables,
    }


def _opened(path: str | Path) -> Store:
    with reading(path) as store:
        damaged = store.verify()
    if damaged:
        raise DataError(f"{damaged[0]}; restore it from a copy, or ingest again")
    return store


def compact(path: str | Path) -> dict[str, Any]:
    """Merge the small parts of a store (see `compaction.compact`).

    Raises:
        UsageError: Another writer is at work.
        DataError: There is no store, or it is damaged.
    """
    with reading(path) as store:
        report = compaction.compact(store)
    return {
        "store": str(path),
        "parts_before": report.parts_before,
        "parts_after": report.parts_after,
        "megabytes_before": report.bytes_before / 1e6,
        "megabytes_after": report.bytes_after / 1e6,
    }
