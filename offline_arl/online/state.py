"""The state of an online training on disk: Trainer's checkpoint, and beside it what Trainer does not know of."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from offline_arl.errors import DataError, reason_of
from offline_arl.online.config import OF_NO_CONSEQUENCE, GrpoConfig
from offline_arl.online.processes import Processes
from offline_arl.trainers import resuming

STATE_NAME = "online.json"
CRITIC_FOLDER = "critic"
OWN_SUCCESSES_FOLDER = "own_successes"


def begin_run(
    folder: Path, config: GrpoConfig, processes: Processes, *, seed: int, start: str, **identity: Any
) -> Path | None:
    """The checkpoint to go on from; what other runs left in the folder is removed.

    Args:
        folder: Of the checkpoints of one run.
        config: Of the run that begins.
        processes: The first one tidies up, all get the same answer.
        seed: Of the run.
        start: Fingerprint of the warm start.
        identity: What else makes two runs the same, JSON.
    """
    run = resuming.run_identity(
        settings=config.model_dump(mode="json", exclude=set(OF_NO_CONSEQUENCE)),
        seed=seed,
        start=start,
        processes=processes.count,
        **identity,
    )
    if processes.first:
        resuming.begin(folder, run, resume=True)
    processes.wait()
    return resuming.latest(folder)


def read_state(checkpoint: Path) -> dict[str, Any]:
    """What `write_state` left in a checkpoint.

    Raises:
        DataError: It is not there or damaged.
    """
    try:
        state: dict[str, Any] = json.loads((checkpoint / STATE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{checkpoint}: cannot read {STATE_NAME} ({reason_of(error)}); remove the folder to start anew"
        ) from error
    return state


def write_state(
    checkpoint: Path, state: dict[str, Any], parts: Mapping[str, Callable[[Path], None]], processes: Processes
) -> None:
    """Complete a checkpoint that Trainer has written: our state, its other parts, and last the mark that all is there.

    Args:
        checkpoint: Folder of the checkpoint.
        state: JSON.
        parts: Name of a folder in the checkpoint to what saves into it.
        processes: The first one writes.
    """
    processes.wait()  # each process writes its random state
    if processes.first:
        (checkpoint / STATE_NAME).write_text(json.dumps(state), encoding="utf-8")
        for name, save in parts.items():
            save(checkpoint / name)
        resuming.mark_complete(checkpoint)
    processes.wait()
