"""transformers' Trainer for token-level values: accumulation, processes, resuming, clipping and schedules are its."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model
from torch import Tensor
from transformers import TrainerCallback
from transformers.utils import SAFE_WEIGHTS_NAME

from offline_arl.trainers.config import TokenCQLConfig, TokenIQLConfig
from offline_arl.trainers.run import TrainingRun
from offline_arl.trainers.token_critic import TokenCritic
from offline_arl.trainers.token_states import selected_states
from offline_arl.trainers.update_trainer import Report, UpdateTrainer

_LOGGED = ("q_loss", "value_loss", "conservative_loss", "bc_loss", "mean_q", "mean_v")


class TokenValueTrainer(UpdateTrainer):
    """Trains a `TokenCritic` on the batches of one of the collators of `token_states`.

    Args:
        critic: The heads with their targets, and the language model if it is trained.
        config: How to train.
        run: Arguments, micro-batches and callbacks.
        collate: Makes a batch of the items of a micro-batch.
        items: How many items there are.
        frozen_model: Makes the states where neither batches nor the critic have them.
        report: Told (updates done, updates in all).
    """

    def __init__(
        self,
        critic: TokenCritic,
        config: TokenIQLConfig | TokenCQLConfig,
        run: TrainingRun,
        *,
        collate: Callable[[list[int]], dict[str, Any]],
        items: int,
        frozen_model: Any = None,
        report: Report | None = None,
    ) -> None:
        self._frozen_model = frozen_model
        self._sums = torch.zeros(len(_LOGGED))
        self._logged_step = 0
        super().__init__(
            model=critic,
            args=run.arguments,
            rows=range(items),
            sampler=run.sampler,
            collate=collate,
            report=report,
            callbacks=[_TargetUpdates(critic), *run.callbacks],
            optimizers=(_optimizer(critic, config), None),
        )
        # Have Trainer count the labels of every batch: they are the decisions.
        self.model_accepts_loss_kwargs = True

    def size_of(self, inputs: dict[str, Any]) -> str:
        """Kept states come as decisions."""
        return (
            super().size_of(inputs) if "input_ids" in inputs else f"{len(inputs['token_ids'])} decisions (batch_size)"
        )

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """This micro-batch's part of the loss over the decisions of the whole update."""
        batch = {name: value for name, value in inputs.items() if name != "labels"}
        if self._frozen_model is not None and "states" not in batch:
            batch["states"] = selected_states(self._frozen_model, batch)
        if self.accelerator.num_processes > 1 and "shared_prefix" in batch:
            batch["shared_prefix"] = 0  # a second call of the model inside one that exchanges gradients
        sums = model(**batch)
        decisions = max(len(batch["token_ids"]), 1) if num_items_in_batch is None else num_items_in_batch
        nothing = sums["loss"].new_zeros(())
        parts = torch.stack([sums.get(name, nothing).detach() for name in _LOGGED]) / decisions
        self._sums += parts.float().cpu()
        loss = sums["loss"] / decisions
        if self.args.average_tokens_across_devices and num_items_in_batch is not None:
            loss = loss * self.accelerator.num_processes  # undo the mean over processes of the gradients
        return (loss, sums) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the mean of each loss, and of Q and V at the tokens of the data, since the last log line."""
        if "loss" in logs:
            sums = self._sums.clone()
            if self.accelerator.num_processes > 1:
                sums = self.accelerator.reduce(sums.to(self.args.device), reduction="sum")
            means = (sums / max(self.state.global_step - self._logged_step, 1)).tolist()
            trained = isinstance(self.model, TokenCritic) and self.model.language_model is not None
            logs |= {name: value for name, value in zip(_LOGGED, means, strict=True) if trained or name != "bc_loss"}
            self._sums.zero_()
            self._logged_step = self.state.global_step
        super().log(logs, start_time)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        """Each tensor once: a model may tie its output layer to its embeddings."""
        found = self.model.state_dict() if state_dict is None else state_dict
        kept: dict[int, tuple[str, Tensor]] = {}
        for name, value in found.items():
            kept.setdefault(value.data_ptr(), (name, value.contiguous()))
        super()._save(output_dir, state_dict=dict(kept.values()))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """What `_save` wrote; a tensor of two names comes back under both."""
        load_model(self.model if model is None else model, Path(resume_from_checkpoint) / SAFE_WEIGHTS_NAME)


class _TargetUpdates(TrainerCallback):  # type: ignore[misc]
    """Moves the target critics after every update."""

    def __init__(self, critic: TokenCritic) -> None:
        self._critic = critic

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._critic.update_targets()


def _optimizer(critic: TokenCritic, config: TokenIQLConfig | TokenCQLConfig) -> torch.optim.Optimizer:
    groups: list[dict[str, Any]] = [{"params": list(critic.heads.parameters()), "lr": config.learning_rate}]
    if critic.language_model is not None:
        trained = [value for value in critic.language_model.parameters() if value.requires_grad]
        groups.append({"params": trained, "lr": config.policy_learning_rate})
    betas = (0.9, config.adam_beta2)
    return torch.optim.AdamW(groups, betas=betas, weight_decay=config.weight_decay, fused=True)
