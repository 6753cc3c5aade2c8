"""The files of a store: the manifest, atomic writes and the writer's lock."""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from offline_arl.errors import DataError, UsageError, reason_of
from offline_arl.trajectories.schema import SCHEMA_VERSION
from offline_arl.trajectories.upgrade import is_readable

MANIFEST = "manifest.json"
LOCK = "lock"
STORE_FORMAT = "offline_arl.trajectory_store"
_RESTORE = "restore it from a copy, or remove the store and ingest again"


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
    findings: FileEntry | None = None  # what validation found, see `validate.CODES`
    identities: FileEntry | None = None  # ids by which feedback finds trajectories and messages
    scores: FileEntry | None = None  # the scores of the trajectories, a row each
    quarantine: FileEntry | None = None
    pieces: FileEntry | None = None  # see `pieces`
    assemblies: FileEntry | None = None  # what groups of pieces became
    fates: FileEntry | None = None  # what each piece's record became
    set_apart: FileEntry | None = None  # records that are no interactions, with the reason
    feedback: FileEntry | None = None  # judgements that came apart from what they judge
    removed: FileEntry | None = None  # rows of earlier parts that are void
    deleted: FileEntry | None = None  # keys of records that were deleted and must not come back

    def files(self) -> list[FileEntry]:
        """The files that exist."""
        entries = (getattr(self, name) for name in PART_FOLDERS)
        return [entry for entry in entries if entry is not None]


# Each kind of file of a part lies in a folder of its name.
PART_FOLDERS = tuple(name for name in Part.__struct_fields__ if name != "number")


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
    generation: int = 0  # raised where parts are replaced by others (the index is then made anew)
    counts: Counts = Counts()
    configuration: dict[str, Any] = {}
    parts: list[Part] = []
    side_tables: dict[str, list[FileEntry]] = {}

    def files(self) -> list[FileEntry]:
        """Every file of the store but the manifest, the index and the lock."""
        side = [entry for entries in self.side_tables.values() for entry in entries]
        return [entry for part in self.parts for entry in part.files()] + side


class _Header(msgspec.Struct, frozen=True):
    """What the manifest of any version says. It must say what it is: `{}` is not the manifest of an empty store."""

    store_format: str
    schema_version: str = "unknown"


def read_manifest(root: Path) -> Manifest:
    """Read the manifest of the store in `root`.

    Raises:
        DataError: There is no store, its manifest is unreadable or damaged, or a newer version wrote it.
    """
    path = root / MANIFEST
    try:
        text = path.read_bytes()
        header = msgspec.json.decode(text, type=_Header)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(
            f"{root}: no trajectory store here (no {MANIFEST}); make one with: offline-arl ingest"
        ) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from error
    except msgspec.DecodeError as error:
        raise DataError(f"{path}: the manifest is damaged ({reason_of(error)}); {_RESTORE}") from error
    if header.store_format != STORE_FORMAT:
        raise DataError(
            f"{path}: store_format is {header.store_format!r}, not {STORE_FORMAT!r}; name the folder of a store"
        )
    if not is_readable(header.schema_version):
        raise DataError(
            f"{path}: schema version {header.schema_version!r} cannot be read by this version of offline_arl "
            f"(it reads {SCHEMA_VERSION}); upgrade offline_arl"
        )
    try:
        return msgspec.json.decode(text, type=Manifest)
    except msgspec.DecodeError as error:
        raise DataError(f"{path}: the manifest is damaged ({error}); {_RESTORE}") from error


def whole_file(root: Path, entry: FileEntry) -> Path:
    """The path of a listed file, after a look at its size, which costs no reading.

    Raises:
        DataError: The file is missing or has another size than the manifest says.
    """
    path = root / entry.path
    try:
        size = path.stat().st_size
    except OSError as error:
        raise DataError(f"{path}: is part of the store and cannot be read ({error.strerror}); {_RESTORE}") from error
    if size != entry.bytes:
        raise DataError(f"{path}: is damaged ({size} bytes, {entry.bytes} when it was written); {_RESTORE}")
    return path


@contextmanager
def told_reading(path: Path) -> Iterator[None]:
    """Turn what Polars says about a damaged Parquet file into one line that names it.

    Raises:
        DataError: The file cannot be read.
    """
    try:
        yield
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(f"{path}: is damaged ({_first_line(error)}); {_RESTORE}") from error


@contextmanager
def told_writing(path: Path) -> Iterator[None]:
    """Turn a write that the system refuses (full disk, no permission) into one line that names the file.

    Raises:
        DataError: The file cannot be written.
    """
    try:
        yield
    except (OSError, pl.exceptions.ComputeError, sqlite3.OperationalError) as error:
        raise DataError(
            f"{path}: cannot be written ({_first_line(error)}); check the free space and the permissions, "
            "then run it again"
        ) from error


def _first_line(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text.strip().partition("\n")[0] or type(error).__name__


def write_manifest(root: Path, manifest: Manifest) -> None:
    """Replace the manifest; this is the moment at which a commit becomes visible.

    A store of an earlier schema version is one of this version from here on.
    """
    manifest = msgspec.structs.replace(manifest, schema_version=SCHEMA_VERSION)
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    write_atomically(root / MANIFEST, lambda temporary: temporary.write_bytes(text))


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write` with a temporary path beside `path`, flush to disk, and rename: all of it or nothing.

    Raises:
        DataError: It cannot be written.
    """
    temporary = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    with told_writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
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


def write_parquet(root: Path, name: str, frame: pl.DataFrame, *, row_group_size: int | None = None) -> FileEntry:
    """Write one Parquet file of a store atomically and describe it."""
    path = root / name

    def write(temporary: Path) -> None:
        frame.write_parquet(temporary, compression="zstd", compression_level=1, row_group_size=row_group_size)

    write_atomically(path, write)
    return describe_file(root, path, frame.height)


def remove_unlisted(root: Path, manifest: Manifest) -> list[str]:
    """Remove files that a killed writer or a replaced side table left behind; only the lock's holder may do so."""
    listed = {entry.path for entry in manifest.files()}
    removed = []
    for folder in (*PART_FOLDERS, "side_tables"):
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
        DataError: The store cannot be written.
    """
    path = root / LOCK
    with told_writing(path):
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
