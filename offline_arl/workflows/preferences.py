"""Looking at preference datasets that are built, mending them, and giving them to other trainers."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import get_args

import msgspec

from offline_arl.datasets.audit import AuditConfig, AuditReport, Fault, audit, fix
from offline_arl.datasets.manifest import DatasetManifest, load_manifest, write_manifest
from offline_arl.datasets.pairs.export import OPENAI_PAIRS, TRL_PAIRS, TRL_UNPAIRED, PreferenceFormat
from offline_arl.datasets.pairs.folder import PreferenceRow, load_preferences
from offline_arl.errors import DataError, OfflineArlError, UsageError
from offline_arl.logs.exports.exporter import Container, NoRecordError
from offline_arl.logs.exports.sinks import open_sink
from offline_arl.trajectories.lineage import DerivedKind, StoreReference, remember_derived, store_id
from offline_arl.workflows.export import ExportReport, appearing, size_of
from offline_arl.workflows.files import told_refusals

logger = logging.getLogger(__name__)

_FORMATS: dict[str, tuple[PreferenceFormat, ...]] = {
    "pairs": (TRL_PAIRS, OPENAI_PAIRS),
    "unpaired": (TRL_UNPAIRED,),
}
_ENDINGS: dict[str, Container] = {".jsonl": "json_lines", ".parquet": "parquet"}


def audit_dataset(
    dataset: str | Path, *, against: str | Path | None = None, config: AuditConfig | None = None
) -> AuditReport:
    """Audit a dataset of pairs or of labeled answers (see `datasets.audit`).

    Args:
        dataset: Its folder, or the folder that a command or stage made and that holds it.
        against: The same of another split, which must share nothing with it.
        config: Where to draw the lines.

    Raises:
        DataError: A folder is no dataset, or damaged.
        UsageError: A dataset is of another kind.
    """
    other = None if against is None else load_preferences(dataset_folder(against))
    return audit(load_preferences(dataset_folder(dataset)), config=config, against=other)


def fix_dataset(
    dataset: str | Path,
    report: AuditReport,
    output: str | Path,
    *,
    keep: Sequence[str] = (),
    config: AuditConfig | None = None,
) -> DatasetManifest:
    """Write a dataset without what its audit found (see `datasets.audit.fix`); its store remembers it.

    Raises:
        UsageError: `keep` names no fault, or `output` is there already.
        DataError: No row is left.
    """
    known: tuple[Fault, ...] = get_args(Fault)
    for name in keep:
        if name not in known:
            raise UsageError(f"--keep {name}: no such fault; there are: {', '.join(known)}")
    folder, place = dataset_folder(dataset), Path(output)
    if place.exists():
        raise UsageError(f"--fix {place}: is there already; choose another folder")
    with told_refusals(f"--fix {place}"):
        manifest = fix(load_preferences(folder), report, place, keep=[fault for fault in known if fault in keep],
                       config=config)  # fmt: skip
        lineage = _remembered(folder, place, "dataset")
        manifest = msgspec.structs.replace(manifest, lineage=lineage or manifest.lineage)
        write_manifest(place, manifest)
    return manifest


def export_dataset(dataset: str | Path, output: str | Path, *, format: str) -> ExportReport:
    """Write a preference dataset for another trainer; the output appears when it is complete.

    Args:
        dataset: Folder of a dataset of pairs or of labeled answers.
        output: A `.jsonl` or `.parquet` file.
        format: "trl", or for pairs "openai_preferences".

    Raises:
        UsageError: The format or the ending is unknown, or the output is there already.
        DataError: No row can be written in this format.
    """
    started = time.perf_counter()
    folder, path = dataset_folder(dataset), Path(output)
    rows = load_preferences(folder)
    formats = {known.name: known for known in _FORMATS[rows.kind]}
    if format not in formats:
        raise UsageError(f"--format {format}: a dataset of kind {rows.kind} is written as {' or '.join(formats)}")
    container = _ENDINGS.get(path.suffix.lower())
    if container is None or path.exists():
        wrong = "is there already; choose another name" if container else "give a file that ends in .jsonl or .parquet"
        raise UsageError(f"--output {path}: {wrong}")
    with told_refusals(f"--output {path}"):
        written, skipped = _write(rows, formats[format], container, path)
    _remembered(folder, path, "export")
    seconds = time.perf_counter() - started
    return ExportReport(format, path, written, written, dict(skipped), seconds, size_of(path) / 1e6)


def dataset_folder(path: str | Path) -> Path:
    """The folder of a dataset: `path` itself, or the one in it where `path` is what a command or stage made."""
    path = Path(path)
    return path / "dataset" if (path / "dataset").is_dir() else path


def _write(
    rows: Iterable[PreferenceRow], format: PreferenceFormat, container: Container, path: Path
) -> tuple[int, Counter[str]]:
    skipped: Counter[str] = Counter()
    written = 0
    with appearing(path) as partial, open_sink(format, container, partial) as sink:
        for row in rows:
            try:
                record = format.record(row)
            except NoRecordError as error:
                skipped[str(error)] += 1
                continue
            sink.write(record, "")
            written += 1
        if not written:
            reason, number = skipped.most_common(1)[0]
            raise DataError(f"nothing to export as {format.name}: {reason} ({number} rows)")
    return written, skipped


def _remembered(dataset: Path, made: Path, kind: DerivedKind) -> StoreReference | None:
    """Note what was made of a dataset in the store that the dataset was made from, so that deletion finds it."""
    lineage = load_manifest(dataset).lineage
    if lineage is None:
        return None
    for store in ((dataset / lineage.relative).resolve(), Path(lineage.path)):
        try:
            if store.is_dir() and store_id(store) == lineage.store_id:
                return remember_derived(store, kind, made)
        except OfflineArlError:
            continue
    logger.warning("%s: its store is gone, so deletion will not reach %s", dataset, made)
    return None
