"""Experiment trackers of transformers, each imported only where it is asked for."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from offline_arl.optional import require
from offline_arl.trainers.config import WeightedBCConfig

EXTRA = "trackers"


def tracker_names(config: WeightedBCConfig) -> list[str]:
    """The trackers that Trainer itself sets up, after a look whether their packages are there.

    Raises:
        MissingDependencyError: One is not installed.
    """
    for name in config.report_to:
        require(name, extra=EXTRA)
    return [name for name in config.report_to if name != "tensorboard"]


def tracker_callbacks(config: WeightedBCConfig, folder: Path, *, goes_on: bool, first: bool) -> list[TrainerCallback]:
    """TensorBoard's callback, by which the first process writes to `folder`.

    Args:
        config: Which trackers are asked for.
        folder: Of the events.
        goes_on: The run goes on from a checkpoint; one that starts at the beginning removes what is in the folder.
        first: Whether this is the first of the processes that train together.
    """
    if "tensorboard" not in config.report_to or not first:
        return []
    if not goes_on:
        shutil.rmtree(folder, ignore_errors=True)
    return [_TensorBoard(folder)]


class _TensorBoard(TrainerCallback):  # type: ignore[misc]
    """Scalars under the names that transformers gives them; a resumed run hides what the killed one logged later."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        purge = state.global_step + 1 if state.global_step else None
        writers = require("torch.utils.tensorboard", extra=EXTRA)
        self._writer = writers.SummaryWriter(str(self._folder), purge_step=purge)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if self._writer is None:
            return
        for name, value in (logs or {}).items():
            prefix = "" if name.startswith("train_") else "train/"
            self._writer.add_scalar(f"{prefix}{name}", value, state.global_step)
        self._writer.flush()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
