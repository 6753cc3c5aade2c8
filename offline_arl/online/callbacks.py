"""A transformers callback that hands the logs of each finished step to a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class _StepCallback(TrainerCallback):  # type: ignore[misc]
    def __init__(self, finished: Callable[[int, dict[str, Any]], None]) -> None:
        self._finished = finished

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
            self._finished(int(state.global_step), logs)


def step_callback(finished: Callable[[int, dict[str, Any]], None]) -> TrainerCallback:
    """A callback that calls `finished(step, logs)` after each update; an exception in it ends the training."""
    return _StepCallback(finished)
