"""Splits that do not leak, and that stay when the store grows.

How a store was split is recorded in its manifest (`configuration["splits"]`, a `SplitRecipe`), so that what comes
later is split in the same way.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
import numpy as np
import polars as pl

from offline_arl.errors import DataError, UsageError
from offline_arl.trajectories.families import KEYS, Rows, SplitBy, families, family_columns
from offline_arl.trajectories.moments import moment
from offline_arl.trajectories.near_duplicates import NEAR_DUPLICATES
from offline_arl.trajectories.side_tables import SPLITS
from offline_arl.trajectories.split_shares import Shares, cuts_in_time
from offline_arl.trajectories.store import Store

__all__ = ["SPLITS", "SplitBy", "SplitCounts", "SplitRecipe", "SplitReport", "assign_splits", "extend_splits"]

logger = logging.getLogger(__name__)

DEFAULT_FRACTIONS = {"train": 0.8, "validation": 0.1, "test": 0.1}
_NO_TYPE = ""
_EXAMPLES = 10


class SplitCounts(msgspec.Struct, frozen=True):
    """What a split holds; `task_types` counts trajectories, those of no type under ""."""

    trajectories: int
    families: int
    task_types: dict[str, int]


class SplitRecipe(msgspec.Struct, frozen=True):
    """How a store is split. `cuts` are the times at which the later splits begin, where it is split by time."""

    by: SplitBy
    seed: int
    fractions: dict[str, float]
    near_duplicates: bool  # whether marked near duplicates were kept together
    cuts: list[datetime] = []
    counts: dict[str, SplitCounts] = {}


@dataclass(frozen=True)
class SplitReport:
    """What a split is like.

    Attributes:
        recipe: How it was made, and what each split holds.
        table: Columns trajectory_id and split, in the order of the store.
        assigned: How many trajectories are in a split and were in none.
        moved: How many changed their split, because what came later, or a near duplicate, joined their family to
            one of an earlier split.
        unassigned: How many are in no split: by time, those of families without any time.
        not_everywhere: The task types that are not in every split: number of their families, and the splits
            that lack them.
        straddling: By time: how many families began before the cut behind which they lie, or go on behind the
            end of their split.
        straddlers: Trajectories of the first few of them.
        without_key: How many trajectories lack what is split by, and so are families by their other links alone.
        largest_family: Trajectories of the largest family, which no split can divide.
        shared: Identities that are not kept together, and how many of each occur in several splits.
    """

    recipe: SplitRecipe
    table: pl.DataFrame
    assigned: int
    moved: int
    unassigned: int
    not_everywhere: Mapping[str, tuple[int, tuple[str, ...]]]
    straddling: int
    straddlers: tuple[str, ...]
    without_key: int
    largest_family: int
    shared: Mapping[str, int]


def assign_splits(store: Store, fractions: Mapping[str, float], seed: int, *, by: SplitBy = "task") -> SplitReport:
    """Assign every trajectory to a split: write the side table `splits`, and the recipe into the manifest.

    What belongs together stays together: trajectories that share an episode, that branch from or are started by one
    another, that copy one another or are marked as near duplicates (`near_duplicates.mark_near_duplicates`), and
    those that share what is split by, are in one split, so nothing that was trained on is seen in evaluation. The
    sizes count such families, not trajectories, and are as close to `fractions` as whole families allow, overall
    and within each task type; a type with at least as many families as there are splits is in every one.

    Args:
        store: The store; an earlier table `splits` is replaced.
        fractions: Share of each split, for example `{"train": 0.8, "validation": 0.2}`; positive, sum 1.
        seed: The same seed and the same trajectories give the same splits.
        by: "task" keeps tasks and groups together, "user" users, "session" sessions. "time" does what "task" does
            and cuts the time: a family lies in the split in which its last trajectory ended, so that all of the
            first split was over before anything of the second one ended. Seed and task types do not matter then.

    Raises:
        UsageError: The fractions are not positive or do not sum to 1, no trajectory has what is split by, or
            another writer is at work.
    """
    if not fractions or min(fractions.values()) <= 0 or not math.isclose(sum(fractions.values()), 1, abs_tol=1e-6):
        raise UsageError(f"splits: fractions must be positive and sum to 1, not {dict(fractions)}")
    rows = _Rows.read(store, by)
    if by in ("user", "session") and rows.without_key == rows.frame.height > 0:
        raise UsageError(f"{store.path}: no trajectory has a {by}_id, so it cannot be split by {by}; split by task")
    cuts: list[datetime] = []
    if by == "time":
        times = sorted(time for time in rows.last.values() if time is not None)
        if not times:
            raise UsageError(f"{store.path}: no trajectory has a time, so it cannot be split by time; split by task")
        cuts = cuts_in_time(times, fractions)
    recipe = SplitRecipe(by, seed, dict(fractions), rows.near_duplicates, cuts)
    report = _report(rows, recipe, _assign(rows, recipe, {}))
    _write(store, report)
    return report


def extend_splits(store: Store) -> SplitReport | None:
    """Assign what a store got since it was split, by the recipe in its manifest; None where it has none.

    Trajectories of a family that is in a split go there; new families are assigned so that the shares come closer
    to those that were asked for. Nothing else moves, with one exception: what joins families of several splits (a
    sub-agent of one and a copy of the other, newly marked near duplicates) takes them all to the first of these
    splits, so that what was trained on is never evaluated on. Nothing is written where nothing changes.

    Raises:
        DataError: The recipe in the manifest is damaged.
        UsageError: Another writer is at work.
    """
    recipe = read_recipe(store)
    if recipe is None:
        return None
    rows = _Rows.read(store, recipe.by)
    report = _report(rows, recipe, _assign(rows, recipe, rows.splits_of_families(recipe)))
    if report.assigned or report.moved or report.recipe != recipe or report.table.height != rows.in_table:
        logger.info("%s: %d trajectories joined a split, %d changed it", store.path, report.assigned, report.moved)
        _write(store, report)
    return report


def read_recipe(store: Store) -> SplitRecipe | None:
    """How a store was split; None where it was not, or by hand.

    Raises:
        DataError: What the manifest says is damaged.
    """
    recorded = store.manifest.configuration.get(SPLITS)
    if recorded is None:
        return None
    try:
        return msgspec.convert(recorded, SplitRecipe)
    except msgspec.ValidationError as error:
        raise DataError(f"{store.path}: the recipe of the splits is damaged ({error}); split the store anew") from error


@dataclass(frozen=True)
class _Rows:
    """What splitting knows of the trajectories, family by family (families are named by their first row)."""

    frame: pl.DataFrame
    family: Rows  # of each row
    names: Mapping[int, str]  # of each family; what the random order is made of
    types: Mapping[int, Sequence[str]]
    first: Mapping[int, datetime | None]
    last: Mapping[int, datetime | None]
    without_key: int
    near_duplicates: bool
    in_table: int

    @classmethod
    def read(cls, store: Store, by: SplitBy) -> _Rows:
        near = NEAR_DUPLICATES in store.side_tables
        key = KEYS[by][0]
        columns = [*family_columns(), "task_type", "split", "started_at", "ended_at"]
        scanned = store.trajectories.select(*columns)
        if near:
            marks = store.side_table(NEAR_DUPLICATES).select("trajectory_id", "near_duplicate_of")
            scanned = scanned.join(marks, on="trajectory_id", how="left", maintain_order="left")
        else:
            scanned = scanned.with_columns(pl.lit(None, pl.String()).alias("near_duplicate_of"))
        nowhen = pl.lit(None, pl.Datetime("us", "UTC"))  # reading times takes a while, and only cuts need them
        began, ended = (moment(pl.col(name)) if by == "time" else nowhen for name in ("started_at", "ended_at"))
        frame = scanned.with_columns(
            pl.coalesce(began, ended).alias("began"), pl.coalesce(ended, began).alias("ended")
        ).collect()
        family = families(frame, by)
        grouped = (
            frame.with_columns(pl.Series("family", family, dtype=pl.Int64))
            .group_by("family")
            .agg(
                pl.coalesce(key, "trajectory_id").min().alias("name"),
                pl.col("task_type").fill_null(_NO_TYPE).unique().sort().alias("types"),
                pl.col("began").min(),
                pl.col("ended").max(),
            )
        )
        ids = grouped["family"].to_list()
        in_table = store.side_table(SPLITS).select(pl.len()).collect().item() if SPLITS in store.side_tables else 0
        return cls(
            frame=frame,
            family=family,
            names=dict(zip(ids, grouped["name"], strict=True)),
            types=dict(zip(ids, grouped["types"].to_list(), strict=True)),
            first=dict(zip(ids, grouped["began"], strict=True)),
            last=dict(zip(ids, grouped["ended"], strict=True)),
            without_key=frame[key].null_count(),
            near_duplicates=near,
            in_table=in_table,
        )

    def splits_of_families(self, recipe: SplitRecipe) -> dict[int, str]:
        """The split of each family that has one; the first of the recipe's, where its members are in several."""
        order = {name: place for place, name in enumerate(recipe.fractions)}
        found: dict[int, str] = {}
        for family, split in zip(self.family.tolist(), self.frame["split"], strict=True):
            if split is not None:
                known = found.get(family, split)
                found[family] = min(known, split, key=lambda name: order.get(name, len(order)))
        return found


