"""transformers' Trainer for token-level values: accumulation, resuming, clipping, schedules and processes are its."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from offline_arl.trainers.config import TokenCQLConfig, TokenIQLConfig
from offline_arl.trainers.token_critic import TokenCritic
from offline_arl.trainers.token_states import selected_states

Report = Callable[[int, dict[str, float]], None]


class TokenValueTrainer(Trainer):  # type: ignore[misc]
    """Trains a `TokenCritic` on the batches of one of the collators of `token_states`.

    Args:
        critic: The heads with their targets, and the language model if it is trained.
        config: How to train.
        batches: The items of every micro-batch, for the whole run.
        collate: Makes a batch of items.
        frozen_model: Makes the states where the batches bring none and the critic has no model of its own.
        seed: Of dropout and adapters; the batches are drawn already.
        checkpoints: Where checkpoints go, if the configuration asks for them.
        report: Called with (update, mean losses since the last call) every `log_every` updates.
    """

    loss_is_scaled_for_ga = True  # the denominator is the global batch's

    def __init__(
        self,
        critic: TokenCritic,
        config: TokenIQLConfig | TokenCQLConfig,
        *,
        batches: list[list[int]],
        collate: Callable[[list[int]], dict[str, Any]],
        frozen_model: Any,
        seed: int,
        checkpoints: Path,
        report: Report | None,
    ) -> None:
        self._batches = batches
        self._frozen_model = frozen_model
        self._sums: dict[str, Tensor] = {}
        super().__init__(
            model=critic,
            args=_arguments(config, checkpoints, seed, critic),
            train_dataset=range(1 + max(max(batch) for batch in batches)),
            data_collator=collate,
            optimizers=(_optimizer(critic, config), None),
        )
        self.remove_callback(PrinterCallback)  # standard output belongs to the caller
        self.add_callback(_TargetUpdates(critic))
        if report is not None:
            self.add_callback(_Reports(report))
        # Have Trainer count the labels of every batch: they are the decisions.
        self.model_accepts_loss_kwargs = True

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The batches in their order."""
        loader = DataLoader(
            self.train_dataset,
            batch_sampler=self._batches,
            collate_fn=self.data_collator,
            generator=torch.Generator().manual_seed(self.args.seed),
        )
        prepared: DataLoader[Any] = self.accelerator.prepare(loader)
        return prepared

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """This micro-batch's part of the loss over the decisions of the global batch."""
        batch = {name: value for name, value in inputs.items() if name != "labels"}
        if self._frozen_model is not None and "states" not in batch:
            batch["states"] = selected_states(self._frozen_model, batch)
        sums = model(**batch)
        decisions = len(batch["token_ids"]) if num_items_in_batch is None else num_items_in_batch
        loss = sums["loss"] / decisions
        for name, value in sums.items():
            part = value.detach() / decisions
            self._sums[name] = self._sums[name] + part if name in self._sums else part
        if self.args.average_tokens_across_devices and num_items_in_batch is not None:
            loss = loss * self.accelerator.num_processes  # undo the mean over processes of the gradients
        return (loss, sums) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the mean of each loss over the updates since the last line."""
        if "loss" in logs and self._sums:
            since = self.state.global_step - self._last_logged()
            logs = {**logs, **{name: float(value) / since for name, value in self._sums.items() if name != "loss"}}
            self._sums = {}
        super().log(logs, start_time)

    def _last_logged(self) -> int:
        lines = [entry["step"] for entry in self.state.log_history if "loss" in entry]
        return int(lines[-1]) if lines else 0

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        """Each tensor once: weights that a model ties under two names come back under either."""
        found = self.model.state_dict() if state_dict is None else state_dict
        kept: dict[int, tuple[str, Tensor]] = {}
        for name, value in found.items():
            kept.setdefault(value.data_ptr(), (name, value.contiguous()))
        super()._save(output_dir, state_dict=dict(kept.values()))


class _TargetUpdates(TrainerCallback):  # type: ignore[misc]
    """Moves the target critics after every update."""

    def __init__(self, critic: TokenCritic) -> None:
        self._critic = critic

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._critic.update_targets()


class _Reports(TrainerCallback):  # type: ignore[misc]
    """Hands log lines to a function."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if logs is not None and "q_loss" in logs:
            self._report(state.global_step, {name: value for name, value in logs.items() if name in _REPORTED})


_REPORTED = frozenset({"loss", "q_loss", "value_loss", "conservative_loss", "bc_loss", "mean_q", "mean_v"})


def _optimizer(critic: TokenCritic, config: TokenIQLConfig | TokenCQLConfig) -> torch.optim.Optimizer:
    groups = [{"params": list(critic.heads.parameters()), "lr": config.learning_rate}]
    if critic.language_model is not None:
        trained = [value for value in critic.language_model.parameters() if value.requires_grad]
        groups.append({"params": trained, "lr": config.policy_learning_rate})
    return torch.optim.AdamW(groups, weight_decay=config.weight_decay, fused=True)


def _arguments(
    config: TokenIQLConfig | TokenCQLConfig, checkpoints: Path, seed: int, critic: TokenCritic
) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(checkpoints),
        num_train_epochs=1,  # the batches are those of the whole run
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        lr_scheduler_type=config.schedule,
        max_grad_norm=config.max_gradient_norm,
        save_strategy="no" if config.save_steps is None else "steps",
        save_steps=config.save_steps or 500,
        save_total_limit=2,
        logging_steps=config.log_every,
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        accelerator_config={"even_batches": False},
        use_cpu=next(critic.parameters()).device.type == "cpu",
        seed=seed,
    )
