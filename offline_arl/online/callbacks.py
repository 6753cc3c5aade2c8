"""A transformers callback that tells a function of each update and of each checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

Finished = Callable[[int, dict[str, Any], TrainerControl], None]
Saved = Callable[[Path], None]


class UpdateCallback(TrainerCallback):  # type: ignore[misc]
    """Calls `finished(update, logs, control)` after each update and `saved(folder)` when a checkpoint is written.

    `finished` comes before Trainer looks whether to save or stop, so it may ask for either by its control. An
    exception in it ends the training.
    """

    def __init__(self, finished: Finished, saved: Saved) -> None:
        self._finished = finished
        self._saved = saved

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        # The log at the end of training sums the run up and has no loss of a step.
        if logs is not None and "loss" in logs:
            self._finished(int(state.global_step), logs, control)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._saved(Path(args.output_dir) / f"checkpoint-{state.global_step}")
