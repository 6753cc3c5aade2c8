"""Training runs of toy policies in processes of their own: killed and resumed, or shared by several processes.

python training_runs.py killed FOLDER        every run of RUNS straight, and killed and resumed
python training_runs.py shared FOLDER JSON   one run with the settings JSON; under accelerate launch all share it
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

SETTINGS: dict[str, Any] = {"epochs": 3, "tokens_per_batch": 150, "save_steps": 4, "logging_steps": 3}
KILLED_AT = 10  # updates; the last checkpoint is that of update 8, the last log line before it that of update 8
RUNS: dict[str, dict[str, Any]] = {
    "adamw": {},
    "adamw_accumulated": {"gradient_accumulation_steps": 2, "epochs": 6},
    "adamw_lora": {"lora_rank": 2, "lora_dropout": 0.2, "learning_rate": 1e-2},
    "adamw_packed": {"packing": True},
    "muon": {"optimizer": "muon", "learning_rate": 1e-2},
    "muon_accumulated_lora": {
        "optimizer": "muon", "gradient_accumulation_steps": 2, "epochs": 6, "lora_rank": 2, "lora_dropout": 0.2,
    },
}  # fmt: skip


def train(folder: Path, settings: dict[str, Any], *, kill_at: int | None = None) -> Any:
    """Train the toy policy on a toy dataset; returns the record."""
    from offline_arl.datasets.segments import SegmentDataset
    from offline_arl.trainers.config import WeightedBCConfig
    from offline_arl.trainers.weighted_bc import train_weighted_bc
    from toys import ToyTokenizer, toy_model

    def report(update: int, updates: int) -> None:
        assert updates > KILLED_AT
        if update == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    return train_weighted_bc(
        toy_model(),
        ToyTokenizer(),
        SegmentDataset.load(folder.parent / "data"),
        WeightedBCConfig(**{**SETTINGS, **settings}),
        folder / "policy",
        seed=1,
        resume_from_checkpoint="latest",
        report=report,
    )


def logged(folder: Path) -> list[dict[str, float]]:
    """The log lines of a finished run, from its last checkpoint."""
    last = max((folder / "policy.checkpoints").glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
    history: list[dict[str, float]] = json.loads((last / "trainer_state.json").read_text())["log_history"]
    return [line for line in history if "loss" in line]


def _in_a_child(folder: Path, settings: dict[str, Any], kill_at: int | None) -> int:
    """Train in a forked process, which saves importing everything again; the exit status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            train(folder, settings, kill_at=kill_at)
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    """See the module."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    what, folder = sys.argv[1], Path(sys.argv[2])
    if what == "shared":
        train(folder, json.loads(sys.argv[3]))
        return
    import offline_arl.trainers.weighted_bc  # noqa: F401 (before forking)

    for name, settings in RUNS.items():
        assert _in_a_child(folder / f"{name}_straight", settings, None) == 0
        assert _in_a_child(folder / f"{name}_resumed", settings, KILLED_AT) == -signal.SIGKILL
        assert not (folder / f"{name}_resumed" / "policy").exists()
        assert _in_a_child(folder / f"{name}_resumed", settings, None) == 0


if __name__ == "__main__":
    main()
