"""New stores of old ones: a selection of one, or several in one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import polars as pl

from offline_arl.errors import UsageError
from offline_arl.trajectories import encoding, files
from offline_arl.trajectories.copying import stored_rows
from offline_arl.trajectories.duplicates import DUPLICATES
from offline_arl.trajectories.files import Manifest
from offline_arl.trajectories.merged_groups import GroupCopier
from offline_arl.trajectories.part_frames import Void, read_void, scan
from offline_arl.trajectories.record_states import RANK
from offline_arl.trajectories.scores import FEEDBACK_COLUMNS
from offline_arl.trajectories.session import WriteSession, open_session
from offline_arl.trajectories.side_tables import OUTCOMES, SPLITS
from offline_arl.trajectories.store import MAX_PART_BYTES, MAX_PART_TRAJECTORIES, Store


@dataclass(frozen=True)
class MergeReport:
    """What a merge did.

    `identical` trajectories were in an earlier store already (the same record of the same file, or the same id and
    content); `renamed` ones got a new id, because an earlier store uses theirs for something else. `joined_groups`
    counts sessions of which several stores hold pieces; the next ingestion assembles those that grew by it.
    """

    trajectories: int
    identical: int
    renamed: int
    joined_groups: int


def select_into(store: Store, where: pl.Expr, output: str | Path) -> Store:
    """Copy a selection of trajectories to a new store.

    What belongs to them comes along: steps, findings, scores, feedback, rows of side tables. Raw records do not
    (pieces and quarantine), so the new store is one to read and train from: logs are ingested into the old one.

    Args:
        store: The store.
        where: Condition on the columns of `Store.trajectories`; see also `select`.
        output: Folder of the new store; must be missing or empty.

    Raises:
        UsageError: The output is not an empty folder.
    """
    manifest = store.manifest
    void = read_void(store.path, manifest)
    selection = Store.create(output, configuration=manifest.configuration)
    with open_session(selection.path) as session:
        ids: list[str] = []
        for part in manifest.parts:
            if part.trajectories is None:
                continue
            chosen = store.part_ids(part, where)
            if not chosen:
                continue
            ids += chosen
            for encoded, record_key in stored_rows(store, part, void, pl.col("trajectory_id").is_in(chosen)):
                session.put(encoded, record_key=record_key)
                _commit_if_full(session)
        session.buffer.feedback.extend(_feedback_on(store, manifest, void, ids))
        session.commit()
        tables = _SideTables()
        tables.take(store, manifest, pl.DataFrame({"old": ids, "new": ids}, schema=_IDS))
        tables.write(session)
    return selection


def merge(stores: Sequence[Store], output: str | Path) -> tuple[Store, MergeReport]:
    """Copy several stores to a new one, with all that they hold; earlier stores win where they disagree.

    Args:
        stores: The stores, in the order in which their trajectories will lie.
        output: Folder of the new store; must be missing or empty.

    Raises:
        UsageError: There are no stores, some are redacted and others are not or in another way, or the output is not
            an empty folder.
    """
    if not stores:
        raise UsageError("merge: no stores; name at least one")
    _refuse_mixed(stores)
    merged = Store.create(output, configuration=stores[0].manifest.configuration)
    tables = _SideTables()
    quarantined: set[bytes] = set()
    identical = renamed = joined = 0
    with open_session(merged.path) as session:
        for store in stores:
            manifest = store.manifest
            void = read_void(store.path, manifest)
            groups = GroupCopier(session, store, manifest, void, quarantined)
            plan = _plan(session, store, manifest, void, groups.made_by_joined())
            ids: list[str] = []
            for part in manifest.parts:
                for encoded, record_key in stored_rows(store, part, void):
                    name = encoded.trajectory_id
                    if name in plan.skipped:
                        identical += 1
                        continue
                    ids.append(name)
                    if name in plan.new_ids:
                        encoded = encoded.renamed(plan.new_ids[name])
                    if plan.new_ids:
                        encoded = encoded.with_references(plan.new_ids)
                    session.put(encoded, record_key=record_key)
                    _commit_if_full(session)
                groups.take(part, plan.new_ids)
                _commit_if_full(session)
            session.commit()
            new = [plan.new_ids.get(name, name) for name in ids]
            tables.take(store, manifest, pl.DataFrame({"old": ids, "new": new}, schema=_IDS))
            renamed += len(plan.new_ids)
            joined += len(groups.joined)
        tables.write(session)
    return merged, MergeReport(len(merged), identical, renamed, joined)


def _refuse_mixed(stores: Sequence[Store]) -> None:
    """What a store says of its redaction must hold for all of it."""
    first, *others = ((store, store.manifest.configuration.get("redaction")) for store in stores)
    for store, redaction in others:
        if redaction != first[1]:
            raise UsageError(
                f"{store.path}: is redacted in another way than {first[0].path}, or only one of them is; "
                "merge stores that were redacted alike, with one key"
            )


@dataclass
class _MergePlan:
    skipped: set[str] = field(default_factory=set)
    new_ids: dict[str, str] = field(default_factory=dict)


def _plan(session: WriteSession, store: Store, manifest: Manifest, void: Void, joined: set[str]) -> _MergePlan:
    """Which trajectories of a store are in the merged one already, and which need a new id."""
    plan = _MergePlan(skipped=set(joined))
    if session.index.empty:
        return plan
    for part in manifest.parts:
        rows = scan(store.path, [part], "trajectories", encoding.TRAJECTORY_COLUMNS, void)
        frame = rows.select("trajectory_id", "record_key", "content_key").collect()
        for name, record_key, content_key in frame.iter_rows():
            if name in joined:
                continue
            known = session.content_of(name)
            is_known_record = record_key is not None and _is_used(session, record_key)
            if is_known_record or (record_key is None and known == content_key):
                plan.skipped.add(name)
            elif known is not None:
                plan.new_ids[name] = session.free_id(name, record_key or content_key)
    return plan


_IDS = {"old": pl.String(), "new": pl.String()}


def _is_used(session: WriteSession, record_key: bytes) -> bool:
    entry = session.index.record(record_key)
    return entry is not None and entry.state in (RANK["used"], RANK["deleted"])


def _commit_if_full(session: WriteSession) -> None:
    if session.buffer.bytes >= MAX_PART_BYTES or len(session.buffer.rows) >= MAX_PART_TRAJECTORIES:
        session.commit()


def _feedback_on(store: Store, manifest: Manifest, void: Void, ids: list[str]) -> Iterator[tuple[object, ...]]:
    """Rows of feedback that came apart and is about some of these trajectories."""
    apart = store.feedback.filter(pl.col("target").is_not_null() & pl.col("trajectory_id").is_in(ids))
    about = apart.select("target", "target_id").unique()
    feedback = scan(store.path, manifest.parts, "feedback", FEEDBACK_COLUMNS, void)
    rows = feedback.join(about, on=["target", "target_id"], how="semi", maintain_order="left").with_columns(
        pl.lit(None, pl.Int64()).alias("group"), pl.col("metadata").cast(pl.Binary())
    )
    yield from rows.select(*FEEDBACK_COLUMNS).collect().iter_rows()


class _SideTables:
    """Side tables on their way to another store, where trajectories may have other ids; copies are found anew."""

    def __init__(self) -> None:
        self._frames: dict[str, list[pl.DataFrame]] = {}

    def take(self, store: Store, manifest: Manifest, ids: pl.DataFrame) -> None:
        """Take the rows of some trajectories; `ids` has their ids there (old) and here (new)."""
        for name in manifest.side_tables:
            if name != DUPLICATES:
                frame = store.side_table(name).join(
                    ids.lazy(), left_on="trajectory_id", right_on="old", how="inner", maintain_order="left"
                )
                moved = frame.with_columns(pl.col("new").alias("trajectory_id")).drop("new").collect()
                self._frames.setdefault(name, []).append(moved)

    def write(self, session: WriteSession) -> None:
        """Publish the tables."""
        manifest = session.manifest
        number = manifest.next_number
        tables = dict(manifest.side_tables)
        for name, frames in self._frames.items():
            frame = pl.concat(frames, how="diagonal_relaxed")
            if name in (SPLITS, OUTCOMES):
                frame = frame.unique("trajectory_id", keep="first", maintain_order=True)
            if not frame.is_empty():
                tables[name] = [files.write_parquet(session.root, f"side_tables/{name}/{number:06}.parquet", frame)]
        session.manifest = msgspec.structs.replace(manifest, next_number=number + 1, side_tables=tables)
        files.write_manifest(session.root, session.manifest)
