"""The part of a merge that is not trajectories: pieces, what became of records, refused records, feedback."""

from __future__ import annotations

from typing import Any

import msgspec
import polars as pl

from offline_arl.trajectories import files
from offline_arl.trajectories.files import Manifest, Part
from offline_arl.trajectories.index import AssemblyEntry, GroupRows, MadeTrajectory
from offline_arl.trajectories.part_frames import Void, scan
from offline_arl.trajectories.parts import (
    ASSEMBLY_COLUMNS,
    DELETED_COLUMNS,
    FATE_COLUMNS,
    SET_APART_COLUMNS,
    assembly_entry,
)
from offline_arl.trajectories.pieces import PIECE_COLUMNS
from offline_arl.trajectories.quarantine import RefusedRecord
from offline_arl.trajectories.record_states import DELETED, REFUSED, SET_APART, USED, after_assembly, after_pieces
from offline_arl.trajectories.scores import FEEDBACK_COLUMNS
from offline_arl.trajectories.session import WriteSession
from offline_arl.trajectories.store import Store


class GroupCopier:
    """Copies what one store holds besides trajectories into the merged store.

    Groups get the numbers of the merged store. A group that an earlier store brought too is joined: only the pieces
    that are new come in, which makes it dirty, and what it became stays as the earlier store has it.
    """

    def __init__(
        self, session: WriteSession, store: Store, manifest: Manifest, void: Void, quarantined: set[bytes]
    ) -> None:
        self._session = session
        self._root = store.path
        self._manifest = manifest
        self._void = void
        self._numbers: dict[int, int] = {}  # group numbers there and here
        self._feedback_parts: dict[int, int] = {}  # number of a group here, and of the part with its feedback
        self._quarantined = quarantined  # keys of the refused records that are here already
        self.joined: set[int] = set()  # numbers there
        self._number_groups()
        keys = scan(self._root, manifest.parts, "feedback", FEEDBACK_COLUMNS, void).select("record_key").unique()
        known = keys.collect()["record_key"].drop_nulls()
        self._known_feedback = {key for key in known if session.index.record(key) is not None}

    def made_by_joined(self) -> set[str]:
        """Ids of the trajectories that joined groups became in the store that is copied."""
        found: set[str] = set()
        if self.joined:
            frame = scan(self._root, self._manifest.parts, "assemblies", ASSEMBLY_COLUMNS, self._void)
            for row in frame.filter(pl.col("group").is_in(list(self.joined))).collect().iter_rows():
                found.update(made.id for made in assembly_entry(row)[1].trajectories.values())
        return found

    def take(self, part: Part, new_ids: dict[str, str]) -> None:
        """Copy one part; its trajectories are in the session already."""
        if part.pieces is not None:
            self._take_pieces(part)
        if part.feedback is not None:
            self._take_feedback(part)
        if part.assemblies is not None:
            self._take_assemblies(part, new_ids)
        if part.fates is not None:
            self._take_fates(part)
        if part.quarantine is not None:
            self._take_refused(part)
        if part.set_apart is not None:
            self._take_set_apart(part)
        if part.deleted is not None:
            self._take_deleted(part)

    def _number_groups(self) -> None:
        index = self._session.index
        last = index.last_group
        known = pl.concat(
            [
                scan(self._root, self._manifest.parts, kind, columns, self._void).select("group", "group_id")
                for kind, columns in (("pieces", PIECE_COLUMNS), ("deleted", DELETED_COLUMNS))
            ]
        )
        groups = known.filter(pl.col("group").is_not_null()).unique("group").sort("group").collect()
        for number, group_id in groups.iter_rows():
            present = index.group(group_id)
            if present is None:
                last += 1
                self._numbers[number] = last
            else:
                self._numbers[number] = present[0]
                self.joined.add(number)

    def _frame(self, part: Part, kind: str, columns: dict[str, pl.DataType]) -> pl.LazyFrame:
        return scan(self._root, [part], kind, columns, self._void).select(*columns)

    def _take_pieces(self, part: Part) -> None:
        buffer = self._session.buffer
        frame = self._frame(part, "pieces", PIECE_COLUMNS).collect()
        here = frame["group"].replace_strict(self._numbers, return_dtype=pl.Int64())
        frame = frame.with_columns(here.alias("group"))
        joined = [self._numbers[number] for number in self.joined]
        if joined and here.is_in(joined).any():
            present = scan(self._session.root, self._session.manifest.parts, "pieces", PIECE_COLUMNS, Void({}, {}))
            keys = present.filter(pl.col("group").is_in(here.unique().to_list())).select("group", "record_key")
            frame = frame.join(keys.collect(), on=["group", "record_key"], how="anti", maintain_order="left")
        groups: dict[bytes, set[int]] = {}
        for row in frame.iter_rows():
            number, group_id, record_key, payload = row[0], row[1], row[5], row[-1]
            groups.setdefault(record_key, set()).add(number)
            group = buffer.index.groups.setdefault(number, GroupRows(group_id))
            group.pieces += 1
            group.bytes += len(payload)
            buffer.pieces.append(row)
            buffer.bytes += len(payload)
        for record_key, numbers in groups.items():
            entry = after_pieces(self._session.record(record_key), len(numbers))
            buffer.index.records[record_key] = entry

    def _take_feedback(self, part: Part) -> None:
        buffer = self._session.buffer
        frame = self._frame(part, "feedback", FEEDBACK_COLUMNS).with_columns(pl.col("metadata").cast(pl.Binary()))
        for group, record_key, *judgement in frame.collect().iter_rows():
            number = None
            if group is not None:
                if group in self.joined:
                    continue
                number = self._numbers.get(group)  # None: the group was deleted or detached
                if number is not None:
                    self._feedback_parts[number] = self._session.manifest.next_number
            if record_key in self._known_feedback:
                continue
            if record_key is not None:
                buffer.index.records[record_key] = USED
            buffer.feedback.append((number, record_key, *judgement))

    def _take_assemblies(self, part: Part, new_ids: dict[str, str]) -> None:
        for row in self._frame(part, "assemblies", ASSEMBLY_COLUMNS).collect().iter_rows():
            group, entry = assembly_entry(row)
            if group in self.joined:
                continue
            number = self._numbers[group]
            made = {
                name: MadeTrajectory(new_ids.get(item.id, item.id), item.digest)
                for name, item in entry.trajectories.items()
            }
            feedback_part = self._feedback_parts.get(number, 0) if entry.feedback_part else 0
            moved = AssemblyEntry(entry.seen, made, feedback_part, entry.feedback)
            self._session.buffer.index.assembled[number] = moved

    def _take_fates(self, part: Part) -> None:
        session = self._session
        for group, record_key, state, reason in self._frame(part, "fates", FATE_COLUMNS).collect().iter_rows():
            if group not in self.joined:
                session.buffer.fates.append((self._numbers[group], record_key, state, reason))
                session.buffer.index.records[record_key] = after_assembly(session.record(record_key), state)

    def _take_refused(self, part: Part) -> None:
        session = self._session
        assert part.quarantine is not None
        with files.whole_file(self._root, part.quarantine).open("rb") as stream:
            for line in stream:
                record = msgspec.json.decode(line, type=RefusedRecord)
                key = bytes.fromhex(record.key)
                if session.record(key) is None:
                    session.buffer.index.records[key] = REFUSED
                if key not in self._quarantined:
                    self._quarantined.add(key)
                    session.quarantine(record)

    def _take_set_apart(self, part: Part) -> None:
        session = self._session
        for record_key, *place in self._frame(part, "set_apart", SET_APART_COLUMNS).collect().iter_rows():
            if session.record(record_key) is None:
                session.buffer.index.records[record_key] = SET_APART
                session.buffer.set_apart.append((record_key, *place))

    def _take_deleted(self, part: Part) -> None:
        buffer = self._session.buffer
        for record_key, group, group_id in self._frame(part, "deleted", DELETED_COLUMNS).collect().iter_rows():
            number: Any = None if group is None else self._numbers[group]
            if record_key is not None:
                buffer.index.records[record_key] = DELETED
            if number is not None:
                buffer.index.deleted_groups[number] = group_id
            buffer.deleted.append((record_key, number, group_id))
