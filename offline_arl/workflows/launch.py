"""A stage that several processes share: started here, or by the user with `accelerate launch` or `torchrun`.

Every process runs the stage's own function on the same inputs; the trainer in it shares out each update. The first
process leaves the results, the others work in a folder that is thrown away. What a launched process has to know is in
`job.json`; what the first one has to say is written beside it: how far it is, what it made or why it failed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from offline_arl import errors
from offline_arl.errors import DataError, OfflineArlError, UsageError
from offline_arl.workflows.context import Progress, StageContext, StageOutputs, Tell, estimate_from, no_tell
from offline_arl.workflows.dispatch import stage_function
from offline_arl.workflows.files import write_json
from offline_arl.workflows.stages import Stage, stage_type

WORKER = "offline_arl.cli.worker"
TOLD_NAME = "told.jsonl"
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Launched:
    """This process's place among those that were started together."""

    process: int = 0
    processes: int = 1


ALONE = Launched()


def check_processes(stage: Stage, processes: int, *, where: str) -> None:
    """Refuse more than one process for a stage that cannot be shared.

    Raises:
        UsageError: It cannot.
    """
    if processes > 1 and not stage.shared:
        raise UsageError(f"{where} runs in one process; start it without accelerate launch and without --processes")


def perform(stage: Stage, context: StageContext, *, processes: int = 1) -> StageOutputs:
    """Do a stage, in processes of its own where it can be shared and more than one are wanted.

    Raises:
        OfflineArlError: What the stage raises, also in another process.
    """
    if processes == 1 or not stage.shared:
        return stage_function(type(stage))(stage, context)
    with tempfile.TemporaryDirectory(prefix="offline_arl-") as name:
        folder = Path(name)
        write_json(folder / "job.json", _job(stage, context))
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes),
            "-m", WORKER, str(folder),
        ]  # fmt: skip
        process = subprocess.Popen(command, stdout=sys.stderr.fileno() if _has_number(sys.stderr) else None)
        told = 0
        try:
            while process.poll() is None:
                time.sleep(_POLL_SECONDS)
                _pass_on(folder / "progress.json", context.progress)
                told = _tell_on(folder / TOLD_NAME, context.tell, told)
            _tell_on(folder / TOLD_NAME, context.tell, told)
        finally:
            if process.poll() is None:  # interrupted: torchrun ends its processes
                process.terminate()
                process.wait()
        return _outcome(folder, process.returncode)


def work(folder: Path, launched: Launched) -> None:
    """What a launched process does with the job in `folder`.

    Raises:
        OfflineArlError: What the stage raises. The first process has written it down for the one that waits.
    """
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    kind = stage_type(job["stage"])
    assert kind is not None
    stage = kind.model_validate(job["stage"])
    inputs = {name: {kind: Path(path) for kind, path in paths.items()} for name, paths in job["inputs"].items()}
    context = StageContext(
        job["name"],
        Path(job["folder"]),
        job["seed"],
        inputs,
        destination=None if job["destination"] is None else Path(job["destination"]),
        lasting=None if job["lasting"] is None else Path(job["lasting"]),
    )
    if launched.process > 0:
        follow(stage, context)
        return
    try:
        context = replace(context, progress=_writer(folder / "progress.json"), tell=_appender(folder / TOLD_NAME))
        outputs = stage_function(kind)(stage, context)
    except OfflineArlError as error:
        write_json(folder / "outcome.json", {"error": type(error).__name__, "message": str(error)})
        raise
    made = {
        "artifacts": dict(outputs.artifacts),
        "metrics": {name: metric.as_dict() for name, metric in outputs.metrics.items()},
        "notes": list(outputs.notes),
        "backend": outputs.backend,
    }
    write_json(folder / "outcome.json", made)


def follow(stage: Stage, context: StageContext) -> None:
    """Take part in a stage whose first process is another one."""
    with tempfile.TemporaryDirectory(prefix="offline_arl-") as name:
        stage_function(type(stage))(stage, replace(context, folder=Path(name), first=False, tell=no_tell))


def _job(stage: Stage, context: StageContext) -> dict[str, Any]:
    return {
        "stage": stage.model_dump(mode="json"),
        "name": context.name,
        "folder": str(context.folder.absolute()),
        "seed": context.seed,
        "inputs": context.input_paths(),
        "destination": None if context.destination is None else str(context.destination.absolute()),
        "lasting": None if context.lasting is None else str(context.lasting.absolute()),
    }


def _outcome(folder: Path, status: int) -> StageOutputs:
    """What the first process wrote.

    Raises:
        OfflineArlError: What it raised.
        DataError: It wrote nothing, or another process failed.
    """
    try:
        outcome = json.loads((folder / "outcome.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        outcome = {}
    if "error" in outcome:
        raise getattr(errors, outcome["error"], DataError)(outcome["message"])
    if status != 0 or not outcome:
        raise DataError(f"the training processes ended with status {status}; what they said stands above")
    return StageOutputs(
        artifacts=outcome["artifacts"],
        metrics={name: estimate_from(value) for name, value in outcome["metrics"].items()},
        notes=tuple(outcome["notes"]),
        backend=outcome["backend"],
    )


def _writer(path: Path) -> Callable[[str, float, float | None], None]:
    """A progress callback that leaves what it is told in a file."""

    def progress(description: str, completed: float, total: float | None, /) -> None:
        write_json(path, [description, completed, total])

    return progress


def _pass_on(path: Path, progress: Progress) -> None:
    try:
        description, completed, total = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    progress(description, completed, total)


def _appender(path: Path) -> Tell:
    """A callback that leaves the lines it is told in a file."""

    def tell(line: str) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    return tell


def _tell_on(path: Path, tell: Tell, told: int) -> int:
    """Tell the lines of a file that are complete and not told yet; how many that makes in all."""
    try:
        *lines, _ = path.read_text(encoding="utf-8").split("\n")
    except OSError:
        return told
    for line in lines[told:]:
        tell(json.loads(line))
    return len(lines)


def _has_number(stream: Any) -> bool:
    try:
        stream.fileno()
    except (OSError, ValueError):
        return False
    return True
