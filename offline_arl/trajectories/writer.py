"""Writing to a store: parts are prepared in memory, written under temporary names and published by the manifest.

One commit does three things in this order: the part's files are renamed into place, the index learns of them,
and the manifest names them. A process killed anywhere in between leaves files that no manifest lists and index
rows that no part backs; the next writer removes both before it starts.
"""

from __future__ import annotations

import base64
import logging
import sqlite3
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import polars as pl

from offline_arl.errors import DataError, UsageError
from offline_arl.trajectories import encoding, files
from offline_arl.trajectories.encoding import EncodedTrajectory
from offline_arl.trajectories.files import Counts, Manifest, Part
from offline_arl.trajectories.index import FILE as INDEX_FILE
from offline_arl.trajectories.index import IndexRows, StoreIndex
from offline_arl.trajectories.schema import Trajectory
from offline_arl.trajectories.step_table import StepRow

logger = logging.getLogger(__name__)

DUPLICATES = "duplicates"


class RefusedRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a quarantine file: a record that did not become a trajectory, raw, with the reason.

    `raw` is the record's text; bytes that are not UTF-8 are kept in `raw_base64` instead. `key` (hexadecimal)
    identifies the record by position and content.
    """

    file: str
    record: int | None
    line: int | None
    format: str | None
    reason: str
    key: str
    raw: str | None = None
    raw_base64: str | None = None

    @classmethod
    def of(
        cls, raw: bytes, *, file: str, record: int | None, line: int | None, format: str | None, reason: str, key: bytes
    ) -> RefusedRecord:
        """Build one from raw bytes."""
        try:
            text, encoded = raw.decode(), None
        except UnicodeDecodeError:
            text, encoded = None, base64.b64encode(raw).decode()
        return cls(file, record, line, format, reason, key.hex(), text, encoded)


class StoreWriter:
    """The one writer of a store; use it as a context manager (`with store.writer() as writer`).

    Trajectories become visible in commits of one immutable part. A part is committed when it reaches
    `max_part_bytes` of JSON or `max_part_trajectories`, on `commit()`, and at the end of the `with` block; when
    the block ends by an exception, what was added since the last commit is discarded.
    """

    def __init__(self, root: Path, *, max_part_bytes: int, max_part_trajectories: int) -> None:
        self._root = root
        self._max_part_bytes = max_part_bytes
        self._max_part_trajectories = max_part_trajectories
        self._stack = ExitStack()
        self._manifest: Manifest | None = None
        self._index: StoreIndex | None = None
        self._clear()

    def __enter__(self) -> StoreWriter:
        with ExitStack() as stack:
            stack.enter_context(files.writer_lock(self._root))
            manifest = files.read_manifest(self._root)
            for entry in manifest.files():  # a store that lost a part must not take its records for known
                files.whole_file(self._root, entry)
            for name in files.remove_unlisted(self._root, manifest):
                logger.info("%s: removed %s, which no commit lists", self._root, name)
            with files.told_writing(self._root / INDEX_FILE):
                self._index = _open_index(self._root, manifest)
            stack.callback(self._index.close)
            self._manifest = manifest
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.commit()
        finally:
            self._clear()
            self._manifest = None
            self._stack.close()

    def add(self, trajectory: Trajectory) -> bool:
        """Add a trajectory. Returns False, and adds nothing, if it is already in the store.

        Raises:
            DataError: The trajectory is invalid, or its id is taken by one with other content.
        """
        encoded = encoding.encode_trajectory(trajectory)
        known = self._content_of(encoded.trajectory_id)
        if known is None:
            self.add_encoded(encoded)
            self.commit_if_full()
            return True
        if known != encoded.content_key:
            raise DataError(
                f"{self._root}: trajectory_id {encoded.trajectory_id!r} is taken by a trajectory with other content"
            )
        return False

    def add_encoded(self, encoded: EncodedTrajectory, *, record_key: bytes | None = None) -> str:
        """Add an encoded trajectory that is not in the store yet; returns the id it got.

        Args:
            encoded: From `encoding.encode_trajectory`.
            record_key: Identity of the log record it came from (position and content), for `record_refused`.

        Where the id is taken (two files of the same name hold the same record at the same position), the
        trajectory is stored under an id made from both.
        """
        while self._content_of(encoded.trajectory_id) is not None:
            encoded = encoded.renamed(encoding.blob_id(f"{encoded.trajectory_id}/{(record_key or b'').hex()}")[:20])
        name, content = encoded.trajectory_id, encoded.content_key
        original = self._pending_index.contents.get(content) or self._opened_index().first_with(content)
        if original is None:
            self._pending_index.contents[content] = name
        else:
            self._duplicates.append((name, original))
        self._pending_index.trajectories[name] = content
        if record_key is not None:
            self._pending_index.records[record_key] = False
        self._rows.append((*encoded.values, record_key, content))
        self._steps.extend(encoded.steps)
        self._blobs.update(encoded.blobs)
        self._bytes += encoded.size
        if self._bytes >= self._max_part_bytes or len(self._rows) >= self._max_part_trajectories:
            self._part_is_full = True
        return name

    def refuse(self, record: RefusedRecord) -> None:
        """Put a record into quarantine, once: the same record at the same position is kept once."""
        key = bytes.fromhex(record.key)
        if self.record_refused(key):
            return
        line = msgspec.json.encode(record)
        self._pending_index.records[key] = True
        self._refused.append(line)
        self._bytes += len(line)
        self._part_is_full = self._part_is_full or self._bytes >= self._max_part_bytes

    def record_refused(self, key: bytes) -> bool | None:
        """None: this log record was never seen. Otherwise whether it was refused (False: it is in the store)."""
        pending = self._pending_index.records.get(key)
        return self._opened_index().record_refused(key) if pending is None else pending

    @property
    def knows_records(self) -> bool:
        """Whether the store held anything when the writer was opened; where not, nothing need be looked up."""
        return not self._opened_index().empty

    def commit_if_full(self) -> None:
        """Commit when the part in memory has reached its size; call it between log records."""
        if self._part_is_full:
            self.commit()

    def commit(self) -> None:
        """Publish what was added since the last commit; nothing happens if nothing was."""
        if not self._rows and not self._refused:
            return
        manifest, index = self._opened_manifest(), self._opened_index()
        number = manifest.next_number
        part = self._write_part(number)
        side_tables = dict(manifest.side_tables)
        if self._duplicates:
            frame = pl.DataFrame(
                self._duplicates, schema={"trajectory_id": pl.String(), "duplicate_of": pl.String()}, orient="row"
            )
            entry = write_parquet(self._root, f"side_tables/{DUPLICATES}/{number:06}.parquet", frame)
            side_tables[DUPLICATES] = [*side_tables.get(DUPLICATES, []), entry]
        with files.told_writing(self._root / INDEX_FILE):
            index.add([(number, self._pending_index)])
        counts = Counts(
            trajectories=manifest.counts.trajectories + len(self._rows),
            steps=manifest.counts.steps + len(self._steps),
            quarantined=manifest.counts.quarantined + len(self._refused),
        )
        self._manifest = msgspec.structs.replace(
            manifest,
            next_number=number + 1,
            counts=counts,
            parts=[*manifest.parts, part],
            side_tables=side_tables,
        )
        files.write_manifest(self._root, self._manifest)
        self._clear()

    def _write_part(self, number: int) -> Part:
        name = f"{number:06}"
        trajectories = steps = blobs = quarantine = None
        if self._rows:
            frame = encoding.table(self._rows, encoding.TRAJECTORY_COLUMNS)
            trajectories = write_parquet(self._root, f"trajectories/{name}.parquet", frame)
            frame = encoding.table(self._steps, encoding.STEP_COLUMNS)
            steps = write_parquet(self._root, f"steps/{name}.parquet", frame)
            rows = [(key, kind, text) for key, (kind, text) in sorted(self._blobs.items())]
            blobs = write_parquet(self._root, f"blobs/{name}.parquet", encoding.table(rows, encoding.BLOB_COLUMNS))
        if self._refused:
            path = self._root / "quarantine" / f"{name}.jsonl"
            text = b"".join(line + b"\n" for line in self._refused)
            files.write_atomically(path, lambda temporary: temporary.write_bytes(text))
            quarantine = files.describe_file(self._root, path, len(self._refused))
        return Part(number, trajectories, steps, blobs, quarantine)

    def _content_of(self, trajectory_id: str) -> bytes | None:
        pending = self._pending_index.trajectories.get(trajectory_id)
        return self._opened_index().content_of(trajectory_id) if pending is None else pending

    def _clear(self) -> None:
        self._rows: list[tuple[Any, ...]] = []
        self._steps: list[StepRow] = []
        self._blobs: dict[str, tuple[str, str]] = {}
        self._refused: list[bytes] = []
        self._duplicates: list[tuple[str, str]] = []
        self._pending_index = IndexRows({}, {}, {})
        self._bytes = 0
        self._part_is_full = False

    def _opened_manifest(self) -> Manifest:
        if self._manifest is None:
            raise UsageError(f"{self._root}: the writer is not open; use it as `with store.writer() as writer`")
        return self._manifest

    def _opened_index(self) -> StoreIndex:
        if self._index is None or self._manifest is None:
            raise UsageError(f"{self._root}: the writer is not open; use it as `with store.writer() as writer`")
        return self._index


def write_parquet(root: Path, name: str, frame: pl.DataFrame) -> files.FileEntry:
    """Write one Parquet file of a store atomically and describe it."""
    path = root / name
    files.write_atomically(
        path, lambda temporary: frame.write_parquet(temporary, compression="zstd", compression_level=1)
    )
    return files.describe_file(root, path, frame.height)


def _open_index(root: Path, manifest: Manifest) -> StoreIndex:
    """Open the index and bring it level with the manifest; a missing or damaged one is rebuilt from the parts."""
    try:
        index = StoreIndex(root)
    except sqlite3.OperationalError:
        raise  # no room or no permission; the index itself may be sound
    except sqlite3.DatabaseError:
        logger.warning("%s: the index is damaged; it is rebuilt from the parts", root)
        (root / INDEX_FILE).unlink()
        index = StoreIndex(root)
    last_published = manifest.parts[-1].number if manifest.parts else 0
    if index.last_part > last_published:
        index.forget_after(last_published)
    elif index.last_part < last_published:
        behind = [part for part in manifest.parts if part.number > index.last_part]
        index.add((part.number, _index_rows(root, part)) for part in behind)
    return index


def _index_rows(root: Path, part: Part) -> IndexRows:
    rows = IndexRows({}, {}, {})
    if part.quarantine is not None:
        with (root / part.quarantine.path).open("rb") as stream:
            for line in stream:
                rows.records[bytes.fromhex(msgspec.json.decode(line, type=RefusedRecord).key)] = True
    if part.trajectories is not None:
        frame = pl.read_parquet(root / part.trajectories.path, columns=["trajectory_id", "record_key", "content_key"])
        for name, key, content in frame.select("trajectory_id", "record_key", "content_key").iter_rows():
            rows.trajectories[name] = content
            rows.contents.setdefault(content, name)
            if key is not None:
                rows.records[key] = False
    return rows
