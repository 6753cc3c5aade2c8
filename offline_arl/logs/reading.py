"""Reading log files in memory, without a store: for a look at a file, for tests and for notebooks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from offline_arl.errors import DataError
from offline_arl.logs.adapter import Feedback, LogAdapter, RawRecord, adapter_named
from offline_arl.logs.convert import AssembledGroup, PiecePosition, assemble_group, group_place, split_record
from offline_arl.logs.detect import PROBE_RECORDS, detect_records
from offline_arl.logs.records import LogFile, read_records
from offline_arl.logs.sources import find_files
from offline_arl.trajectories.schema import Trajectory

if TYPE_CHECKING:  # redaction is loaded by those who ask for it
    from offline_arl.logs.redaction.config import RedactionConfig
    from offline_arl.logs.redaction.redactor import Redactor

Fate = Literal["used", "duplicate", "set_apart", "refused"]
# A record with several pieces is used if one of them is; else it has the first of these that one of them has.
_FATES: Sequence[Fate] = ("used", "refused", "set_apart", "duplicate")


@dataclass(frozen=True)
class RecordFate:
    """What became of one record, and why."""

    record: RawRecord
    fate: Fate
    reason: str = ""


@dataclass
class LogContents:
    """What some log files hold."""

    trajectories: list[Trajectory] = field(default_factory=list)
    feedback: list[Feedback] = field(default_factory=list)
    fates: list[RecordFate] = field(default_factory=list)
    formats: dict[str, str] = field(default_factory=dict)  # path to name of the format; files of no format missing

    def count(self, fate: Fate) -> int:
        """How many records had this fate."""
        return sum(1 for item in self.fates if item.fate == fate)


def read_logs(
    paths: str | Path | Iterable[str | Path], *, format: str = "auto", redact: bool | RedactionConfig = False
) -> LogContents:
    """Read log files whole, in memory. For much data use `workflows.ingest`, which does the same in bounded memory.

    Args:
        paths: Files, and folders of them. Files in a folder that are no logs are passed over.
        format: Name of a log format, or "auto" to find out for each file.
        redact: Replace secrets and personal data; the placeholders are others at every call.

    Raises:
        DataError: A file or folder is missing or cannot be read.
        UsageError: The format is unknown.
        MissingDependencyError: Redaction needs a package that is not installed.
    """
    redactor = _redactor(redact)
    contents = LogContents()
    fates: dict[tuple[str, int], list[tuple[Fate, str]]] = {}
    records: dict[tuple[str, int], RawRecord] = {}
    groups: dict[tuple[str, str | None, str | None], list[tuple[PiecePosition, bytes]]] = {}
    keys: dict[tuple[str, str | None, str | None], str | None] = {}
    for file in find_files([paths] if isinstance(paths, (str, Path)) else list(paths)).logs:
        real_path = os.path.realpath(file.path)
        found, adapter = _with_adapter(file, format)
        if adapter is not None:
            contents.formats[file.shown] = adapter.name
        if redactor is not None:
            found = redactor.records(list(found))
        for record in found:
            place = (record.file, record.position)
            records[place] = record
            fates[place] = []
            if adapter is None:
                fates[place].append(("refused", record.problem or "not of a known log format"))
                continue
            split = split_record(adapter, record)
            contents.trajectories.extend(split.trajectories)
            contents.feedback.extend(split.feedback)
            if split.refused is not None:
                fates[place].append(("refused", split.refused))
            elif split.set_apart is not None:
                fates[place].append(("set_apart", split.set_apart))
            elif not split.fragments:
                fates[place].append(("used", ""))
            for fragment in split.fragments:
                key, folder = group_place(fragment, record.label, real_path)
                group = (adapter.name, key if folder is None else None, real_path if key is None else folder)
                keys.setdefault(group, key)
                groups.setdefault(group, []).append((PiecePosition.of(record), fragment.payload))
    for group, pieces in groups.items():
        assembled = assemble_group(group[0], keys[group], pieces)
        contents.trajectories.extend(assembled.trajectories)
        contents.feedback.extend(assembled.feedback)
        for place, fate, reason in _piece_fates(assembled):
            fates[place].append((fate, reason))
    for place, record in records.items():
        fate, reason = min(fates[place], key=lambda item: _FATES.index(item[0]))
        contents.fates.append(RecordFate(record, fate, reason if redactor is None else redactor.text(reason)))
    if redactor is not None:
        from offline_arl.logs.redaction.results import redact_feedback, redact_trajectories

        contents.trajectories = redact_trajectories(contents.trajectories, redactor)
        contents.feedback = redact_feedback(contents.feedback, redactor)
    return contents


def _redactor(redact: bool | RedactionConfig) -> Redactor | None:
    if redact is False:
        return None
    from offline_arl.logs.redaction.plan import redactor_in_memory

    return redactor_in_memory(redact)


def _with_adapter(file: LogFile, format: str) -> tuple[Iterable[RawRecord], LogAdapter | None]:
    records = read_records(file)
    if format != "auto":
        return records, adapter_named(format)
    head = list(islice(records, PROBE_RECORDS))
    adapter, _ = detect_records(head)
    return chain(head, records), adapter


def _piece_fates(assembled: AssembledGroup) -> Iterable[tuple[tuple[str, int], Fate, str]]:
    for position, (fate, reason) in zip(assembled.positions, assembled.fates, strict=True):
        yield (position.file, position.position), fate, reason


def read_trajectories(path: str | Path, *, format: str = "auto") -> list[Trajectory]:
    """The trajectories of one log file.

    Raises:
        DataError: The file cannot be opened, or it holds no trajectory; the reason of the first record is given.
    """
    contents = read_logs(path, format=format)
    if not contents.trajectories:
        first = next((fate for fate in contents.fates if fate.reason), None)
        raise DataError(f"{path}: holds no trajectory" + (f" ({first.reason})" if first else ""))
    return contents.trajectories
