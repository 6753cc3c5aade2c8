"""The seam between log formats and everything else.

Formats come in two kinds. Where one record is a whole interaction (a chat conversation, a benchmark result), a
`RecordAdapter` converts it by itself. Where an interaction is spread over records (one line an event, one span a
model call), an `AssemblingAdapter` first says to which group each record belongs, and later turns the whole group
into trajectories; what lies in between (keeping the pieces on disk until all files are read, joining a grown
session with what an earlier ingestion saw) is the business of `workflows.ingest`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, cast, runtime_checkable

import msgspec

from offline_arl.errors import UsageError
from offline_arl.trajectories.schema import Feedback as Feedback  # adapters give it; the store keeps it
from offline_arl.trajectories.schema import FeedbackTarget as FeedbackTarget
from offline_arl.trajectories.schema import Source, Trajectory

if TYPE_CHECKING:  # loaded where it is used: processes that convert records never do
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP = "offline_arl.log_adapters"


class RecordRefusedError(Exception):
    """A record that should be a trajectory and cannot become one; it goes to quarantine with this reason."""


class RecordSetApartError(Exception):
    """A record of the format that is not an interaction (a header, an index); it is counted and passed over."""


class RawRecord(msgspec.Struct, frozen=True, dict=True):
    """One record of a log file, as it stands there.

    `problem` is set where the file could not be cut properly (a line that is too long, a compressed stream that
    ends early); `raw` is then what there is of it.
    """

    file: str  # path as the user gave it, for messages and provenance
    label: str  # path relative to the source that was named; part of the trajectory id, so that ids are portable
    position: int  # 0-based among the records of the file
    raw: bytes
    line: int | None = None  # 1-based, where the file has one record a line
    problem: str | None = None

    @property
    def where(self) -> str:
        """`file:line`, or `file[position]` where records are not lines."""
        return f"{self.file}:{self.line}" if self.line is not None else f"{self.file}[{self.position}]"

    @property
    def sha256(self) -> str:
        """SHA-256 of the raw bytes, hexadecimal; computed once (`cached_property` of Python 3.11 takes a lock)."""
        known: str | None = self.__dict__.get("_sha256")
        if known is None:
            known = self.__dict__["_sha256"] = hashlib.sha256(self.raw).hexdigest()
        return known

    def source(self, format: str) -> Source:
        """The provenance of a trajectory made from this record."""
        return Source(format=format, file=self.file, record=self.position, sha256=self.sha256)

    def trajectory_id(self, number: int = 0) -> str:
        """The id of the `number`-th trajectory made from this record, from its position and content."""
        return _identity(f"{self.label}\0{self.position}\0{number}\0{self.sha256}")


@dataclass(frozen=True)
class Fragment:
    """What one record contributes to one group.

    Attributes:
        key: Name of the group within the format, such as a trace or session id; None: the file that the record is
            in. A group is held in memory when it is assembled, so a key must not cover a whole log of many
            interactions: where a call log has no ids, use `stitch.conversation_key`.
        payload: What `assemble` gets back; UTF-8 JSON by convention, often the raw record.
        folder_levels: Where the key names the group within a folder only, how far above the record's file that
            folder is (1: the one that the file is in). The key of the group is then `folder#key`, the folder alone
            where the key is empty; folders of one name in different places are different groups.
    """

    key: str | None
    payload: bytes
    folder_levels: int = 0


@dataclass(frozen=True)
class Piece:
    """A fragment that came back to its adapter, with the place of its record."""

    payload: bytes
    file: str
    label: str
    position: int
    sha256: str  # of the raw record
    line: int | None = None

    @property
    def where(self) -> str:
        """`file:line`, or `file[position]` where records are not lines."""
        return f"{self.file}:{self.line}" if self.line is not None else f"{self.file}[{self.position}]"


@dataclass(frozen=True)
class Group:
    """The pieces of one group, ordered by file label and position in the file (not by time)."""

    format: str
    key: str | None  # None: the pieces are those of one file
    pieces: Sequence[Piece]

    def trajectory_id(self, name: str | int = 0) -> str:
        """The id of a trajectory of this group.

        Args:
            name: What tells it from the others of the group, and stays the same when the group grows: 0 for the
                first, the id of the message where a branch starts, the id of a sub-agent.
        """
        scope = f"key\0{self.key}" if self.key is not None else f"file\0{self.pieces[0].label}"
        return _identity(f"{self.format}\0{scope}\0{name}")

    def source(self, pieces: Sequence[int] | None = None) -> Source:
        """The provenance of a trajectory made from some pieces (all where None): the first of them.

        `sha256` is that of the records' hashes in order.
        """
        chosen = [self.pieces[index] for index in (range(len(self.pieces)) if pieces is None else pieces)]
        first = chosen[0]
        digest = first.sha256 if len(chosen) == 1 else _joint_sha256(chosen)
        return Source(format=self.format, file=first.file, record=first.position, sha256=digest)


@dataclass
class Assembly:
    """What became of a group: results, and the fate of the pieces by index.

    A piece that no mapping names went into a trajectory or into feedback. Every piece of a group has exactly one
    fate, so that records in and records out add up.
    """

    trajectories: list[Trajectory] = field(default_factory=list)
    feedback: list[Feedback] = field(default_factory=list)
    set_apart: dict[int, str] = field(default_factory=dict)  # not part of an interaction: headers, utility calls
    duplicates: dict[int, str] = field(default_factory=dict)  # repeats another piece: same uuid, replayed history
    refused: dict[int, str] = field(default_factory=dict)  # should be part of an interaction and is unreadable


@runtime_checkable
class LogAdapter(Protocol):
    """What every adapter has. Adapters hold no state between records: several processes convert at once.

    Third parties register instances or classes under the entry point group `offline_arl.log_adapters`.
    """

    name: str
    # For people, in `offline-arl formats`; adapters of others may leave the three out.
    title: str  # of the format: "Claude Code sessions"
    keeps: str  # what a trajectory keeps of the format beyond messages and tool calls, one line
    lacks: str  # what the format does not record, or the adapter leaves out, one line; "" where nothing

    def recognizes(self, record: Any) -> bool:
        """Whether a parsed record (any JSON value, one of the first of a file) is certainly of this format."""
        ...


@runtime_checkable
class RecordAdapter(LogAdapter, Protocol):
    """A format of which each record is a whole interaction (or several, or separate feedback)."""

    def convert(self, record: RawRecord) -> Sequence[Trajectory | Feedback]:
        """The trajectories or feedback of one record.

        Raises:
            RecordRefusedError: It cannot be read; say what and where in the record.
            RecordSetApartError: It is a proper record of the format, and not an interaction.
        """
        ...


@runtime_checkable
class AssemblingAdapter(LogAdapter, Protocol):
    """A format whose interactions are spread over records."""

    def fragments(self, record: RawRecord) -> Sequence[Fragment]:
        """The groups that a record belongs to, and what it contributes to each; at least one.

        Raises:
            RecordRefusedError: It cannot be read; say what and where in the record.
            RecordSetApartError: It is a proper record of the format, and not part of an interaction.
        """
        ...

    def assemble(self, group: Group) -> Assembly:
        """The trajectories of a group. The same pieces always give the same assembly.

        A group is assembled again, whole, when a later ingestion brings more pieces; a trajectory with the id of
        an earlier one then replaces it.
        """
        ...


def is_assembling(adapter: LogAdapter) -> TypeGuard[AssemblingAdapter]:
    """Whether records have to be grouped before they become trajectories."""
    # Not isinstance: of a protocol it looks at every attribute, for every record.
    return hasattr(adapter, "assemble")


@lru_cache(maxsize=1)
def adapters() -> Mapping[str, LogAdapter]:
    """All adapters by name, in the order in which `detect` asks them: the built-in ones, then entry points.

    Raises:
        UsageError: What an entry point names cannot be loaded, or is no adapter.
    """
    from importlib.metadata import entry_points

    from offline_arl.logs.registry import built_in_adapters

    found: dict[str, LogAdapter] = {adapter.name: adapter for adapter in built_in_adapters()}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        adapter = _loaded(point)
        found.setdefault(adapter.name, adapter)
    return found


def _loaded(point: EntryPoint) -> LogAdapter:
    """The adapter that an entry point names; one that does not work is told, since its logs would be refused."""
    where = f"entry point {ENTRY_POINT_GROUP}: {point.name} = {point.value}"
    try:
        adapter = point.load()
        adapter = adapter() if isinstance(adapter, type) else adapter
    except Exception as error:
        raise UsageError(f"{where}: cannot be loaded ({type(error).__name__}: {error})") from error
    kind = ("fragments", "assemble") if hasattr(adapter, "assemble") else ("convert",)
    missing = [name for name in ("name", "recognizes", *kind) if not hasattr(adapter, name)]
    if missing:
        raise UsageError(f"{where}: is no log adapter, it lacks {', '.join(missing)}")
    return cast(LogAdapter, adapter)


def adapter_named(name: str) -> LogAdapter:
    """The adapter of a format.

    Raises:
        UsageError: There is none of this name.
    """
    from offline_arl.logs.registry import BUILT_IN, built_in_adapter

    if name in BUILT_IN:
        return built_in_adapter(name)
    known = adapters()
    if name not in known:
        raise UsageError(f"unknown log format {name!r}; known: auto, {', '.join(sorted(known))}")
    return known[name]


def _identity(text: str) -> str:
    data = text.encode() if text.isascii() else text.encode(errors="surrogateescape")
    return hashlib.blake2b(data, digest_size=10).hexdigest()


def _joint_sha256(pieces: Sequence[Piece]) -> str:
    return hashlib.sha256("".join(piece.sha256 for piece in pieces).encode()).hexdigest()
