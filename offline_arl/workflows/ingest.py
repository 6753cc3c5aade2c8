"""Ingestion: log files to a trajectory store. Nothing here imports torch."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from offline_arl.errors import DataError, UsageError
from offline_arl.logs.adapter import LogAdapter, RawRecord, adapter_named
from offline_arl.logs.convert import Converted, convert_chunk, record_key
from offline_arl.logs.detect import PROBE_RECORDS, detect_records
from offline_arl.logs.records import LogFile, read_records
from offline_arl.trajectories.store import Store, is_store
from offline_arl.trajectories.writer import RefusedRecord, StoreWriter

logger = logging.getLogger(__name__)

LOG_SUFFIXES = (".json", ".jsonl", ".ndjson")
UNKNOWN_FORMAT = "unknown"
# Records that travel together to a converting process; also what a writer may hold beyond one part.
_CHUNK_BYTES = 4 * 2**20
_CHUNK_RECORDS = 2_000
_REASONS_KEPT = 20

Progress = Callable[[float, float], None]


@dataclass(frozen=True)
class IngestReport:
    """What an ingestion did, in records of the sources.

    `records = records_used + quarantined + duplicates + set_apart`:

    - `records_used` became trajectories that were not in the store before;
    - `quarantined` were refused; they are in the store's quarantine, raw, with the reason. An empty file counts
      as one refused record. A record that an earlier ingestion refused is tried again, counts again if it is
      refused again, and is kept once;
    - `duplicates` were in the store already, from the same file, position and content; nothing was written. A
      copy of a record from elsewhere is no duplicate in this sense: it is stored and marked `duplicate_of`;
    - `set_apart` are no interactions: records that a format keeps beside them, and files in a folder that are
      not JSON.

    `trajectories` counts the new trajectories; `by_format` the records of each format, those of no known format
    under "unknown". `megabytes` (10^6 bytes) is what the files occupy on disk. `reasons` has the first refusals
    as one line each, `file:line: reason`.
    """

    records: int
    trajectories: int
    quarantined: int
    duplicates: int
    set_apart: int
    by_format: dict[str, int]
    seconds: float
    megabytes: float
    records_used: int
    reasons: tuple[str, ...] = ()

    @property
    def all_refused(self) -> bool:
        """Whether there were records and every one was refused."""
        return self.records > 0 and self.quarantined == self.records

    def to_json(self) -> dict[str, Any]:
        """The object that `offline-arl ingest --json` prints (without `reasons`)."""
        values = asdict(self)
        del values["reasons"]
        return values


class _Tally:
    """Running counts of an ingestion."""

    def __init__(self) -> None:
        self.used = self.trajectories = self.quarantined = self.duplicates = self.set_apart = 0
        self.by_format: dict[str, int] = {}
        self.reasons: list[str] = []

    def report(self, seconds: float, megabytes: float) -> IngestReport:
        return IngestReport(
            records=self.used + self.quarantined + self.duplicates + self.set_apart,
            trajectories=self.trajectories,
            quarantined=self.quarantined,
            duplicates=self.duplicates,
            set_apart=self.set_apart,
            by_format=dict(sorted(self.by_format.items())),
            seconds=seconds,
            megabytes=megabytes,
            records_used=self.used,
            reasons=tuple(self.reasons),
        )


@dataclass(frozen=True)
class _Chunk:
    """Records of one file on their way through conversion."""

    file: LogFile
    format: str
    records: list[RawRecord]
    real_path: str


def ingest(
    sources: str | Path | Sequence[str | Path],
    store: str | Path | Store,
    *,
    format: str = "auto",
    workers: int = 1,
    progress: Progress | None = None,
) -> IngestReport:
    """Read log files into a trajectory store, which is made if it is missing.

    Safe to run again after any interruption: records that are in the store are recognized and skipped. The store
    is committed part by part; a killed run leaves a readable store, and the next one completes it.

    Args:
        sources: Files, or folders to walk for `.json`, `.jsonl` and `.ndjson` files, plain or gzipped; hidden
            files and trajectory stores in them are passed over.
        store: Folder of the store, or an open one.
        format: Name of a log format, or "auto" to find out for each file.
        workers: Processes that convert records; 1 converts in this process. The result is the same.
        progress: Called now and then with megabytes read and megabytes in all.

    Raises:
        DataError: A source does not exist or cannot be read, or a folder holds no files.
        UsageError: The format is unknown, `workers` is not positive, or another writer is at work.
    """
    started = time.perf_counter()
    if workers < 1:
        raise UsageError(f"workers: must be at least 1, not {workers}")
    adapter = None if format == "auto" else adapter_named(format)
    listed = [sources] if isinstance(sources, (str, Path)) else list(sources)
    found = _expand(listed)
    for file in found.logs:
        if not os.access(file.path, os.R_OK):
            raise DataError(f"{file.shown}: cannot be read (Permission denied); check its permissions")
    if not isinstance(store, Store):
        store = Store.create(store, exist_ok=True)
    tally = _Tally()
    total = sum(file.path.stat().st_size for file in found.logs)
    with ExitStack() as stack:
        stack.enter_context(_no_cycle_collection())
        writer = stack.enter_context(store.writer())
        pool = None
        if workers > 1:
            # Not fork: polars runs threads, and a forked child could wait for their locks forever.
            context = multiprocessing.get_context("spawn")
            pool = stack.enter_context(ProcessPoolExecutor(workers, mp_context=context, initializer=gc.disable))
        chunks = _chunks(found.logs, adapter, writer, tally)
        done = 0
        for chunk, converted in _convert(chunks, pool, in_flight=2 * workers):
            _write(chunk, converted, writer, tally)
            done += sum(len(record.raw) for record in chunk.records)
            if progress is not None:
                progress(min(done, total) / 1e6, total / 1e6)
        for name in found.others:
            logger.info("%s: set apart, not a log file", name)
        tally.set_apart += len(found.others)
        if found.others:
            tally.by_format[UNKNOWN_FORMAT] = tally.by_format.get(UNKNOWN_FORMAT, 0) + len(found.others)
    if progress is not None:
        progress(total / 1e6, total / 1e6)
    return tally.report(time.perf_counter() - started, total / 1e6)


@contextmanager
def _no_cycle_collection() -> Iterator[None]:
    """Records hold no reference cycles; looking for some among millions of them costs a fifth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclass(frozen=True)
