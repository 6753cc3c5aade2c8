"""What an ingestion did, counted in records of the sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from offline_arl.logs.convert import PieceFate

UNKNOWN_FORMAT = "unknown"
_REASONS_KEPT = 20
_BEST_FIRST: tuple[PieceFate, ...] = ("used", "refused", "set_apart", "duplicate")


def is_better(fate: PieceFate, other: PieceFate) -> bool:
    """Whether a record with pieces of both fates counts by the first."""
    return _BEST_FIRST.index(fate) < _BEST_FIRST.index(other)


@dataclass(frozen=True)
class IngestReport:
    """What an ingestion did.

    `records = records_used + quarantined + duplicates + set_apart`:

    - `records_used` became trajectories or feedback that were not in the store before;
    - `quarantined` were refused; they are in the store's quarantine, raw, with the reason. An empty file counts
      as one refused record. A record that an earlier ingestion refused is tried again, counts again if it is
      refused again, and is kept once;
    - `duplicates` were in the store already, from the same file, position and content, or repeat another record
      of their session or trace (the same uuid, a replayed history); nothing was written. A copy of a record from
      elsewhere is no duplicate in this sense: it is stored and marked `duplicate_of`;
    - `set_apart` are no interactions: records that a format keeps beside them, calls that make titles or
      summaries, and files in a folder that are not logs.

    `trajectories` counts the trajectories that were written, among them those of sessions that grew, which
    replace their earlier state. `by_format` counts the records of each format, those of no known format under
    "unknown". `feedback` counts judgements kept apart from what they judge, `findings` what validation found in
    the new trajectories, by code. `megabytes` (10^6 bytes) is what the files occupy on disk. `reasons` has the
    first refusals as one line each, `file:line: reason`, `set_apart_reasons` counts the reasons to set records
    apart. `redactions` counts the values that were replaced, by kind; None where nothing was looked for.
    """

    records: int = 0
    trajectories: int = 0
    quarantined: int = 0
    duplicates: int = 0
    set_apart: int = 0
    by_format: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    megabytes: float = 0.0
    records_used: int = 0
    feedback: int = 0
    findings: dict[str, int] = field(default_factory=dict)
    set_apart_reasons: dict[str, int] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    redactions: dict[str, int] | None = None

    @property
    def all_refused(self) -> bool:
        """Whether there were records and every one was refused."""
        return self.records > 0 and self.quarantined == self.records

    def to_json(self) -> dict[str, Any]:
        """The object that `offline-arl ingest --json` prints (without `reasons`; `redactions` with `--redact`)."""
        values = asdict(self)
        del values["reasons"]
        if self.redactions is None:
            del values["redactions"]
        return values


class Tally:
    """Running counts of an ingestion."""

    def __init__(self, *, redacting: bool = False) -> None:
        self.trajectories = self.feedback = 0
        self.findings: dict[str, int] = {}
        self.reasons: list[str] = []
        self.redactions: dict[str, int] | None = {} if redacting else None
        self._fates: dict[PieceFate, int] = dict.fromkeys(_BEST_FIRST, 0)
        self._by_format: dict[str, int] = {}
        self._set_apart: dict[str, int] = {}
        # Records of which several pieces are on their way: they count once, by the best fate among their pieces.
        self._shared: dict[bytes, tuple[str, PieceFate, str]] = {}
        self._retried: set[bytes] = set()

    def count(self, format: str, fate: PieceFate, reason: str = "", *, number: int = 1) -> None:
        """Count one record, or several; `reason` names its place where it was refused."""
        if number == 0:
            return
        self._fates[fate] += number
        self._by_format[format] = self._by_format.get(format, 0) + number
        if fate == "refused" and len(self.reasons) < _REASONS_KEPT:
            self.reasons.append(reason)
        if fate == "set_apart":
            self._set_apart[reason] = self._set_apart.get(reason, 0) + 1

    def retry(self, key: bytes) -> None:
        """A record that an earlier ingestion refused is tried again, so it counts again."""
        self._retried.add(key)

    def retried(self, key: bytes) -> bool:
        """Whether this record is tried again."""
        return key in self._retried

    def count_piece(self, key: bytes, format: str, fate: PieceFate, reason: str, *, is_shared: bool) -> None:
        """Count one piece of a record; one that is shared by several groups counts once, by its best fate."""
        known = self._shared.get(key)
        if not is_shared:
            self._retried.discard(key)
            self.count(format, fate, reason)
        elif known is None or is_better(fate, known[1]):
            self._shared[key] = (format, fate, reason)

    def is_counting(self, key: bytes) -> bool:
        """Whether the groups that share this record are being assembled."""
        return key in self._shared

    def redacted(self, kinds: Mapping[str, int]) -> None:
        """Add replaced values by kind."""
        for kind, count in kinds.items():
            assert self.redactions is not None
            self.redactions[kind] = self.redactions.get(kind, 0) + count

    def report(self, seconds: float, megabytes: float) -> IngestReport:
        """The report; ends the counting."""
        for format, fate, reason in self._shared.values():
            self.count(format, fate, reason)
        self._shared.clear()
        return IngestReport(
            records=sum(self._fates.values()),
            trajectories=self.trajectories,
            quarantined=self._fates["refused"],
            duplicates=self._fates["duplicate"],
            set_apart=self._fates["set_apart"],
            by_format=dict(sorted(self._by_format.items())),
            seconds=seconds,
            megabytes=megabytes,
            records_used=self._fates["used"],
            feedback=self.feedback,
            findings=dict(sorted(self.findings.items())),
            set_apart_reasons=dict(sorted(self._set_apart.items(), key=lambda item: (-item[1], item[0]))),
            reasons=tuple(self.reasons),
            redactions=None if self.redactions is None else dict(sorted(self.redactions.items())),
        )
