"""Groups of pieces in a store: taking pieces in, giving groups out, taking in what they became."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from offline_arl.trajectories import encoding
from offline_arl.trajectories.encoding import EncodedTrajectory
from offline_arl.trajectories.index import AssemblyEntry, GroupRows, MadeTrajectory
from offline_arl.trajectories.pieces import PendingGroup, batches, group_identity, read_groups, storable
from offline_arl.trajectories.quarantine import RefusedRecord
from offline_arl.trajectories.record_states import DELETED, RANK, RecordEntry, RecordState, after_assembly, after_pieces
from offline_arl.trajectories.schema import Feedback
from offline_arl.trajectories.scores import feedback_digest, feedback_row
from offline_arl.trajectories.session import WriteSession

# Groups that are kept at hand from one part to the next, so that a long session needs no look-ups.
_GROUPS_KEPT = 20_000
# What the fate of a record counts towards the size of a part.
_FATE_BYTES = 64


class PieceIntake:
    """Takes pieces into the part in the making."""

    def __init__(self, session: WriteSession) -> None:
        self._session = session
        self._groups: dict[tuple[str, str | None, str], tuple[int, bytes, bool]] = {}
        self._last_number = session.index.last_group
        self._record: bytes | None = None  # whose pieces are coming in
        self._known: RecordEntry | None = None  # what was known of it before
        self._record_groups: set[int] = set()
        self._fragments = 0
        self._is_deleted = False  # whether a piece of it would belong to a deleted group

    def add(
        self,
        *,
        format: str,
        key: str | None,
        place: str | None,
        scope: str,
        record_key: bytes,
        label: str,
        file: str,
        position: int,
        line: int | None,
        sha256: str,
        payload: bytes,
    ) -> bool:
        """Add one piece; see `StoreWriter.add_piece`."""
        session = self._session
        name = (format, key, scope if key is None else "") if place is None else (format, None, place)
        number, group_id, deleted = self._group(name)
        if record_key != self._record:
            self.end_record()
            known = session.record(record_key)
            if known is not None and (known.groups > 0 or known.state != RANK["refused"]):
                if known.state == RANK["refused"]:
                    session.index.retry(number)
                return False
            self._record, self._known, self._record_groups, self._fragments = record_key, known, set(), 0
        buffer = session.buffer
        if deleted:
            self._is_deleted = True
            return False
        self._record_groups.add(number)
        buffer.index.records[record_key] = after_pieces(self._known, len(self._record_groups))
        group = buffer.index.groups.setdefault(number, GroupRows(group_id))
        group.pieces += 1
        group.bytes += len(payload)
        origin = (storable(label), storable(file), position, line, sha256, payload)
        text_key = None if key is None else storable(key)
        buffer.pieces.append(
            (number, group_id, format, text_key, storable(scope), record_key, self._fragments, *origin)
        )
        buffer.bytes += len(payload)
        self._fragments += 1
        return True

    def end_record(self) -> None:
        """No more pieces of the last record will come: from now on it is one that is known."""
        if self._record is not None and self._is_deleted and self._fragments == 0:
            self._session.buffer.index.records[self._record] = DELETED
            self._session.buffer.deleted.append((self._record, None, None))
        self._record, self._is_deleted = None, False

    def end_part(self) -> None:
        """The part was committed: groups can be looked up in the index."""
        if len(self._groups) >= _GROUPS_KEPT:
            self._groups.clear()

    def _group(self, name: tuple[str, str | None, str]) -> tuple[int, bytes, bool]:
        known = self._groups.get(name)
        if known is None:
            group_id = group_identity(*name)
            number, deleted = self._session.index.group(group_id) or (self._new_number(), False)
            known = self._groups[name] = (number, group_id, deleted)
        return known

    def _new_number(self) -> int:
        self._last_number += 1
        return self._last_number


def pending_groups(session: WriteSession) -> Iterator[list[PendingGroup]]:
    """Batches of groups that got pieces since they were last assembled; see `StoreWriter.dirty_groups`."""
    for numbers in batches(session.index):
        groups = read_groups(session.root, session.manifest, session.index, numbers)
        if groups:
            yield [_without_corrected(session, group) for group in groups]


def _without_corrected(session: WriteSession, group: PendingGroup) -> PendingGroup:
    """Leave out records that were refused, and in whose place of the file another record stands since."""
    places: dict[tuple[str, str, int], dict[bytes, None]] = {}
    for piece in group.pieces:
        places.setdefault((piece.label, piece.file, piece.position), {}).setdefault(piece.record_key)
    gone: set[bytes] = set()
    for versions in places.values():
        if len(versions) > 1:
            refused = [key for key, entry in session.records(list(versions)).items() if entry.state == RANK["refused"]]
            gone.update(refused if len(refused) < len(versions) else list(versions)[:-1])
    if not gone:
        return group
    kept = [piece for piece in group.pieces if piece.record_key not in gone]
    return replace(group, pieces=kept, corrected=len(group.pieces) - len(kept))


def finish_group(
    session: WriteSession,
    group: PendingGroup,
    trajectories: Sequence[EncodedTrajectory],
    feedback: Sequence[Feedback],
    fates: Iterable[tuple[bytes, RecordState, str]],
) -> list[str]:
    """Take in what a group became; see `StoreWriter.finish_group`."""
    if group.number in session.buffer.index.assembled:
        session.commit()
    rows = [feedback_row(item, group=group.number, record_key=None) for item in feedback]
    earlier = session.index.assembly(group.number)
    made = _take_trajectories(session, group, trajectories, earlier.trajectories)
    feedback_part, digest = earlier.feedback_part, feedback_digest(rows)
    if digest != earlier.feedback:
        if earlier.feedback_part:
            session.buffer.removed.append((None, group.number, earlier.feedback_part))
        session.buffer.feedback.extend(rows)
        feedback_part = session.manifest.next_number if rows else 0
    entry = AssemblyEntry(len(group.pieces) + group.corrected, made, feedback_part, digest)
    changed = _take_fates(session, group, fates)
    if changed or entry != earlier:
        session.buffer.index.assembled[group.number] = entry
    session.index.settle(group.number)
    return [item.id for item in made.values()]


def _take_trajectories(
    session: WriteSession,
    group: PendingGroup,
    trajectories: Sequence[EncodedTrajectory],
    earlier: dict[str, MadeTrajectory],
) -> dict[str, MadeTrajectory]:
    ids: dict[str, str] = {}
    named: list[tuple[str, EncodedTrajectory]] = []
    for encoded in trajectories:
        name = encoded.trajectory_id
        while name in ids:  # an adapter that gives one id twice
            name = encoding.blob_id(f"{name}/again")[:20]
        known = earlier.get(name)
        ids[name] = session.free_id(name, group.group_id) if known is None else known.id
        named.append((name, encoded))
    made: dict[str, MadeTrajectory] = {}
    moved = {name: id for name, id in ids.items() if name != id}
    for name, encoded in named:
        if encoded.trajectory_id != ids[name]:
            encoded = encoded.renamed(ids[name])
        if moved:
            encoded = encoded.with_references(moved)
        made[name] = MadeTrajectory(encoded.trajectory_id, encoded.digest())
        known = earlier.get(name)
        if known == made[name]:
            continue
        if known is not None:
            session.remove(known.id)
        session.put(encoded, record_key=None)
    for name, gone in earlier.items():
        if name not in made:
            session.remove(gone.id)
    return made


def _take_fates(session: WriteSession, group: PendingGroup, fates: Iterable[tuple[bytes, RecordState, str]]) -> bool:
    combined: dict[bytes, tuple[RecordState, str]] = {}
    for key, state, reason in fates:
        if key not in combined or RANK[state] > RANK[combined[key][0]]:
            combined[key] = (state, reason)
    changed = False
    pieces: dict[bytes, Any] | None = None
    records = session.records(list(combined))
    for key, (state, reason) in combined.items():
        known = records.get(key)
        entry = after_assembly(known, state)
        if entry == known:
            continue
        changed = True
        session.buffer.index.records[key] = entry
        session.buffer.fates.append((group.number, key, state, reason or None))
        session.buffer.bytes += _FATE_BYTES
        if state == "refused" and (known is None or known.state != RANK["refused"]):
            if pieces is None:
                pieces = {piece.record_key: piece for piece in reversed(group.pieces)}
            piece = pieces[key]
            session.quarantine(
                RefusedRecord.of(
                    piece.payload,
                    file=piece.file,
                    record=piece.position,
                    line=piece.line,
                    format=group.format,
                    reason=reason,
                    key=key,
                )
            )
    return changed
