"""An append-only record of what agents did, each entry sealed with the hash of all before it.

One line of JSON an entry. An entry that is changed, removed, moved or put in between breaks the chain from there on;
`verify` says where. What a chain in a file alone cannot tell is that its end was cut off: keep the last hash elsewhere
and give it to `verify`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, NamedTuple

import msgspec

from offline_arl.errors import DataError, UsageError

_START = "0" * 64


class AuditEntry(msgspec.Struct, frozen=True):
    """One thing that happened. `hash` covers everything else, `previous` (the hash before) included."""

    number: int  # 0-based
    time: str  # ISO 8601, UTC
    episode: str
    kind: str  # "start", "call", "refused", "write_undone", "approval", "end", ...
    details: dict[str, Any]
    previous: str
    hash: str = ""

    def sealed(self) -> AuditEntry:
        """The entry with its hash."""
        content = msgspec.json.encode(msgspec.structs.replace(self, hash=""), order="deterministic")
        return msgspec.structs.replace(self, hash=hashlib.sha256(content).hexdigest())


class AuditTrail:
    """Appends entries to a file; use as a context manager. Safe to share between threads; one process at a time.

    Args:
        path: The file, made if it is missing. An existing trail is continued, after it has been verified; an entry that
            a killed process did not finish is dropped, and an entry says so.

    Raises:
        DataError: The trail there is broken, or cannot be written.
        UsageError: Another process writes to it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = Lock()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab")
        except OSError as error:
            raise DataError(f"{path}: the audit trail cannot be written ({error.strerror})") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise UsageError(f"{path}: another process writes to this audit trail") from error
        try:
            lost = _drop_unfinished(self.path)
            found = verify(self.path)
        except DataError:
            self._file.close()
            raise
        self._number, self._last = found.entries, found.last_hash
        if lost:
            self.append("", "unfinished_entry_dropped", bytes=lost)

    def __enter__(self) -> AuditTrail:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def entries(self) -> int:
        """How many there are."""
        return self._number

    @property
    def last_hash(self) -> str:
        """The hash of the newest entry; kept elsewhere, it shows that nothing was cut off."""
        return self._last

    def append(self, episode: str, kind: str, **details: Any) -> AuditEntry:
        """Add an entry; it is with the operating system when this returns."""
        with self._lock:
            time = datetime.now(UTC).isoformat().replace("+00:00", "Z")
            kept: dict[str, Any] = _writable(details)
            entry = AuditEntry(self._number, time, _writable(episode), kind, kept, self._last).sealed()
            self._file.write(msgspec.json.encode(entry) + b"\n")
            self._file.flush()
            self._number, self._last = self._number + 1, entry.hash
        return entry

    def close(self) -> None:
        """Write everything to the disk and let go of the file."""
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()


class Verified(NamedTuple):
    """A trail whose chain holds."""

    entries: int
    last_hash: str


def verify(path: str | Path, *, last_hash: str | None = None) -> Verified:
    """Check the chain of a trail.

    Args:
        path: The file.
        last_hash: That of the newest entry, where it is known from elsewhere.

    Raises:
        DataError: The file cannot be read, or an entry is not what was written; the message names the line.
    """
    previous, number = _START, 0
    try:
        with Path(path).open("rb") as file:
            for line in file:
                previous = _checked(line, number, previous, f"{path}:{number + 1}")
                number += 1
    except OSError as error:
        raise DataError(f"{path}: the audit trail cannot be read ({error.strerror})") from error
    if last_hash is not None and last_hash != previous:
        raise DataError(f"{path}: the newest entry is not the one expected: entries were cut off, or added")
    return Verified(number, previous)


def _writable(value: Any) -> Any:
    """The value with halves of surrogate pairs spelled out: agents may say them, and no file takes them."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_writable(key): _writable(item) for key, item in value.items()}
    return [_writable(item) for item in value] if isinstance(value, list | tuple) else value


def _drop_unfinished(path: Path) -> int:
    """Cut off an entry that a killed writer did not finish; returns how many bytes it had."""
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)
    return len(data) - whole


def _checked(line: bytes, number: int, previous: str, where: str) -> str:
    """The hash of an entry that fits the chain."""
    try:
        entry = msgspec.json.decode(line, type=AuditEntry)
    except (msgspec.DecodeError, RecursionError) as error:
        told = "the trail was changed" if number else "the trail was changed, or the file is none"
        raise DataError(f"{where}: not an entry of an audit trail ({error}); {told}") from error
    if entry.previous != previous or entry.number != number:
        raise DataError(f"{where}: does not follow the entry before it; entries were removed, added or moved")
    # The bytes are compared too: JSON has several texts for one value.
    if entry.sealed().hash != entry.hash or not line.endswith(b"\n") or msgspec.json.encode(entry) != line[:-1]:
        raise DataError(f"{where}: is not what was written; the entry was changed")
    return entry.hash
