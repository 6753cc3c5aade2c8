"""transformers' Trainer whose updates are laid out beforehand and shared out among processes.

What it adds for every objective: micro-batches from a `MicroBatchSampler`, checkpoints that are marked when they are
complete, log lines at the same updates whether a run was interrupted or not, and errors that say what to change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils.memory import should_reduce_batch_size
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from offline_arl.datasets.updates import MicroBatchSampler
from offline_arl.errors import DataError, UsageError
from offline_arl.trainers.resuming import mark_complete

Report = Callable[[int, int], None]  # told (updates done, updates in all)


class UpdateTrainer(Trainer):  # type: ignore[misc]
    """Trains on the rows that `sampler` gives this process. A subclass computes the loss.

    Args:
        rows: The dataset.
        sampler: Row numbers of each micro-batch of this process. A micro-batch may be empty.
        collate: Makes the inputs of `compute_loss` from the rows of a micro-batch, also from none.
        epochs: How often the whole run sees each row, for the logs.
        report: Told after each update.
        callbacks: More of Trainer's callbacks.
        kwargs: Trainer's own.
    """

    loss_is_scaled_for_ga = True  # the denominator is the whole update's

    def __init__(
        self,
        *,
        rows: Sequence[Any],
        sampler: MicroBatchSampler,
        collate: Callable[[list[Any]], dict[str, Any]],
        epochs: float = 1.0,
        report: Report | None = None,
        callbacks: list[TrainerCallback] | None = None,
        **kwargs: Any,
    ) -> None:
        flow = _Flow(epochs, report)
        super().__init__(train_dataset=rows, data_collator=collate, callbacks=[flow, *(callbacks or [])], **kwargs)
        self.remove_callback(PrinterCallback)  # standard output belongs to the caller
        self._sampler = sampler

    def get_train_dataloader(self) -> DataLoader[Any]:
        """This process's micro-batches. accelerate must not deal them out once more, so it does not prepare them."""
        return DataLoader(
            self.train_dataset,
            batch_sampler=self._sampler,
            collate_fn=self.data_collator,
            generator=torch.Generator().manual_seed(self.args.seed),
        )

    def size_of(self, inputs: dict[str, Any]) -> str:
        """How large a micro-batch is, for errors."""
        rows, tokens = inputs["input_ids"].shape
        return f"{rows} rows of {tokens} tokens"

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """Forward and backward; what goes wrong is told with the update and the remedy.

        Raises:
            DataError: The loss is not finite.
            UsageError: The memory does not suffice.
        """
        update, size = self.state.global_step + 1, self.size_of(inputs)
        try:
            loss: torch.Tensor = super().training_step(model, inputs, num_items_in_batch)
        except (RuntimeError, MemoryError) as error:
            if not isinstance(error, MemoryError) and not should_reduce_batch_size(error):
                raise
            raise UsageError(
                f"out of memory at update {update}, in a batch of {size}; lower "
                "tokens_per_batch and raise gradient_accumulation_steps by the same factor (the updates stay the "
                "same), or set gradient_checkpointing=true, precision=bfloat16 or lora_rank"
            ) from error
        if not bool(torch.isfinite(loss)):
            raise DataError(
                f"training diverged: the loss of update {update} is {loss.item()}; lower learning_rate (now "
                f"{self.args.learning_rate:g}) or max_gradient_norm, or raise warmup_fraction"
            )
        return loss


class _Flow(TrainerCallback):  # type: ignore[misc]
    """A log line before each checkpoint and at the end, so that a resumed run logs what a straight one does."""

    def __init__(self, epochs: float, report: Report | None) -> None:
        self._epochs = epochs
        self._report = report

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        state.epoch = self._epochs * state.global_step / state.max_steps  # Trainer takes the run for one epoch
        if control.should_save or state.global_step >= state.max_steps:
            control.should_log = True
        if self._report is not None:
            self._report(state.global_step, state.max_steps)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        PartialState().wait_for_everyone()  # each process writes its random state
        if args.should_save:
            mark_complete(Path(args.output_dir) / f"checkpoint-{state.global_step}")
