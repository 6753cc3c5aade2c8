"""Run a pipeline, stage by stage, so that a second run goes on where the first one stopped.

A stage's key is the sha256 of its configuration, the seed where it counts, the keys of its inputs, the content of
the files it reads and the version of this package. `OUTPUT/stages/NAME/stage.json`, written last and atomically,
holds the key: a stage whose key is equal is skipped, everything else is removed and done again.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from offline_arl.errors import UsageError
from offline_arl.workflows.config import Pipeline
from offline_arl.workflows.context import Progress, StageContext, Tell, no_progress, no_tell
from offline_arl.workflows.dispatch import check_ready
from offline_arl.workflows.files import CLAIM_NAME, locked, told_refusals, write_json, write_text
from offline_arl.workflows.launch import perform
from offline_arl.workflows.records import StageRecord, read_record, results_of, stage_key, write_record
from offline_arl.workflows.stages import Artifact, Stage
from offline_arl.workflows.summary import summarize

logger = logging.getLogger(__name__)

LASTING_NAME = "training"  # in the output folder: checkpoints of what was interrupted, TensorBoard's events


class StageObserver(Protocol):
    """Told when a stage starts, is skipped because it is done already, and is finished."""

    def __call__(self, name: str, state: Literal["start", "skip", "done"], seconds: float, /) -> None: ...


@dataclass(frozen=True)
class RunResult:
    """What a run left: `results` is the content of `results.json`, `executed` names the stages done this time."""

    output: Path
    results: dict[str, Any]
    records: tuple[StageRecord, ...]
    executed: tuple[str, ...]


def run_pipeline(
    pipeline: Pipeline,
    output: str | Path,
    *,
    progress: Progress = no_progress,
    observe: StageObserver | None = None,
    tell: Tell = no_tell,
    fresh: bool = False,
    processes: int = 1,
) -> RunResult:
    """Run what is not yet done of a pipeline and write `results.json` and `summary.md` into `output`.

    Args:
        pipeline: From `load_pipeline`.
        output: Folder of this run. Rerunning with the same folder resumes.
        progress: Called with the progress inside a stage.
        observe: Called at the start and end of each stage.
        tell: Called with lines for the person who waits, such as what a stage validates; the stage's name comes first.
        fresh: Do every stage again, from its beginning.
        processes: How many processes train together, in stages that can be shared; with GPUs, one takes a GPU each.

    Raises:
        UsageError: Something is missing that can be seen before work begins, or the folder belongs to another
            pipeline or a run that is still going on, or holds something else.
        OfflineArlError: What a stage raises; its half-done folder is removed.
    """
    for name, stage in pipeline.stages.items():
        check_ready(stage, where=f"stages.{name}")
    output = Path(output)
    _check_free(output)
    with locked(output):
        _claim(pipeline, output)
        if fresh:
            for name in ("stages", LASTING_NAME):
                shutil.rmtree(output / name, ignore_errors=True)
        records: dict[str, StageRecord] = {}
        executed = []
        for name, stage in pipeline.stages.items():
            key = stage_key(stage, pipeline.seed, records)
            folder = output / "stages" / name
            record = read_record(folder, key)
            if record is None:
                for stale in ("results.json", "summary.md"):
                    (output / stale).unlink(missing_ok=True)
                _tell(observe, name, "start", 0.0)
                record = _execute(pipeline, name, stage, key, folder, records, progress, tell, processes)
                executed.append(name)
                _tell(observe, name, "done", record.seconds)
            else:
                _tell(observe, name, "skip", record.seconds)
            records[name] = record
        results = results_of(pipeline.name, pipeline.seed, records.values())
        write_json(output / "results.json", results)
        write_text(output / "summary.md", summarize(pipeline, results, list(records.values()), output))
    return RunResult(output, results, tuple(records.values()), tuple(executed))


def _execute(
    pipeline: Pipeline,
    name: str,
    stage: Stage,
    key: str,
    folder: Path,
    records: Mapping[str, StageRecord],
    progress: Progress,
    tell: Tell,
    processes: int,
) -> StageRecord:
    """Do one stage in an empty folder; the record is written last.

    What an interrupted stage needs to go on lies in a folder of its own, which is cleared when the stage is done.
    """
    shutil.rmtree(folder, ignore_errors=True)
    with told_refusals(f"stages.{name}"):
        folder.mkdir(parents=True)
    inputs: dict[str, dict[Artifact, Path]] = {}
    for _, reference, artifact in stage.references():
        path = folder.parent / reference / records[reference].outputs.artifacts[artifact]
        inputs.setdefault(reference, {})[artifact] = path
    lasting = folder.parent.parent / LASTING_NAME / name
    context = StageContext(
        name, folder, pipeline.seed, inputs, progress, lambda line: tell(f"{name}: {line}"), lasting=lasting
    )
    logger.info("stage %s begins", name)
    began = time.perf_counter()
    try:
        with told_refusals(f"stages.{name}"):
            outputs = perform(stage, context, processes=processes)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    missing = [artifact for artifact in stage.produces if artifact not in outputs.artifacts]
    if missing:
        raise RuntimeError(f"stage {name} promises {missing} and made {sorted(outputs.artifacts)}")
    record = StageRecord(name, stage.model_dump()["kind"], key, outputs, round(time.perf_counter() - began, 3))
    write_record(folder, record, stage)
    context.forget_checkpoints()
    logger.info("stage %s took %.1f s", name, record.seconds)
    return record


def _check_free(output: Path) -> None:
    """Refuse a folder that holds something else than a run; a run that was killed early left hidden files at most.

    Raises:
        UsageError: It does.
    """
    if (output / CLAIM_NAME).exists() or not output.is_dir():
        return
    if any(not item.name.startswith(".") for item in output.iterdir()):
        raise UsageError(
            f"--output {output} is not empty and holds no {CLAIM_NAME}, so it is not the folder of a pipeline's run; "
            "choose another folder or remove it"
        )


def _claim(pipeline: Pipeline, output: Path) -> None:
    """Write down whose folder this is; refuse one that holds another pipeline's results."""
    path = output / CLAIM_NAME
    try:
        owner = json.loads(path.read_text(encoding="utf-8")).get("name")
    except (FileNotFoundError, ValueError, AttributeError):
        owner = None  # a new folder, or a run that was killed before it could write
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); choose another --output") from error
    if owner is not None and owner != pipeline.name:
        raise UsageError(
            f"{output} holds results of the pipeline {owner!r}, not {pipeline.name!r}; choose another --output"
        )
    write_json(path, pipeline.model_dump(mode="json"))


def _tell(observe: StageObserver | None, name: str, state: Literal["start", "skip", "done"], seconds: float) -> None:
    if observe is not None:
        observe(name, state, seconds)
