"""Checkpoints of a run that was interrupted: which are complete, and whose they are."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from pathlib import Path
from typing import Any

from offline_arl.datasets.collate import StepWeights
from offline_arl.errors import UsageError
from offline_arl.trajectories.places import object_in

_logger = logging.getLogger(__name__)

RUN_NAME = "run.json"  # in the folder of checkpoints: whose they are
_MARK = "complete"  # in a checkpoint, written last


def run_identity(**parts: Any) -> str:
    """SHA-256 of what makes two runs the same: equal ones end with equal weights."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def weights_digest(step_weights: StepWeights | None) -> str | None:
    """SHA-256 of step weights, whatever their order."""
    if step_weights is None:
        return None
    digest = hashlib.sha256()
    for (trajectory, step), weight in sorted(step_weights.items()):
        digest.update(f"{trajectory}\0{step}\0{weight!r}\n".encode())
    return digest.hexdigest()


def begin(folder: Path, identity: str, *, resume: bool) -> Path | None:
    """Prepare a folder of checkpoints for a run and find the checkpoint to go on from.

    Args:
        folder: Holds the checkpoints of one run.
        identity: Of the run that begins (`run_identity`).
        resume: Go on from the latest complete checkpoint where it is this run's.

    Returns:
        The checkpoint, or None where the run starts at the beginning. Everything else in the folder is removed:
        checkpoints of another run, and those that a killed process did not finish.
    """
    complete = _complete(folder) if resume and _owner(folder) == identity else []
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name.startswith("checkpoint-") and path not in complete:
            shutil.rmtree(path)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RUN_NAME).write_text(json.dumps({"identity": identity}) + "\n", encoding="utf-8")
    if not complete:
        return None
    _logger.info("going on from %s", complete[-1])
    return complete[-1]


def check_owner(checkpoint: Path, identity: str) -> None:
    """Refuse a checkpoint that cannot continue this run.

    Raises:
        UsageError: It is not there, is incomplete, or belongs to a run with other data, weights or settings.
    """
    if not (checkpoint / _MARK).is_file():
        raise UsageError(f"{checkpoint} is no complete checkpoint; name another checkpoint folder")
    if _owner(checkpoint.parent) not in (None, identity):
        raise UsageError(
            f"{checkpoint} belongs to a run with other data, weights, seed or settings; resume with the same ones, "
            "or start anew"
        )


def latest(folder: Path) -> Path | None:
    """The newest complete checkpoint of a folder."""
    complete = _complete(folder)
    return complete[-1] if complete else None


def mark_complete(checkpoint: Path) -> None:
    """Say that a checkpoint is written."""
    (checkpoint / _MARK).touch()


def _complete(folder: Path) -> list[Path]:
    """Complete checkpoints, the newest last."""
    found = [path.parent for path in folder.glob(f"checkpoint-*/{_MARK}")]
    return sorted(found, key=lambda path: int(path.name.removeprefix("checkpoint-")))


def _owner(folder: Path) -> str | None:
    """Whose checkpoints a folder holds; None where that is not known."""
    identity = object_in(folder / RUN_NAME).get("identity")
    return identity if isinstance(identity, str) else None
