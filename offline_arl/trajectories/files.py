"""The files of a store: the manifest, atomic writes and the writer's lock."""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from offline_arl.errors import DataError, UsageError
from offline_arl.trajectories.schema import SCHEMA_VERSION

MANIFEST = "manifest.json"
LOCK = "lock"
STORE_FORMAT = "offline_arl.trajectory_store"


class FileEntry(msgspec.Struct, frozen=True):
    """One immutable file of a store; `path` is relative to the store."""

    path: str
    rows: int
    bytes: int
    sha256: str


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one commit added. `quarantine` is None where nothing was refused, and so on."""

    number: int
    trajectories: FileEntry | None = None
    steps: FileEntry | None = None
    blobs: FileEntry | None = None
    quarantine: FileEntry | None = None

    def files(self) -> list[FileEntry]:
        """The files that exist."""
        entries = (self.trajectories, self.steps, self.blobs, self.quarantine)
        return [entry for entry in entries if entry is not None]


class Counts(msgspec.Struct, frozen=True):
    """Rows of the whole store."""

    trajectories: int = 0
    steps: int = 0
    quarantined: int = 0


class Manifest(msgspec.Struct, frozen=True):
    """What belongs to a store. A file that is not listed here is not part of it."""

    store_format: str = STORE_FORMAT
    schema_version: str = SCHEMA_VERSION
    next_number: int = 1  # number of the next commit; never used twice
    counts: Counts = Counts()
    configuration: dict[str, Any] = {}
    parts: list[Part] = []
    side_tables: dict[str, list[FileEntry]] = {}

    def files(self) -> list[FileEntry]:
        """Every file of the store but the manifest, the index and the lock."""
        side = [entry for entries in self.side_tables.values() for entry in entries]
        return [entry for part in self.parts for entry in part.files()] + side


def read_manifest(root: Path) -> Manifest:
    """Read the manifest of the store in `root`.

    Raises:
        DataError: There is no store, its manifest is damaged, or a newer version wrote it.
    """
    path = root / MANIFEST
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(
            f"{root}: no trajectory store here (no {MANIFEST}); make one with: offline-arl ingest"
        ) from None
    except msgspec.DecodeError as error:
        raise DataError(f"{path}: the manifest is damaged ({error}); restore it from a copy or ingest again") from error
    if manifest.store_format != STORE_FORMAT:
        raise DataError(f"{path}: store_format is {manifest.store_format!r}, not {STORE_FORMAT!r}")
    if manifest.schema_version.split(".")[0] != SCHEMA_VERSION.split(".")[0]:
        raise DataError(
            f"{path}: schema version {manifest.schema_version} cannot be read by this version of offline_arl "
            f"(it reads {SCHEMA_VERSION}); upgrade offline_arl"
        )
    return manifest


def write_manifest(root: Path, manifest: Manifest) -> None:
    """Replace the manifest; this is the moment at which a commit becomes visible."""
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    write_atomically(root / MANIFEST, lambda temporary: temporary.write_bytes(text))


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write` with a temporary path beside `path`, flush to disk, and rename: all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    try:
        write(temporary)
        descriptor = os.open(temporary, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def describe_file(root: Path, path: Path, rows: int) -> FileEntry:
    """The manifest entry of a file that was just written."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return FileEntry(path.relative_to(root).as_posix(), rows, path.stat().st_size, digest)


def remove_unlisted(root: Path, manifest: Manifest) -> list[str]:
    """Remove files that a killed writer or a replaced side table left behind; only the lock's holder may do so."""
    listed = {entry.path for entry in manifest.files()}
    removed = []
    for folder in ("trajectories", "steps", "blobs", "quarantine", "side_tables"):
        for path in sorted((root / folder).rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.is_file() and name not in listed:
                path.unlink()
                removed.append(name)
    for path in root.glob(".tmp-*"):
        path.unlink(missing_ok=True)
        removed.append(path.name)
    return removed


@contextmanager
def writer_lock(root: Path) -> Iterator[None]:
    """Hold the one writer's lock of a store.

    The kernel releases the lock when its holder ends, however it ends, so a lock file left by a dead process is
    taken over without a race. The file's text only says who holds it.

    Raises:
        UsageError: Another writer is at work.
    """
    path = root / LOCK
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 200).decode(errors="replace").strip() or "another process"
            raise UsageError(f"{root}: the store is being written by {holder}; wait for it or stop it") from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        try:
            yield
        finally:
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)