class _Found:
    logs: list[LogFile]
    others: list[str]


def _expand(sources: Sequence[str | Path]) -> _Found:
    """The files of the sources, each once, folders walked in a fixed order; hidden files are left out."""
    if not sources:
        raise UsageError("no sources; name log files or folders")
    logs: dict[str, LogFile] = {}
    others: dict[str, str] = {}
    for source in map(Path, sources):
        try:
            mode = source.stat().st_mode
        except FileNotFoundError:
            raise DataError(f"{_shown(source)}: no such file or folder; check the path") from None
        except OSError as error:
            raise DataError(f"{_shown(source)}: cannot be read ({error.strerror}); check the path") from error
        if stat.S_ISDIR(mode):
            before = len(logs) + len(others)
            for path in _walk(source):
                relative = path.relative_to(source).as_posix()
                if relative.removesuffix(".gz").endswith(LOG_SUFFIXES):
                    logs.setdefault(os.path.realpath(path), LogFile(path, _shown(path), relative))
                else:
                    others.setdefault(os.path.realpath(path), _shown(path))
            if len(logs) + len(others) == before:
                raise DataError(f"{_shown(source)}: the folder holds no files; name a folder with log files")
        elif stat.S_ISREG(mode):
            logs.setdefault(os.path.realpath(source), LogFile(source, _shown(source), source.name))
        else:
            # What a pipe gives cannot be read a second time, which running again after an interruption needs.
            raise DataError(f"{_shown(source)}: is a pipe or a device; write it to a file and name that")
    return _Found(list(logs.values()), list(others.values()))


