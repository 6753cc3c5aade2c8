"""The one writer of a store: trajectories, refused records, feedback, and pieces with what they are assembled to."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from offline_arl.errors import DataError, UsageError
from offline_arl.trajectories import assembly, encoding
from offline_arl.trajectories.duplicates import DUPLICATES
from offline_arl.trajectories.encoded_batch import EncodedBatch
from offline_arl.trajectories.encoding import EncodedTrajectory
from offline_arl.trajectories.pieces import PendingGroup, storable
from offline_arl.trajectories.quarantine import RefusedRecord
from offline_arl.trajectories.record_states import REFUSED, SET_APART, STATES, USED, RecordState
from offline_arl.trajectories.schema import Feedback, Trajectory
from offline_arl.trajectories.scores import feedback_row
from offline_arl.trajectories.session import WriteSession, open_session

__all__ = ["DUPLICATES", "RefusedRecord", "StoreWriter"]

logger = logging.getLogger(__name__)


class StoreWriter:
    """The one writer of a store; use it as a context manager (`with store.writer() as writer`).

    What is added becomes visible in commits of one immutable part. A part is committed when it reaches
    `max_part_bytes` of JSON or `max_part_trajectories`, on `commit()`, and at the end of the `with` block; when
    the block ends by an exception, what was added since the last commit is discarded.
    """

    def __init__(self, root: Path, *, max_part_bytes: int, max_part_trajectories: int) -> None:
        self._root = root
        self._max_part_bytes = max_part_bytes
        self._max_part_trajectories = max_part_trajectories
        self._stack = ExitStack()
        self._open: tuple[WriteSession, assembly.PieceIntake] | None = None
        self._renamed: tuple[bytes | None, dict[str, str]] = (None, {})

    def __enter__(self) -> StoreWriter:
        with ExitStack() as stack:
            session = stack.enter_context(open_session(self._root))
            self._open = (session, assembly.PieceIntake(session))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.commit()
        finally:
            self._open = None
            self._stack.close()

    def add(self, trajectory: Trajectory) -> bool:
        """Add a trajectory. Returns False, and adds nothing, if it is already in the store.

        Raises:
            DataError: The trajectory is invalid, or its id is taken by one with other content.
        """
        encoded = encoding.encode_trajectory(trajectory)
        known = self._session.content_of(encoded.trajectory_id)
        if known is None:
            self.add_encoded(encoded)
            self.commit_if_full()
            return True
        if known != encoded.content_key:
            raise DataError(
                f"{self._root}: trajectory_id {encoded.trajectory_id!r} is taken by a trajectory with other content"
            )
        return False

    def remove(self, trajectory_id: str) -> None:
        """Remove a committed trajectory with the next commit; where there is none of this id, nothing happens.

        Its text stays in the files until `compact`; see `deletion` for what has to be gone.
        """
        self._session.remove(trajectory_id)

    def add_encoded(self, encoded: EncodedTrajectory, *, record_key: bytes | None = None) -> str:
        """Add an encoded trajectory that is not in the store yet; returns the id it got.

        Args:
            encoded: From `encoding.encode_trajectory`.
            record_key: Identity of the log record it came from (position and content), for `record_state`.

        Where the id is taken (two files of the same name hold the same record at the same position), the
        trajectory is stored under an id made from both, and what comes after it from the same record refers to it
        by the new id.
        """
        session = self._session
        if record_key is None or record_key != self._renamed[0]:
            self._renamed = (record_key, {})
        name = session.free_id(encoded.trajectory_id, record_key or b"")
        if name != encoded.trajectory_id:
            if session.content_of(encoded.trajectory_id) != encoded.content_key:
                taken = "%s: trajectory_id %r is taken by other content; this one is %r"
                logger.warning(taken, self._root, encoded.trajectory_id, name)
            self._renamed[1][encoded.trajectory_id] = name
            encoded = encoded.renamed(name)
        if self._renamed[1]:
            encoded = encoded.with_references(self._renamed[1])
        session.put(encoded, record_key=record_key)
        return name

    def add_batch(self, batch: EncodedBatch) -> None:
        """Add encoded trajectories of log records that are not in the store yet; as `add_encoded`, many at once."""
        if not self._session.holds_any(batch.contents):
            self._session.put_batch(batch)
            return
        for encoded, record_key in batch.items():
            self.add_encoded(encoded, record_key=record_key)

    def add_feedback(self, feedback: Iterable[Feedback], *, record_key: bytes | None = None) -> None:
        """Add judgements that one record holds apart from what they judge; the record is used then."""
        session = self._session
        session.buffer.feedback.extend(feedback_row(item, group=None, record_key=record_key) for item in feedback)
        if record_key is not None:
            session.buffer.index.records[record_key] = USED

    def refuse(self, record: RefusedRecord) -> None:
        """Put a record into quarantine, once: the same record at the same position is kept once."""
        key = bytes.fromhex(record.key)
        if not self.record_refused(key):
            self._session.quarantine(record)
            self._session.buffer.index.records[key] = REFUSED

    def set_apart(
        self, key: bytes, *, format: str | None, file: str, record: int | None, line: int | None, reason: str
    ) -> None:
        """Remember, once, that a record is no interaction, and why; its content is not kept.

        Args:
            key: Identity of the record (position and content).
            format: Name of the log format; None: of no known one.
            file: The file's path as it was given.
            record: 0-based position of the record in the file; None: the whole file.
            line: 1-based line, where the file has one record a line.
            reason: Why.
        """
        buffer = self._session.buffer
        if self.record_state(key) in (None, "refused"):
            buffer.set_apart.append((key, format, storable(file), record, line, storable(reason)))
            buffer.index.records[key] = SET_APART
            buffer.bytes += len(file) + len(reason)

    def add_piece(
        self,
        *,
        format: str,
        key: str | None,
        place: str | None = None,
        scope: str,
        record_key: bytes,
        label: str,
        file: str,
        position: int,
        line: int | None,
        sha256: str,
        payload: bytes,
    ) -> bool:
        """Add what one record contributes to a group that is assembled later.

        All pieces of a record are added one after another, with no commit in between. Pieces of a record that has
        some in the store already are not added again; where its group refused it, the group counts as dirty.

        Args:
            format: Name of the log format.
            key: Name of the group within the format; None: the file in `scope`.
            place: What tells the group from others, where others may have its key; it keeps its first key then.
            scope: Real path of the file. The file keeps the label and the name by which it was read first.
            record_key: Identity of the record (position and content).
            label: The file's path relative to the source that was named.
            file: The file's path as it was given.
            position: 0-based position of the record in the file.
            line: 1-based line, where the file has one record a line.
            sha256: Of the raw record, hexadecimal.
            payload: What the assembly gets back.

        Returns:
            Whether it was added.
        """
        return self._intake.add(
            format=format,
            key=key,
            place=place,
            scope=scope,
            record_key=record_key,
            label=label,
            file=file,
            position=position,
            line=line,
            sha256=sha256,
            payload=payload,
        )

    def dirty_groups(self) -> Iterator[list[PendingGroup]]:
        """Commit, and yield the groups that got pieces since they were last assembled, with all their pieces.

        They come in the order in which they were first seen, in batches of at most 16 MiB of payload (a larger
        group alone). Finish each with `finish_group`; commits in between do no harm.
        """
        self.commit()
        yield from assembly.pending_groups(self._session)

    def finish_group(
        self,
        group: PendingGroup,
        trajectories: Sequence[EncodedTrajectory],
        feedback: Sequence[Feedback],
        fates: Iterable[tuple[bytes, RecordState, str]],
    ) -> list[str]:
        """Take in what a group became, in place of what it became before.

        Trajectories that the earlier assembly made and this one does not are removed, those that changed are
        replaced, and nothing is written for those that did not. Refused records go to quarantine. All of it becomes
        visible with one commit; until then the group stays dirty.

        Args:
            group: From `dirty_groups`.
            trajectories: All of them. One whose id another group or record has taken gets a new one, the same at
                every assembly, also where others of the group refer to it.
            feedback: All of it.
            fates: Record key, what became of the record ("used", "refused", "set_apart" or "duplicate"), and why.

        Returns:
            The ids of the trajectories in the store.
        """
        return assembly.finish_group(self._session, group, trajectories, feedback, fates)

    def record_state(self, key: bytes) -> RecordState | None:
        """What became of this log record; None where it was never seen.

        A record with pieces in several groups is used if one of them used it, else refused, set apart or a
        duplicate; it is pending until one of them is assembled.
        """
        entry = self._session.record(key)
        return None if entry is None else STATES[entry.state]

    def record_refused(self, key: bytes) -> bool | None:
        """None: this log record was never seen. Otherwise whether it was refused."""
        state = self.record_state(key)
        return None if state is None else state == "refused"

    def is_shared(self, key: bytes) -> bool:
        """Whether a record has pieces in several groups."""
        entry = self._session.record(key)
        return entry is not None and entry.groups > 1

    @property
    def written(self) -> int:
        """How many trajectories were written since the writer was opened, replacements among them."""
        return self._session.written

    @property
    def found(self) -> Mapping[str, int]:
        """What validation found in the trajectories that were written, by code (see `validate.CODES`)."""
        return self._session.found

    @property
    def knows_records(self) -> bool:
        """Whether the store held anything when the writer was opened; where not, nothing need be looked up."""
        return not self._session.is_empty

    def commit_if_full(self) -> None:
        """Begin to commit when the part in memory has reached its size; call it between log records.

        The part becomes visible with the next commit at the latest.
        """
        self._intake.end_record()
        buffer = self._session.buffer
        if buffer.bytes >= self._max_part_bytes or len(buffer.rows) >= self._max_part_trajectories:
            self._commit(wait=False)

    def commit(self) -> None:
        """Publish what was added since the last commit; nothing happens if nothing was."""
        self._commit(wait=True)

    def _commit(self, *, wait: bool) -> None:
        self._intake.end_record()
        self._session.commit(wait=wait)
        self._intake.end_part()

    @property
    def _session(self) -> WriteSession:
        return self._opened()[0]

    @property
    def _intake(self) -> assembly.PieceIntake:
        return self._opened()[1]

    def _opened(self) -> tuple[WriteSession, assembly.PieceIntake]:
        if self._open is None:
            raise UsageError(f"{self._root}: the writer is not open; use it as `with store.writer() as writer`")
        return self._open
