"""What a writer does to a store between two commits, and the commit.

One commit does three things in this order: the part's files are renamed into place, the manifest names them, and
the index learns of them. A process killed anywhere in between leaves files that no manifest lists, which the next
writer removes, or an index that is behind the manifest, which it brings up to date.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import polars as pl

from offline_arl.trajectories import encoding, files
from offline_arl.trajectories.duplicates import DUPLICATE_COLUMNS, DUPLICATES, DuplicateTable
from offline_arl.trajectories.encoded_batch import EncodedBatch
from offline_arl.trajectories.encoding import EncodedTrajectory
from offline_arl.trajectories.files import Counts, FileEntry, Manifest
from offline_arl.trajectories.index import FILE as INDEX_FILE
from offline_arl.trajectories.index import IndexRows, StoreIndex
from offline_arl.trajectories.part_in_flight import PartInFlight, newest_content, newest_first
from offline_arl.trajectories.parts import PartBuffer
from offline_arl.trajectories.quarantine import RefusedRecord
from offline_arl.trajectories.rebuild import open_index
from offline_arl.trajectories.record_states import USED, RecordEntry

logger = logging.getLogger(__name__)


@contextmanager
def open_session(root: Path) -> Iterator[WriteSession]:
    """Lock a store, tidy it, bring its index up to date, and hold it open for writing.

    Raises:
        UsageError: Another writer is at work.
        DataError: A file of the store is missing or damaged, or the store cannot be written.
    """
    with files.writer_lock(root):
        manifest = files.read_manifest(root)
        for entry in manifest.files():  # a store that lost a part must not take its records for known
            files.whole_file(root, entry)
        for name in files.remove_unlisted(root, manifest):
            logger.info("%s: removed %s, which no commit lists", root, name)
        with files.told_writing(root / INDEX_FILE):
            index = open_index(root, manifest)
        session = WriteSession(root, manifest, index)
        try:
            yield session
        finally:
            session.close()


class WriteSession:
    """The open store of the one writer: its manifest, its index, the part in the making, and the one before it.

    Questions are answered as if what is in the making were committed already. Looking at the manifest or the index
    itself waits for the part that is in flight.
    """

    def __init__(self, root: Path, manifest: Manifest, index: StoreIndex) -> None:
        self.root = root
        self._manifest = manifest
        self._index = index
        self.buffer = PartBuffer()
        self._in_flight: PartInFlight | None = None
        self.written = 0  # trajectories that were put, whether committed yet or not
        self.found: Counter[str] = Counter()  # what validation found in them, by code
        self._copies: DuplicateTable | None = None
        self._new_copies: list[tuple[str, str]] = []

    @property
    def manifest(self) -> Manifest:
        """The manifest, with all parts but the one in the making."""
        self._land()
        return self._manifest

    @manifest.setter
    def manifest(self, manifest: Manifest) -> None:
        self._land()
        self._manifest = manifest

    @property
    def index(self) -> StoreIndex:
        """The index of all parts but the one in the making."""
        self._land()
        return self._index

    @property
    def is_empty(self) -> bool:
        """Whether nothing is committed."""
        return self._in_flight is None and self._index.empty

    def record(self, key: bytes) -> RecordEntry | None:
        """What is known of a log record, or None where it was never seen."""
        for rows in self._unindexed():
            if key in rows.records:
                return rows.records[key]
        return self._index.record(key)

    def records(self, keys: Sequence[bytes]) -> dict[bytes, RecordEntry]:
        """What is known of some log records; those that were never seen are missing."""
        self._land()
        pending = self.buffer.index.records
        found = self._index.records([key for key in keys if key not in pending])
        found.update((key, pending[key]) for key in keys if key in pending)
        return found

    def content_of(self, trajectory_id: str) -> bytes | None:
        """The content key of the trajectory with this id, or None."""
        is_told, content = newest_content(trajectory_id, self._unindexed())
        return content if is_told else self._index.content_of(trajectory_id)

    def free_id(self, trajectory_id: str, owner: bytes) -> str:
        """This id, or where it is taken one made from it and its owner (two files of one name hold the same)."""
        while self.content_of(trajectory_id) is not None:
            trajectory_id = encoding.blob_id(f"{trajectory_id}/{owner.hex()}")[:20]
        return trajectory_id

    def holds_any(self, trajectory_ids: Collection[str]) -> bool:
        """Whether one of these trajectory ids is, or was before what is in the making, in use."""
        if any(not rows.trajectories.keys().isdisjoint(trajectory_ids) for rows in self._unindexed()):
            return True
        return self._index.holds_any(trajectory_ids)

    def put_batch(self, batch: EncodedBatch) -> None:
        """Add trajectories whose ids are free (see `holds_any`)."""
        buffer, rows = self.buffer, self.buffer.index
        unindexed = self._unindexed()
        known = self._index.firsts_with(content for content in batch.contents.values() if content not in rows.contents)
        for name, content in batch.contents.items():
            is_told, original = newest_first(content, unindexed)
            self._note_content(name, content, original if is_told else known.get(content))
        rows.trajectories.update(batch.contents)
        rows.records.update((key, USED) for key in batch.record_keys if key is not None)
        self.written += len(batch.contents)
        buffer.rows.extend_frame(batch.rows)
        buffer.steps.extend_frame(batch.steps)
        buffer.blobs.update(batch.blobs)
        buffer.findings.extend(batch.findings)
        self.found.update(code for _, code, *_ in batch.findings)
        buffer.identities.extend(batch.identities)
        buffer.scores.extend(batch.scores)
        buffer.bytes += batch.size

    def put(self, encoded: EncodedTrajectory, *, record_key: bytes | None) -> None:
        """Add a trajectory whose id is free."""
        buffer, name, content = self.buffer, encoded.trajectory_id, encoded.content_key
        self._note_content(name, content, self._first_with(content))
        buffer.index.trajectories[name] = content
        if record_key is not None:
            buffer.index.records[record_key] = USED
        self.written += 1
        buffer.rows.extend([(*encoded.values, record_key, content)])
        buffer.steps.extend(encoded.steps)
        buffer.blobs.update(encoded.blobs)
        if encoded.findings:
            buffer.findings.extend((name, *problem) for problem in encoded.findings)
            self.found.update(problem.code for problem in encoded.findings)
        if encoded.identities:
            buffer.identities.extend((name, *identity) for identity in encoded.identities)
        if encoded.scores:
            buffer.scores.extend((name, *score) for score in encoded.scores)
        buffer.bytes += encoded.size

    def remove(self, trajectory_id: str) -> None:
        """Make the committed row of a trajectory void; its id is free then."""
        self._land()
        rows = self.buffer.index
        part, content = self.index.part_of(trajectory_id), self.index.content_of(trajectory_id)
        if part is None or content is None or trajectory_id in rows.removed:
            return
        was_first = self._first_with(content) == trajectory_id
        self.buffer.removed.append((trajectory_id, None, part))
        rows.removed.add(trajectory_id)
        heir = self._copy_table().remove(trajectory_id)
        if was_first:
            rows.released.add(content)
            rows.contents.pop(content, None)
            if heir is not None:
                rows.contents[content] = heir

    def quarantine(self, record: RefusedRecord) -> None:
        """Keep a refused record."""
        line = msgspec.json.encode(record)
        self.buffer.refused.append(line)
        self.buffer.bytes += len(line)

    def commit(self, *, wait: bool = True) -> None:
        """Publish what was added since the last commit; nothing happens if nothing was.

        Args:
            wait: False: only begin to; it is done with the next commit, or when something has to wait for it.
        """
        self._land()
        buffer, manifest = self.buffer, self._manifest
        if not buffer.is_empty:
            number = manifest.next_number
            copies = self._write_copies(number, manifest.side_tables.get(DUPLICATES, []))
            self._in_flight = PartInFlight(buffer, self.root, number, copies)
            self.buffer, self._new_copies = PartBuffer(), []
        if wait:
            self._land()

    def _land(self) -> None:
        """Commit the part in flight, if there is one, as soon as its files are in place.

        Where that fails the part stays in flight, so that nothing can be committed after it.
        """
        if self._in_flight is None:
            return
        manifest, in_flight = self._manifest, self._in_flight
        with in_flight:
            part = in_flight.part()
        side_tables = {**manifest.side_tables, **({DUPLICATES: in_flight.copies} if in_flight.copies else {})}
        published = msgspec.structs.replace(
            manifest,
            next_number=in_flight.number + 1,
            counts=self._counts(in_flight.buffer),
            parts=[*manifest.parts, part],
            side_tables=side_tables,
        )
        with files.told_writing(self.root / INDEX_FILE):
            self._index.begin()
        try:
            with files.told_writing(self.root / INDEX_FILE):
                self._index.add(in_flight.number, in_flight.buffer.index)
            files.write_manifest(self.root, published)
        except BaseException:
            self._index.rollback()
            raise
        self._manifest, self._in_flight = published, None
        with files.told_writing(self.root / INDEX_FILE):
            self._index.commit()

    def close(self) -> None:
        """Close the index and let go of temporary files; what was not committed is lost."""
        if self._in_flight is not None:
            with self._in_flight:
                pass  # files that no manifest lists are removed by the next writer, so none may come after that
        self._index.close()
        if self._copies is not None:
            self._copies.close()

    def _note_content(self, trajectory_id: str, content: bytes, original: str | None) -> None:
        if original is None:
            self.buffer.index.contents[content] = trajectory_id
            return
        self._new_copies.append((trajectory_id, original))
        if self._copies is not None:
            self._copies.add(trajectory_id, original)

    def _first_with(self, content: bytes) -> str | None:
        is_told, first = newest_first(content, self._unindexed())
        return first if is_told else self._index.first_with(content)

    def _unindexed(self) -> tuple[IndexRows, ...]:
        """What the index does not know yet, the newest first."""
        in_flight = self._in_flight
        return (self.buffer.index,) if in_flight is None else (self.buffer.index, in_flight.buffer.index)

    def _counts(self, buffer: PartBuffer) -> Counts:
        counts = self._manifest.counts
        removed = [(name, part) for name, _, part in buffer.removed if name is not None]
        return Counts(
            trajectories=counts.trajectories + len(buffer.rows) - len(removed),
            steps=counts.steps + len(buffer.steps) - self._steps_of(removed),
            quarantined=counts.quarantined + len(buffer.refused),
        )

    def _steps_of(self, rows: list[tuple[str, int]]) -> int:
        ids: dict[int, list[str]] = {}
        for name, number in rows:
            ids.setdefault(number, []).append(name)
        total = 0
        for part in self._manifest.parts:
            if part.number in ids and part.trajectories is not None:
                path = files.whole_file(self.root, part.trajectories)
                chosen = pl.col("trajectory_id").is_in(ids[part.number])
                with files.told_reading(path):
                    total += pl.scan_parquet(path).filter(chosen).select(pl.col("n_steps").sum()).collect().item()
        return total

    def _copy_table(self) -> DuplicateTable:
        if self._copies is None:
            self._copies = DuplicateTable(self._known_copies())
        return self._copies

    def _known_copies(self) -> Iterator[tuple[str, str]]:
        for entry in self.manifest.side_tables.get(DUPLICATES, []):
            path = files.whole_file(self.root, entry)
            with files.told_reading(path):
                frame = pl.read_parquet(path)
            yield from frame.select(*DUPLICATE_COLUMNS).iter_rows()
        yield from self._new_copies

    def _write_copies(self, number: int, present: list[FileEntry]) -> list[FileEntry]:
        name = f"side_tables/{DUPLICATES}/{number:06}.parquet"
        if self._copies is not None and self._copies.changed:
            self._copies.changed = False
            return [files.write_parquet(self.root, name, self._copies.frame())]
        if not self._new_copies:
            return present
        frame = pl.DataFrame(self._new_copies, schema=DUPLICATE_COLUMNS, orient="row")
        return [*present, files.write_parquet(self.root, name, frame)]
