"""Deletion that leaves nothing behind: no file of the store holds the text of what was deleted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import polars as pl

from offline_arl.trajectories import encoding, files
from offline_arl.trajectories.duplicates import DUPLICATE_COLUMNS, DUPLICATES, DuplicateTable
from offline_arl.trajectories.files import FileEntry, Manifest, Part
from offline_arl.trajectories.part_frames import Void, scan
from offline_arl.trajectories.parts import DELETED_COLUMNS
from offline_arl.trajectories.pieces import PIECE_COLUMNS
from offline_arl.trajectories.rebuild import open_index
from offline_arl.trajectories.rewriting import OF_TRAJECTORIES, Rewriter, replace_parts, to_be_replaced
from offline_arl.trajectories.scores import FEEDBACK_COLUMNS
from offline_arl.trajectories.store import Store
from offline_arl.trajectories.tables import table


@dataclass(frozen=True)
class DeletionReport:
    """What a deletion removed.

    `related` names trajectories that remain and may share text with what was deleted: its copies, its branches, its
    sub-agents and their parents, and what was made of the same records. Delete them too where all of it has to go.
    `detached_groups` counts sessions that remain and shared a log record with a deleted one: their trajectories stay,
    the raw pieces are gone, and what their logs grow by becomes trajectories of its own.
    """

    trajectories: int
    steps: int
    pieces: int
    feedback: int
    quarantined: int
    records: int  # of the sources, which will not be read again
    groups: int  # sessions, traces and so on, of which nothing will be read again
    detached_groups: int
    related: tuple[str, ...]


def delete(store: Store, where: pl.Expr) -> DeletionReport:
    """Remove trajectories with all that belongs to them, so that no file of the store holds their text any more.

    Gone are their rows, steps, findings and scores, system prompts and tools that no other trajectory of the part
    uses, rows of side tables, feedback on nothing else, the pieces that they were assembled from, and refused records
    of the same sessions. The store remembers the identities of their log records (hashes), so that reading the logs
    again does not bring them back, and takes in no more of their sessions.

    Args:
        store: The store.
        where: Condition on the columns of `Store.trajectories`, such as `pl.col("user_id") == "u7"`.

    Raises:
        UsageError: Another writer is at work.
    """
    root = store.path
    with to_be_replaced(root) as (manifest, void):
        chosen = store.trajectories.filter(where).select("trajectory_id", "n_steps").collect()
        plan = _plan(store, manifest, void, chosen["trajectory_id"].to_list())
        if not plan.ids:
            return DeletionReport(0, 0, 0, 0, 0, 0, 0, 0, ())
        generation = manifest.generation + 1
        rewriter = Rewriter(root, generation, void=void, drop=plan.drop(), drop_refused=plan.records.__contains__)
        parts = [rewritten for part in manifest.parts if (rewritten := rewriter.rewrite([part])) is not None]
        number = manifest.next_number
        rows: list[tuple[bytes | None, int | None, bytes | None]]
        rows = [(key, None, None) for key in sorted(plan.records | plan.other_records)]
        rows += [(None, group, name) for group, name in sorted(plan.groups.items())]
        if rows:
            frame = table(rows, DELETED_COLUMNS)
            entry = files.write_parquet(root, f"deleted/{number:06}-{generation}.parquet", frame)
            parts.append(Part(number, deleted=entry))
        side_tables = _side_tables_without(root, manifest, generation, plan.ids)
        replace_parts(root, msgspec.structs.replace(manifest, next_number=number + 1), parts, side_tables=side_tables)
    before, after = _rows_by_kind(manifest.parts), _rows_by_kind(parts)
    return DeletionReport(
        trajectories=len(plan.ids),
        steps=int(chosen["n_steps"].sum()),
        pieces=before["pieces"] - after["pieces"],
        feedback=plan.feedback,
        quarantined=before["quarantine"] - after["quarantine"],
        records=len(plan.records),
        groups=len(plan.groups),
        detached_groups=len(plan.detached),
        related=plan.related,
    )


@dataclass(frozen=True)
class _Plan:
    """What goes with some trajectories."""

    ids: list[str]
    records: set[bytes]  # records whose text goes
    groups: dict[int, bytes]  # groups that go
    detached: list[int]  # groups whose pieces go, because they hold some of these records
    other_records: set[bytes]  # the other records of those
    judged: pl.DataFrame  # target and target_id of feedback that goes
    feedback: int  # rows of it, those of groups included
    related: tuple[str, ...]

    def drop(self) -> dict[str, pl.Expr]:
        """The rows to leave out, by kind of file."""
        groups = pl.col("group").is_in([*self.groups, *self.detached])
        return {
            **dict.fromkeys(OF_TRAJECTORIES, pl.col("trajectory_id").is_in(self.ids)),
            **dict.fromkeys(("pieces", "assemblies", "fates"), groups),
            "feedback": _judged_or_of(self.judged, self.groups),
        }


def _judged_or_of(judged: pl.DataFrame, groups: dict[int, bytes]) -> pl.Expr:
    dropped = pl.col("group").is_in(list(groups)).fill_null(value=False)
    for target, ids in judged.group_by("target").agg("target_id").iter_rows():
        dropped |= (pl.col("target") == target) & pl.col("target_id").is_in(ids)
    return dropped


def _plan(store: Store, manifest: Manifest, void: Void, ids: list[str]) -> _Plan:
    root = store.path
    index = open_index(root, manifest)
    try:
        groups = index.groups_of(ids)
        of_groups = [made.id for number in groups for made in index.assembly(number).trajectories.values()]
    finally:
        index.close()
    rows = scan(root, manifest.parts, "trajectories", encoding.TRAJECTORY_COLUMNS, void)
    own = rows.filter(pl.col("trajectory_id").is_in(ids)).select("record_key").collect()["record_key"].drop_nulls()
    of_records = rows.filter(pl.col("record_key").is_in(own.to_list())).select("trajectory_id").collect()
    pieces = scan(root, manifest.parts, "pieces", PIECE_COLUMNS, void).select("group", "record_key")
    keys = pieces.filter(pl.col("group").is_in(list(groups))).collect()["record_key"]
    shared = pieces.filter(pl.col("record_key").is_in(keys.unique().to_list())).collect()["group"]
    detached = sorted(set(shared) - set(groups))
    others = pieces.filter(pl.col("group").is_in(detached)).collect()["record_key"]
    judged = _judged_alone(store, ids)
    feedback = scan(root, manifest.parts, "feedback", FEEDBACK_COLUMNS, void)
    rows_of_feedback = feedback.filter(_judged_or_of(judged, groups)).select("record_key").collect()["record_key"]
    records = {*own, *keys, *rows_of_feedback.drop_nulls()}
    return _Plan(
        ids=ids,
        records=records,
        groups=groups,
        detached=detached,
        other_records=set(others) - records,
        judged=judged,
        feedback=rows_of_feedback.len(),
        related=_related(store, ids, {*of_groups, *of_records["trajectory_id"]}),
    )


def _judged_alone(store: Store, ids: list[str]) -> pl.DataFrame:
    """Target and target_id of feedback that is about these trajectories and no others."""
    apart = store.feedback.filter(pl.col("target").is_not_null() & pl.col("trajectory_id").is_not_null())
    alone = apart.group_by("target", "target_id").agg(pl.col("trajectory_id").is_in(ids).all().alias("alone"))
    return alone.filter("alone").select("target", "target_id").collect()


def _related(store: Store, ids: list[str], siblings: set[str]) -> tuple[str, ...]:
    links = ("parent_trajectory_id", "branch_trajectory_id", "duplicate_of")
    frame = store.trajectories.select("trajectory_id", *links).collect()
    chosen = set(ids)
    pointed_at = {name for row in frame.iter_rows() if row[0] in chosen for name in row[1:] if name is not None}
    originals = {row[-1] for row in frame.iter_rows() if row[0] in chosen}
    found = []
    for name, *targets in frame.iter_rows():
        is_copy = targets[-1] is not None and targets[-1] in originals
        is_near = name in siblings or name in pointed_at or is_copy or not chosen.isdisjoint(targets)
        if is_near and name not in chosen:
            found.append(name)
    return tuple(found)


def _side_tables_without(root: Path, manifest: Manifest, generation: int, ids: list[str]) -> dict[str, list[FileEntry]]:
    tables: dict[str, list[FileEntry]] = {}
    for name, entries in manifest.side_tables.items():
        frame = pl.concat([pl.read_parquet(files.whole_file(root, entry)) for entry in entries])
        if name == DUPLICATES:
            kept = _copies_without(frame, ids)
        else:
            gone = pl.col("trajectory_id").is_in(ids)
            for column, dtype in frame.schema.items():
                if column.endswith("_of") and dtype == pl.String():
                    gone |= pl.col(column).is_in(ids).fill_null(value=False)
            kept = frame.filter(~gone)
        tables[name] = entries
        if not kept.equals(frame):
            path = f"side_tables/{name}/{manifest.next_number:06}-{generation}.parquet"
            tables[name] = [files.write_parquet(root, path, kept)]
    return tables


def _copies_without(frame: pl.DataFrame, ids: list[str]) -> pl.DataFrame:
    copies = DuplicateTable(frame.select(*DUPLICATE_COLUMNS).iter_rows())
    try:
        for name in ids:
            copies.remove(name)
        return copies.frame()
    finally:
        copies.close()


def _rows_by_kind(parts: Sequence[Part]) -> dict[str, int]:
    return {
        kind: sum(entry.rows for part in parts if (entry := getattr(part, kind)) is not None)
        for kind in files.PART_FOLDERS
    }