def _assign(rows: _Rows, recipe: SplitRecipe, known: Mapping[int, str]) -> dict[int, str | None]:
    """The split of each family."""
    new = [family for family in rows.names if family not in known]
    chosen: dict[int, str | None] = dict(known)
    if recipe.by == "time":
        splits = list(recipe.fractions)
        for family in new:
            last = rows.last[family]
            chosen[family] = None if last is None else splits[sum(cut <= last for cut in recipe.cuts)]
        return chosen
    new.sort(key=lambda family: (_random_key(recipe.seed, rows.names[family]), rows.names[family]))
    shares = Shares(recipe.fractions)
    for family, types in rows.types.items():
        shares.count(types)
        if family in known:
            shares.put(types, known[family])
    chosen.update(zip(new, shares.fill([rows.types[family] for family in new]), strict=True))
    return chosen


def _random_key(seed: int, name: str) -> bytes:
    return hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=16, key=str(seed).encode()).digest()


def _report(rows: _Rows, recipe: SplitRecipe, chosen: Mapping[int, str | None]) -> SplitReport:
    split = pl.Series("split", [chosen[family] for family in rows.family.tolist()], dtype=pl.String())
    before = rows.frame["split"]
    frame = rows.frame.with_columns(split, pl.Series("family", rows.family, dtype=pl.Int64))
    recipe = msgspec.structs.replace(
        recipe, near_duplicates=rows.near_duplicates, counts=_counts(frame, list(recipe.fractions))
    )
    late = sorted(_straddling(rows, recipe, chosen)) if recipe.by == "time" else []
    return SplitReport(
        recipe=recipe,
        table=frame.select("trajectory_id", "split").drop_nulls(),
        assigned=int((before.is_null() & split.is_not_null()).sum()),
        moved=int((before.is_not_null() & (before != split)).sum()),
        unassigned=split.null_count(),
        not_everywhere=_not_everywhere(frame, list(recipe.fractions)),
        straddling=len(late),
        straddlers=tuple(rows.frame["trajectory_id"][family] for family in late[:_EXAMPLES]),
        without_key=rows.without_key,
        largest_family=int(np.bincount(rows.family).max()) if len(rows.family) else 0,
        shared=_shared(frame, recipe.by),
    )


