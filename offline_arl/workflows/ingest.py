"""Ingestion: log files to a trajectory store. Nothing here imports torch.

Two passes. The first reads the files once and in order; records that are whole interactions are converted and
written, records of sessions and call logs are written as pieces. The second assembles every group (a session, a
trace) that got new pieces. Both commit part by part, so an interrupted ingestion is completed by the next one.
"""

from __future__ import annotations

import gc
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from offline_arl.logs.adapter import LogAdapter, RawRecord, adapter_named
from offline_arl.logs.convert import (
    ConvertedRecords,
    EncodedGroup,
    Other,
    PieceFate,
    group_place,
    record_key,
)
from offline_arl.logs.detect import PROBE_RECORDS, detect_records
from offline_arl.logs.records import LogFile, read_records
from offline_arl.logs.sources import find_files
from offline_arl.trajectories.pieces import PendingGroup
from offline_arl.trajectories.splits import extend_splits
from offline_arl.trajectories.store import Store
from offline_arl.trajectories.writer import RefusedRecord, StoreWriter
from offline_arl.workflows.conversion import Chunk, convert_chunk, convert_group
from offline_arl.workflows.executors import Engine, Executor, executor
from offline_arl.workflows.ingest_report import UNKNOWN_FORMAT, IngestReport, Tally, is_better

if TYPE_CHECKING:  # redaction is loaded by those who ask for it
    from offline_arl.logs.redaction.config import RedactionConfig
    from offline_arl.logs.redaction.plan import RedactionPlan

logger = logging.getLogger(__name__)

# Records that are converted together, to tables; also what a writer may hold beyond one part.
_CHUNK_BYTES = 4 * 2**20
_CHUNK_RECORDS = 2_000
_NOT_A_LOG = "the file is not a log"
_LINK = "a link to a folder, which is not followed; name the folder as a source"

Progress = Callable[[float, float], None]


def ingest(
    sources: str | Path | Sequence[str | Path],
    store: str | Path | Store,
    *,
    format: str = "auto",
    engine: Engine = "local",
    workers: int = 1,
    redact: bool | RedactionConfig = False,
    progress: Progress | None = None,
) -> IngestReport:
    """Read log files into a trajectory store, which is made if it is missing.

    Safe to run again after any interruption: records that are in the store are recognized and skipped. The store
    is committed part by part; a killed run leaves a readable store, and the next one completes it. A session that
    grew since an earlier ingestion replaces its earlier state under the same trajectory id. Where the store is split,
    what is new joins the splits (see `splits.extend_splits`).

    Args:
        sources: Files, or folders to walk for logs (see `logs.sources.find_files`).
        store: Folder of the store, or an open one.
        format: Name of a log format, or "auto" to find out for each file.
        engine: "local", or "ray" to convert on a Ray cluster; the result is the same.
        workers: Processes that convert records, this one among them. The result is the same.
        redact: Replace secrets and personal data by placeholders before anything of a record is written (see
            docs/redaction.md); True for the defaults. A store holds redacted records only, or none.
        progress: Called now and then with megabytes read and megabytes in all.

    Raises:
        DataError: A source does not exist or cannot be read, or a folder holds no files.
        UsageError: The format or engine is unknown, `workers` is not positive, another writer is at work, or the
            store's records were redacted in another way than `redact` says.
        MissingDependencyError: Redaction, or reading a file, needs a package that is not installed.
    """
    started = time.perf_counter()
    adapter = None if format == "auto" else adapter_named(format)
    with executor(engine, workers) as pool:
        found = find_files([sources] if isinstance(sources, (str, Path)) else list(sources))
        store, plan = _open_store(store, redact)
        convert = partial(convert_chunk, plan=plan)
        tally = Tally(redacting=plan is not None)
        total = found.bytes
        with ExitStack() as stack:
            stack.enter_context(_no_cycle_collection())
            writer = stack.enter_context(store.writer())
            done = 0
            for chunk, (converted, redactions) in pool.map(convert, _chunks(found.logs, adapter, writer, tally, plan)):
                _write(chunk, converted, writer, tally)
                tally.redacted(redactions)
                done += sum(len(record.raw) for record in chunk.records)
                if progress is not None:
                    progress(min(done, total) / 1e6, total / 1e6)
            for name, reason in chain(zip(found.others, repeat(_NOT_A_LOG)), zip(found.links, repeat(_LINK))):
                logger.info("%s: set apart: %s", name, reason)
                tally.count(UNKNOWN_FORMAT, "set_apart", reason)
                writer.set_apart(_file_key(name), format=None, file=name, record=None, line=None, reason=reason)
            writer.commit()
            _assemble(pool, writer, tally, plan)
        extend_splits(store)
        if progress is not None:
            progress(total / 1e6, total / 1e6)
        return tally.report(time.perf_counter() - started, total / 1e6)


def _open_store(store: str | Path | Store, redact: bool | RedactionConfig) -> tuple[Store, RedactionPlan | None]:
    if redact is False:
        opened = store if isinstance(store, Store) else Store.create(store, exist_ok=True)
        if opened.manifest.configuration:  # nothing of redaction is loaded where it was never asked for
            from offline_arl.workflows.redacted_stores import refuse_if_redacted

            refuse_if_redacted(opened)
        return opened, None
    from offline_arl.logs.redaction.config import RedactionConfig
    from offline_arl.workflows.redacted_stores import check_redaction, redaction_plan

    config = redact if isinstance(redact, RedactionConfig) else RedactionConfig()
    check_redaction(config)
    opened = store if isinstance(store, Store) else Store.create(store, exist_ok=True)
    return opened, redaction_plan(opened, config)