def _shown(path: Path) -> str:
    r"""The path as text for messages and provenance; bytes that are not UTF-8 become `\xff`."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _walk(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:  # os.walk would pass over the folder without a word
        raise DataError(f"{error.filename}: cannot be read ({error.strerror}); check its permissions") from error

    for parent, folders, names in os.walk(folder, onerror=refuse):
        if is_store(parent):
            # A store among the logs is not a log: its quarantine would be refused anew at every run.
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(parent, name)
            if not name.startswith(".") and path.is_file():
                yield path


def _chunks(
    found: Sequence[LogFile], chosen: LogAdapter | None, writer: StoreWriter, tally: _Tally
) -> Iterator[_Chunk]:
    """Cut the files into chunks of records that are not in the store yet; counts those that are."""
    for file in found:
        records = read_records(file)
        real_path = os.path.realpath(file.path)
        if chosen is not None:
            yield from _batches(file, chosen.name, real_path, records, writer, tally)
            continue
        while head := list(islice(records, PROBE_RECORDS)):
            adapter, _ = detect_records(head)
            if adapter is not None:
                yield from _batches(file, adapter.name, real_path, chain(head, records), writer, tally)
                break
            yield _Chunk(file, UNKNOWN_FORMAT, [_unrecognized(record) for record in head], real_path)


def _unrecognized(record: RawRecord) -> RawRecord:
    _, reason = detect_records([record])
    return replace(record, problem=reason.removeprefix(f"{record.where}: "))


def _batches(
    file: LogFile, name: str, real_path: str, records: Iterable[RawRecord], writer: StoreWriter, tally: _Tally
) -> Iterator[_Chunk]:
    batch: list[RawRecord] = []
    size = 0
    known = writer.knows_records
    for record in records:
        # None of the two: never seen, or refused before and worth another try.
        if known and writer.record_refused(record_key(record, real_path)) is False:
            tally.duplicates += 1
            tally.by_format[name] = tally.by_format.get(name, 0) + 1
            continue
        batch.append(record)
        size += len(record.raw)
        if size >= _CHUNK_BYTES or len(batch) >= _CHUNK_RECORDS:
            yield _Chunk(file, name, batch, real_path)
            batch, size = [], 0
    if batch:
        yield _Chunk(file, name, batch, real_path)


def _convert(
    chunks: Iterator[_Chunk], pool: ProcessPoolExecutor | None, *, in_flight: int
) -> Iterator[tuple[_Chunk, list[Converted]]]:
    """Convert chunks in order, in this process or in the pool with a bounded number of chunks under way."""
    if pool is None:
        for chunk in chunks:
            yield chunk, _convert_here(chunk)
        return
    waiting: deque[tuple[_Chunk, Future[list[Converted]]]] = deque()
    for chunk in chunks:
        waiting.append((chunk, pool.submit(_convert_here, chunk)))
        if len(waiting) >= in_flight:
            first, future = waiting.popleft()
            yield first, future.result()
    for chunk, future in waiting:
        yield chunk, future.result()


def _convert_here(chunk: _Chunk) -> list[Converted]:
    if chunk.format == UNKNOWN_FORMAT:
        return [Converted(record_key(record, chunk.real_path), [], refused=record.problem) for record in chunk.records]
    return convert_chunk(chunk.format, chunk.real_path, chunk.records)


def _write(chunk: _Chunk, converted: Sequence[Converted], writer: StoreWriter, tally: _Tally) -> None:
    tally.by_format[chunk.format] = tally.by_format.get(chunk.format, 0) + len(converted)
    for record, result in zip(chunk.records, converted, strict=True):
        if result.refused is not None:
            tally.quarantined += 1
            reason = f"{record.where}: {result.refused}"
            if len(tally.reasons) < _REASONS_KEPT:
                tally.reasons.append(reason)
            logger.debug("%s", reason)
            writer.refuse(_refusal(record, result, chunk.format))
        elif result.set_apart is not None or not result.trajectories:
            tally.set_apart += 1
            logger.debug("%s: set apart: %s", record.where, result.set_apart)
        else:
            tally.used += 1
            tally.trajectories += len(result.trajectories)
            for trajectory in result.trajectories:
                writer.add_encoded(trajectory, record_key=result.key)
        writer.commit_if_full()


def _refusal(record: RawRecord, result: Converted, format: str) -> RefusedRecord:
    return RefusedRecord.of(
        record.raw,
        file=record.file,
        record=record.position,
        line=record.line,
        format=None if format == UNKNOWN_FORMAT else format,
        reason=result.refused or "",
        key=result.key,
    )