def _counts(frame: pl.DataFrame, splits: Sequence[str]) -> dict[str, SplitCounts]:
    found = {}
    for name in splits:
        part = frame.filter(pl.col("split") == name)
        types = part["task_type"].fill_null(_NO_TYPE).value_counts(name="count").sort("task_type")
        found[name] = SplitCounts(part.height, part["family"].n_unique(), dict(types.iter_rows()))
    return found


def _not_everywhere(frame: pl.DataFrame, splits: Sequence[str]) -> dict[str, tuple[int, tuple[str, ...]]]:
    found = frame.group_by(pl.col("task_type").fill_null(_NO_TYPE)).agg(pl.col("family").n_unique(), "split")
    lacking = {}
    for task_type, number, present in found.sort("task_type").iter_rows():
        missing = tuple(name for name in splits if name not in present)
        if missing:
            lacking[task_type] = (number, missing)
    return lacking


def _straddling(rows: _Rows, recipe: SplitRecipe, chosen: Mapping[int, str | None]) -> Iterator[int]:
    """Families that began before their split does, or go on behind the end of it."""
    places = {name: place for place, name in enumerate(recipe.fractions)}
    for family, split in chosen.items():
        place = None if split is None else places.get(split)
        if place is None:
            continue
        first, last = rows.first[family], rows.last[family]
        begins_before = place > 0 and first is not None and first < recipe.cuts[place - 1]
        if begins_before or (place < len(recipe.cuts) and last is not None and last >= recipe.cuts[place]):
            yield family


def _shared(frame: pl.DataFrame, by: SplitBy) -> dict[str, int]:
    """How many tasks, users and sessions that are not kept together are in several splits."""
    found = {}
    for key in ("task_id", "user_id", "session_id"):
        if key not in KEYS[by]:
            several = frame.filter(pl.col(key).is_not_null()).group_by(key).agg(pl.col("split").drop_nulls().n_unique())
            found[key] = int((several["split"] > 1).sum())
    return found


def _write(store: Store, report: SplitReport) -> None:
    recorded: dict[str, Any] = {SPLITS: msgspec.to_builtins(report.recipe)}
    store.write_side_table(SPLITS, report.table, configuration=recorded)
