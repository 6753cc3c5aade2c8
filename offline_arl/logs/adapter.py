"""The seam between log formats and everything else, and how adapters are found."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Any, Protocol

from offline_arl.errors import UsageError
from offline_arl.trajectories.schema import Source, Trajectory

ENTRY_POINT_GROUP = "offline_arl.log_adapters"


class RecordRefusedError(Exception):
    """A record that should be a trajectory and cannot become one; it goes to quarantine with this reason."""


class RecordSetApartError(Exception):
    """A record of the format that is not an interaction (a header, an index); it is counted and passed over."""


@dataclass(frozen=True)
class RawRecord:
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
        identity = f"{self.label}\0{self.position}\0{number}\0{self.sha256}"
        return hashlib.blake2b(identity.encode(errors="surrogateescape"), digest_size=10).hexdigest()


class LogAdapter(Protocol):
    """Converts the records of one log format.

    Third parties register instances under the entry point group `offline_arl.log_adapters`. Adapters hold no
    state between records: files are cut into chunks that several processes convert.
    """

    name: str

    def recognizes(self, record: Any) -> bool:
        """Whether a parsed record (any JSON value, the first readable one of a file) is of this format."""
        ...

    def convert(self, record: RawRecord) -> list[Trajectory]:
        """The trajectories of one record.

        Raises:
            RecordRefusedError: It cannot be read; say what and where in the record.
            RecordSetApartError: It is a proper record of the format, and not an interaction.
        """
        ...


@lru_cache(maxsize=1)
def adapters() -> Mapping[str, LogAdapter]:
    """All adapters by name, in the order in which `detect` asks them: the built-in ones, then entry points."""
    from offline_arl.logs.openai_chat import OpenAIChatAdapter
    from offline_arl.logs.tau_bench import TauBenchAdapter

    # tau-bench first: its records have a shape that nothing else has, OpenAI chat is the most general.
    found: dict[str, LogAdapter] = {adapter.name: adapter for adapter in (TauBenchAdapter(), OpenAIChatAdapter())}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        adapter = point.load()
        adapter = adapter() if isinstance(adapter, type) else adapter
        found.setdefault(adapter.name, adapter)
    return found


def adapter_named(name: str) -> LogAdapter:
    """The adapter of a format.

    Raises:
        UsageError: There is none of this name.
    """
    known = adapters()
    if name not in known:
        raise UsageError(f"unknown log format {name!r}; known: auto, {', '.join(sorted(known))}")
    return known[name]
