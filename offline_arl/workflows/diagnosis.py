"""What went wrong in the online trainings of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from offline_arl.errors import UsageError
from offline_arl.online.diagnosis import diagnose
from offline_arl.online.diagnosis.metrics import METRICS_NAME, read_history
from offline_arl.online.diagnosis.page import Diagnosis, render
from offline_arl.workflows.context import CHECKPOINTS_NAME
from offline_arl.workflows.files import write_text
from offline_arl.workflows.run import LASTING_NAME
from offline_arl.workflows.single import lasting_folder


def diagnose_run(run: str | Path) -> list[Diagnosis]:
    """Look through the records of every online training of a run; one that is still going on is read as far as it is.

    Args:
        run: Folder of an online stage or of a whole pipeline, or a `metrics.jsonl`. Where the command of a stage was
            interrupted, what it left beside the folder counts.

    Raises:
        UsageError: There is no online training.
        DataError: A file holds something else.
    """
    run = Path(run)
    if not run.exists() and lasting_folder(run).is_dir():
        run = lasting_folder(run)
    if not run.exists():
        raise UsageError(f"{run}: does not exist; name the folder of an online training or of a pipeline's run")
    if run.suffix in (".yaml", ".yml"):
        raise UsageError(f"{run}: is a pipeline; name the folder that its run was written to (--output)")
    files = sorted(run.rglob(METRICS_NAME)) if run.is_dir() else [run]
    if not files:
        raise UsageError(
            f"{run}: holds no {METRICS_NAME}, so no online training has begun here; name the folder of one, or of the "
            "pipeline's run"
        )
    found = []
    for file in files:
        history = read_history(file)
        found.append(Diagnosis(_name(run if run.is_dir() else file.parent, file.parent), history, diagnose(history)))
    return found


def _name(run: Path, folder: Path) -> str:
    """The stage or output that a training belongs to, the same while it goes on as when it is done."""
    parts = _named_parts(folder.relative_to(run)) or _named_parts(folder.resolve())[-1:]
    return "/".join(parts)


def _named_parts(folder: Path) -> list[str]:
    """The parts of a path without those that say where in a run something lies."""
    parts = list(folder.parts)
    if parts and parts[-1] == CHECKPOINTS_NAME:
        parts.pop()
    between = {"stages", LASTING_NAME}
    named = [part for place, part in enumerate(parts) if part not in between or place == len(parts) - 1]
    return [part.removesuffix(f".{LASTING_NAME}") for part in named]


def write_diagnosis(run: str | Path, diagnoses: Sequence[Diagnosis], path: Path) -> None:
    """Write them as one HTML page that needs no other file; an earlier one is replaced.

    Raises:
        DataError: It cannot be written.
    """
    write_text(path, render(str(run), diagnoses))
