"""Converting raw records: the part of ingestion that runs in parallel and never raises on what a record holds."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import PurePath
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import msgspec

from offline_arl.errors import DataError
from offline_arl.logs.adapter import (
    Assembly,
    Feedback,
    Fragment,
    Group,
    LogAdapter,
    Piece,
    RawRecord,
    RecordAdapter,
    RecordRefusedError,
    RecordSetApartError,
    adapter_named,
    is_assembling,
)
from offline_arl.logs.records import explain
from offline_arl.trajectories.encoded_batch import BatchBuilder, EncodedBatch
from offline_arl.trajectories.encoding import EncodedTrajectory, encode_trajectory
from offline_arl.trajectories.schema import Trajectory

if TYPE_CHECKING:  # redaction is loaded by those who ask for it
    from offline_arl.logs.redaction.redactor import Redactor

logger = logging.getLogger(__name__)
PieceFate = Literal["used", "duplicate", "set_apart", "refused"]


class PiecePosition(NamedTuple):
    """Where a piece comes from; orders pieces as their files do."""

    label: str
    file: str
    position: int
    sha256: str
    line: int | None

    @classmethod
    def of(cls, record: RawRecord) -> PiecePosition:
        """The place of a record."""
        return cls(record.label, record.file, record.position, record.sha256, record.line)


class SplitRecord(msgspec.Struct, frozen=True):
    """What one record gives at once: trajectories and feedback, or fragments to be assembled, or a reason."""

    trajectories: Sequence[Trajectory] = ()
    feedback: Sequence[Feedback] = ()
    fragments: Sequence[Fragment] = ()
    refused: str | None = None
    set_apart: str | None = None


@dataclass(frozen=True)
class AssembledGroup:
    """A group after assembly: results, and the fate of each piece with a reason ("" where it was used)."""

    positions: list[PiecePosition]
    fates: list[tuple[PieceFate, str]]
    trajectories: list[Trajectory] = field(default_factory=list)
    feedback: list[Feedback] = field(default_factory=list)


def record_key(record: RawRecord, real_path: str) -> bytes:
    """Identity of a record: the file's resolved path, the position in it and the content; 16 bytes.

    The path is the resolved one, not the one that was typed, so that the same file named in another way is
    recognized, and files of the same name in different folders stay apart.
    """
    identity = f"{real_path}\0{record.position}\0{record.sha256}"
    data = identity.encode() if identity.isascii() else identity.encode(errors="surrogateescape")
    return hashlib.blake2b(data, digest_size=16).digest()


def group_place(fragment: Fragment, label: str, real_path: str) -> tuple[str | None, str | None]:
    r"""The key of a fragment's group, and what tells the group from others of that key, if there may be any.

    Args:
        fragment: Of a record.
        label: Of the record.
        real_path: The file's resolved path.

    >>> group_place(Fragment("run", b"", folder_levels=2), "trial/agent/a.json", "/jobs/trial/agent/a.json")
    ('trial#run', '/jobs/trial\x00run')
    >>> group_place(Fragment("", b"", folder_levels=2), "a.json", "/jobs/trial/agent/a.json")
    ('trial', '/jobs/trial\x00')
    """
    if not fragment.folder_levels:
        return fragment.key, None
    folder = PurePath(real_path)
    for _ in range(fragment.folder_levels):
        folder = folder.parent
    # As the user sees the folder, so that ids do not depend on where it lies.
    told = "/".join(PurePath(label).parts[: -fragment.folder_levels]) or folder.name
    return f"{told}#{fragment.key}" if fragment.key else told, f"{folder}\0{fragment.key}"


class Other(msgspec.Struct, frozen=True):
    """What a record became besides trajectories: feedback or fragments, or a reason to refuse it or to set it apart."""

    index: int  # of the record among those that were converted with it
    key: bytes
    feedback: Sequence[Feedback] = ()
    fragments: Sequence[Fragment] = ()
    refused: str | None = None
    set_apart: str | None = None
    redacted: bytes | None = None  # the redacted record, where it was refused and differs from the record


class ConvertedRecords(NamedTuple):
    """What became of some records, ready to be written."""

    used: int  # how many became trajectories or feedback
    batches: list[EncodedBatch]  # the trajectories
    others: list[Other]


@dataclass(frozen=True)
class EncodedGroup:
    """A group after assembly, ready to be written; `fates` are in the order of the pieces."""

    fates: list[tuple[PieceFate, str]]
    encoded: Sequence[EncodedTrajectory] = ()
    feedback: Sequence[Feedback] = ()
    redactions: Mapping[str, int] = field(default_factory=dict)


def convert_records(
    adapter: LogAdapter | None, real_path: str, records: Sequence[RawRecord], redactor: Redactor | None = None
) -> ConvertedRecords:
    """Convert and encode records; whatever is wrong with one becomes the reason of its refusal.

    Args:
        adapter: Of their format; None where they are of no known one, so that each has a problem.
        real_path: The file's resolved path.
        records: Of one file.
        redactor: Redacts the records before they are converted, and what they became; counts on its own.
    """
    gathered = _Gathered(real_path)
    if redactor is None:
        for record in records:
            gathered.add(record, _split(adapter, record))
        return gathered.converted()
    redacted = redactor.records(records)
    splits = _redacted([_split(adapter, record) for record in redacted], redactor)
    for before, after, split in zip(records, redacted, splits, strict=True):
        gathered.add(before, split)
        other = gathered.others[-1] if gathered.others else None
        if other is not None and other.index == gathered.count - 1 and other.refused is not None:
            raw = None if after is before else after.raw
            gathered.others[-1] = msgspec.structs.replace(other, refused=redactor.text(other.refused), redacted=raw)
    return gathered.converted()


class _Gathered:
    """What the records so far became."""

    def __init__(self, real_path: str) -> None:
        self.count = 0
        self.others: list[Other] = []
        self._real_path = real_path
        self._used = 0
        self._builder = BatchBuilder()

    def add(self, record: RawRecord, split: SplitRecord) -> None:
        index, key = self.count, record_key(record, self._real_path)
        self.count += 1
        try:
            encoded = [encode_trajectory(trajectory) for trajectory in split.trajectories]
        except DataError as error:
            self.others.append(Other(index, key, refused=str(error)))
            return
        for item in encoded:
            self._builder.add(item, key)
        if encoded or split.feedback:
            self._used += 1
        if split.feedback or not encoded:
            self.others.append(Other(index, key, split.feedback, split.fragments, split.refused, split.set_apart))

    def converted(self) -> ConvertedRecords:
        return ConvertedRecords(self._used, self._builder.batches(), self.others)


def _split(adapter: LogAdapter | None, record: RawRecord) -> SplitRecord:
    if adapter is None:
        return SplitRecord(refused=record.problem or "not of a known log format")
    return split_record(adapter, record)


def _redacted(splits: Sequence[SplitRecord], redactor: Redactor) -> list[SplitRecord]:
    """Redact what records became, all of it at once, which is faster; one by one where that fails."""
    from offline_arl.logs.redaction.results import redact_feedback, redact_trajectories

    try:
        trajectories = iter(redact_trajectories([item for split in splits for item in split.trajectories], redactor))
        feedback = iter(redact_feedback([item for split in splits for item in split.feedback], redactor))
    except DataError as error:
        if len(splits) == 1:
            return [SplitRecord(refused=str(error))]
        return [part for split in splits for part in _redacted([split], redactor)]
    return [
        msgspec.structs.replace(
            split,
            trajectories=list(islice(trajectories, len(split.trajectories))),
            feedback=list(islice(feedback, len(split.feedback))),
        )
        if split.trajectories or split.feedback
        else split
        for split in splits
    ]


def assemble_and_encode(
    format: str, key: str | None, pieces: Sequence[tuple[PiecePosition, bytes]], redactor: Redactor | None = None
) -> EncodedGroup:
    """Assemble the pieces of one group (in the order of their files) and encode what they become.

    A trajectory that cannot be stored refuses the whole group: which pieces are at fault is not known.
    """
    assembled = assemble_group(format, key, pieces)
    trajectories, feedback = assembled.trajectories, assembled.feedback
    try:
        if redactor is not None:
            from offline_arl.logs.redaction.results import redact_feedback, redact_trajectories

            trajectories = redact_trajectories(trajectories, redactor)
            feedback = redact_feedback(feedback, redactor)
        encoded = [encode_trajectory(trajectory) for trajectory in trajectories]
    except DataError as error:
        return EncodedGroup([("refused", str(error))] * len(pieces))
    counts = {} if redactor is None else redactor.take_counts()
    return EncodedGroup(assembled.fates, encoded, feedback, counts)


def split_record(adapter: LogAdapter, record: RawRecord) -> SplitRecord:
    """Convert one record; whatever is wrong with it becomes the reason of a refusal."""
    if record.problem is not None:
        return SplitRecord(refused=record.problem)
    try:
        if is_assembling(adapter):
            fragments = adapter.fragments(record)
            return SplitRecord(fragments=fragments) if fragments else SplitRecord(set_apart="holds nothing")
        results = cast(RecordAdapter, adapter).convert(record)
    except RecordSetApartError as error:
        return SplitRecord(set_apart=str(error))
    except Exception as error:
        return SplitRecord(refused=_reason(error, record.raw, record.where, adapter.name))
    if not results:
        return SplitRecord(set_apart="holds no interaction")
    trajectories = [item for item in results if isinstance(item, Trajectory)]
    if len(trajectories) == len(results):
        return SplitRecord(trajectories)
    return SplitRecord(trajectories, [item for item in results if isinstance(item, Feedback)])


def assemble_group(format: str, key: str | None, pieces: Sequence[tuple[PiecePosition, bytes]]) -> AssembledGroup:
    """Assemble the pieces of one group (in any order); a fault refuses all of them with the reason."""
    adapter = adapter_named(format)
    ordered = sorted(pieces, key=lambda item: (item[0].label, item[0].file, item[0].position))
    positions = [position for position, _ in ordered]
    group = Group(
        format,
        key,
        [
            Piece(payload, position.file, position.label, position.position, position.sha256, position.line)
            for position, payload in ordered
        ],
    )

    try:
        if not is_assembling(adapter):
            raise TypeError("has no assemble")
        assembly = adapter.assemble(group)
    except RecordSetApartError as error:
        return AssembledGroup(positions, [("set_apart", str(error))] * len(positions))
    except Exception as error:
        reason = _reason(error, group.pieces[0].payload, group.pieces[0].where, format)
        return AssembledGroup(positions, [("refused", reason)] * len(positions))
    fates = [_fate(assembly, index) for index in range(len(positions))]
    return AssembledGroup(positions, fates, assembly.trajectories, assembly.feedback)


def _fate(assembly: Assembly, index: int) -> tuple[PieceFate, str]:
    if (reason := assembly.refused.get(index)) is not None:
        return "refused", reason
    if (reason := assembly.duplicates.get(index)) is not None:
        return "duplicate", reason
    if (reason := assembly.set_apart.get(index)) is not None:
        return "set_apart", reason
    if not assembly.trajectories and not assembly.feedback:
        return "set_apart", "the group holds no interaction"
    return "used", ""


def _reason(error: Exception, raw: bytes, where: str, adapter: str) -> str:
    """Why a record is refused, for people, from what an adapter or a decoder raised."""
    if isinstance(error, (RecordRefusedError, DataError)):
        return str(error)
    if isinstance(error, msgspec.MsgspecError):
        return explain(raw, error)
    if isinstance(error, RecursionError):
        return "JSON is nested too deeply"
    # One strange record, or a fault in a third party's adapter, must not end the ingestion of millions.
    logger.error("%s: the adapter %s failed", where, adapter, exc_info=error)
    return f"the adapter {adapter} failed: {type(error).__name__}: {error}"
