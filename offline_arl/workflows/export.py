"""Exports: trajectories of a store as a file, or a folder of files, that another tool reads as it is."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from offline_arl.errors import DataError, UsageError
from offline_arl.logs.exports.catalog import exporter_named
from offline_arl.logs.exports.exporter import (
    Container,
    Exporter,
    NoRecordError,
    ToolAwareExporter,
    ToolShapes,
    record_of,
)
from offline_arl.logs.exports.pairs import Pairs
from offline_arl.logs.exports.sinks import open_sink
from offline_arl.logs.slots.contexts import all_tools
from offline_arl.trajectories.lineage import remember_derived
from offline_arl.trajectories.schema import Trajectory
from offline_arl.trajectories.store import Store, open_store
from offline_arl.workflows.context import Progress
from offline_arl.workflows.files import told_refusals
from offline_arl.workflows.filters import Filters, told_conditions
from offline_arl.workflows.stores import told_damage

logger = logging.getLogger(__name__)

_ENDINGS: Mapping[str, Container] = {".jsonl": "json_lines", ".ndjson": "json_lines", ".parquet": "parquet"}
_CONTAINER_NAMES: Mapping[Container, str] = {
    "json_lines": "a file that ends in .jsonl", "parquet": "a file that ends in .parquet", "folder": "a folder",
}  # fmt: skip
_MAX_TOOL_LISTS = 1_000
_NO_COUNTERPART = "no trajectory that it was compared with"


@dataclass(frozen=True)
class ExportReport:
    """What was exported.

    Attributes:
        format: Name of the format.
        output: The file or folder.
        trajectories: How many trajectories are in it.
        records: How many records: as many, or one for two that were compared.
        skipped: How many have no record in this format, by reason.
        seconds: How long it took.
        megabytes: The size on the disk.
    """

    format: str
    output: Path
    trajectories: int
    records: int
    skipped: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    megabytes: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """The report as a JSON object."""
        return {
            "format": self.format,
            "output": str(self.output),
            "trajectories": self.trajectories,
            "records": self.records,
            "skipped": sum(self.skipped.values()),
            "reasons": dict(self.skipped),
            "seconds": round(self.seconds, 3),
            "megabytes": round(self.megabytes, 3),
        }


def export(
    store: str | Path | Store,
    output: str | Path,
    *,
    format: str,
    where: Filters | pl.Expr | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
) -> ExportReport:
    """Write trajectories in the format of another tool; `ingest` of the output gives the same trajectories.

    The output appears when it is complete, and the store remembers it. Memory does not grow with the store.

    Args:
        store: Folder of the store, or an open one.
        output: The file, or the folder where the format has one file a trajectory. Its ending says which.
        format: See `logs.exports.catalog`.
        where: Which trajectories: filters, or a condition on the columns of `Store.trajectories`; all where None.
        limit: At most so many trajectories.
        progress: Called now and then with how many of the trajectories were looked at.

    Raises:
        UsageError: The format is unknown or not written to such an output, or the output is there already.
        DataError: There is nothing to export, or the output cannot be written.
        MissingDependencyError: The output is a table, and the package that writes it is not installed.
    """
    started = time.perf_counter()
    store = store if isinstance(store, Store) else open_store(store)
    exporter = exporter_named(format)
    path = Path(output)
    container = _container(exporter, path)
    condition = where.for_store(store).condition() if isinstance(where, Filters) else where
    skipped: Counter[str] = Counter()
    trajectories = records = 0
    with told_damage(store), told_conditions(store), told_refusals(f"--output {path}"):
        if isinstance(exporter, ToolAwareExporter):
            exporter = exporter.with_tools(_tool_shapes(store, condition))
        with appearing(path) as partial, open_sink(exporter, container, partial) as sink:
            for unit in _units(store, condition, exporter, skipped, progress):
                if limit is not None and trajectories + len(unit) > limit:
                    break
                try:
                    record = record_of(exporter, unit)
                except NoRecordError as reason:
                    skipped[str(reason)] += len(unit)
                    logger.info("%s: not exported: %s", unit[0].trajectory_id, reason)
                    continue
                sink.write(record, unit[0].trajectory_id)
                trajectories += len(unit)
                records += 1
            if not records:
                raise DataError(_nothing(store, exporter, skipped))
    remember_derived(store.path, "export", path)
    return ExportReport(
        format, path, trajectories, records, dict(skipped), time.perf_counter() - started, size_of(path) / 1e6
    )


def _container(exporter: Exporter, path: Path) -> Container:
    found = _ENDINGS.get(path.suffix.lower(), "folder" if not path.suffix else None)
    if found is None or found not in exporter.containers:
        choices = " or ".join(_CONTAINER_NAMES[container] for container in exporter.containers)
        raise UsageError(f"--output {path}: {exporter.name} is written to {choices}")
    if path.exists() or path.is_symlink():
        raise UsageError(f"--output {path}: is there already; choose another name")
    return found


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """A place beside `path` that takes its name at the end, and is gone where something went wrong."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield partial
        if path.exists():
            raise UsageError(f"--output {path}: is there already; choose another name")
        partial.rename(path)
    finally:
        if partial.is_dir():
            shutil.rmtree(partial)
        else:
            partial.unlink(missing_ok=True)


def _units(
    store: Store, condition: pl.Expr | None, exporter: Exporter, skipped: Counter[str], progress: Progress | None
) -> Iterator[Sequence[Trajectory]]:
    """What makes one record each: a trajectory, or two that were compared."""
    trajectories = _watched(store, condition, progress)
    if exporter.per_record == 1:
        for trajectory in trajectories:
            yield (trajectory,)
        return
    pairs = Pairs(store.get)
    yield from pairs.of(trajectories)
    if pairs.unpaired:
        skipped[_NO_COUNTERPART] += len(pairs.unpaired)


def _watched(store: Store, condition: pl.Expr | None, progress: Progress | None) -> Iterator[Trajectory]:
    for count, trajectory in enumerate(store.iter_trajectories(condition), start=1):
        if progress is not None and count % 100 == 0:
            progress("trajectories", count, None)
        yield trajectory


def _tool_shapes(store: Store, condition: pl.Expr | None) -> ToolShapes:
    """The different tool lists of the trajectories; a first walk over the store."""
    found: dict[bytes, Any] = {}
    for trajectory in store.iter_trajectories(condition):
        tools = all_tools(trajectory.contexts)
        if tools:
            found.setdefault(msgspec.json.encode(tools), tools)
            if len(found) > _MAX_TOOL_LISTS:
                return ToolShapes(list(found.values()), is_complete=False)
    return ToolShapes(list(found.values()))


def _nothing(store: Store, exporter: Exporter, skipped: Counter[str]) -> str:
    if skipped:
        reason, count = skipped.most_common(1)[0]
        return f"{store.path}: nothing to export as {exporter.name}: {reason} ({count} trajectories)"
    return f"{store.path}: no trajectory is selected; nothing was exported"


def size_of(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