def _file_key(name: str) -> bytes:
    """The identity of a file as a whole, beside those of its records (`logs.convert.record_key`)."""
    parent, base = os.path.split(name)  # a link is not what it leads to
    identity = f"{os.path.join(os.path.realpath(parent), base)}\0whole file".encode(errors="surrogatepass")
    return hashlib.blake2b(identity, digest_size=16).digest()


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


def _chunks(
    files: Sequence[LogFile], chosen: LogAdapter | None, writer: StoreWriter, tally: Tally, plan: RedactionPlan | None
) -> Iterator[Chunk]:
    """Cut the files into chunks of records that are not in the store yet; counts those that are."""
    for file in files:
        records = read_records(file) if plan is None else map(plan.sealed, read_records(file))
        real_path = os.path.realpath(file.path)
        if chosen is not None:
            yield from _batches(file, chosen.name, real_path, records, writer, tally)
            continue
        while head := list(islice(records, PROBE_RECORDS)):
            adapter, _ = detect_records(head)
            if adapter is not None:
                yield from _batches(file, adapter.name, real_path, chain(head, records), writer, tally)
                break
            unrecognized = map(_unrecognized, head)
            if plan is not None:
                unrecognized = map(plan.sealed, unrecognized)
            yield Chunk(file, UNKNOWN_FORMAT, list(unrecognized), real_path)


def _unrecognized(record: RawRecord) -> RawRecord:
    _, reason = detect_records([record])
    return msgspec.structs.replace(record, problem=reason.removeprefix(f"{record.where}: "))


def _batches(
    file: LogFile, name: str, real_path: str, records: Iterable[RawRecord], writer: StoreWriter, tally: Tally
) -> Iterator[Chunk]:
    batch: list[RawRecord] = []
    size = 0
    known = writer.knows_records
    for record in records:
        if known:
            state = writer.record_state(record_key(record, real_path))
            if state == "pending":
                continue  # an interrupted ingestion wrote it; it counts when its group is assembled
            if state is not None and state != "refused":  # what was refused before is worth another try
                tally.count(name, "duplicate")
                continue
        batch.append(record)
        size += len(record.raw)
        if size >= _CHUNK_BYTES or len(batch) >= _CHUNK_RECORDS:
            yield Chunk(file, name, batch, real_path)
            batch, size = [], 0
    if batch:
        yield Chunk(file, name, batch, real_path)


def _write(chunk: Chunk, converted: ConvertedRecords, writer: StoreWriter, tally: Tally) -> None:
    tally.count(chunk.format, "used", number=converted.used)
    for batch in converted.batches:
        writer.add_batch(batch)
    for result in converted.others:
        record = chunk.records[result.index]
        if result.refused is not None:
            reason = f"{record.where}: {result.refused}"
            tally.count(chunk.format, "refused", reason)
            logger.debug("%s", reason)
            writer.refuse(_refusal(record, result, chunk.format))
        elif result.set_apart is not None:
            tally.count(chunk.format, "set_apart", result.set_apart)
            logger.debug("%s: set apart: %s", record.where, result.set_apart)
            writer.set_apart(
                result.key,
                format=chunk.format,
                file=record.file,
                record=record.position,
                line=record.line,
                reason=result.set_apart,
            )
        elif result.fragments:
            for fragment in result.fragments:
                key, place = group_place(fragment, record.label, chunk.real_path)
                added = writer.add_piece(
                    format=chunk.format,
                    key=key,
                    place=place,
                    scope=chunk.real_path,
                    record_key=result.key,
                    label=record.label,
                    file=record.file,
                    position=record.position,
                    line=record.line,
                    sha256=record.sha256,
                    payload=fragment.payload,
                )
                if not added:
                    tally.retry(result.key)
        else:
            tally.feedback += len(result.feedback)
            writer.add_feedback(result.feedback, record_key=result.key)
        writer.commit_if_full()
    writer.commit_if_full()


def _assemble(pool: Executor, writer: StoreWriter, tally: Tally, plan: RedactionPlan | None) -> None:
    """Assemble the groups that have new pieces, batch by batch."""
    assemble = partial(convert_group, plan=plan)
    for batch in writer.dirty_groups():
        for group, assembled in pool.map(assemble, batch):
            _count_pieces(group, assembled, writer, tally)
            fates = [(piece.record_key, *fate) for piece, fate in zip(group.pieces, assembled.fates, strict=True)]
            writer.finish_group(group, assembled.encoded, assembled.feedback, fates)
            tally.feedback += len(assembled.feedback)
            tally.redacted(assembled.redactions)
            writer.commit_if_full()
    writer.commit()
    tally.trajectories = writer.written
    tally.findings = dict(writer.found)


def _count_pieces(group: PendingGroup, assembled: EncodedGroup, writer: StoreWriter, tally: Tally) -> None:
    """Count the records of a group that were not counted before, each once by the best fate among its pieces."""
    best: dict[bytes, tuple[PieceFate, str]] = {}
    for piece, (fate, reason) in zip(group.pieces, assembled.fates, strict=True):
        known = best.get(piece.record_key)
        if known is None or is_better(fate, known[0]):
            place = piece.line or f"[{piece.position}]"
            best[piece.record_key] = (fate, f"{piece.file}:{place}: {reason}" if fate == "refused" else reason)
    for key, (fate, reason) in best.items():
        if writer.record_state(key) == "pending" or tally.retried(key) or tally.is_counting(key):
            tally.count_piece(key, group.format, fate, reason, is_shared=writer.is_shared(key))


def _refusal(record: RawRecord, result: Other, format: str) -> RefusedRecord:
    return RefusedRecord.of(
        record.raw if result.redacted is None else result.redacted,
        file=record.file,
        record=record.position,
        line=record.line,
        format=None if format == UNKNOWN_FORMAT else format,
        reason=result.refused or "",
        key=result.key,
    )
