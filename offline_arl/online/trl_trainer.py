"""The one place where TRL's `GRPOTrainer` is subclassed.

Two methods are wrapped, and each calls the original: `compute_loss` (public) leaves out rows without a trained
token, `_generate_and_score_completions` (private) weighs advantages when sampler and trainer disagree. The version
of TRL is pinned and `tests/contracts/test_trl_contract.py` checks what is relied on.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from trl import GRPOConfig as TrlConfig
from trl import GRPOTrainer

if TYPE_CHECKING:
    from offline_arl.online.config import GrpoConfig

_ROW_KEYS = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "tool_mask", "advantages")
_COMPLETION_KEYS = ("completion_ids", "completion_mask", "tool_mask")
_LOGPROB_KEYS = ("old_per_token_logps", "ref_per_token_logps", "sampling_per_token_logps")


class OnlineTrainer(GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer with idle rows left out of the loss and, once `correct_ratios` is set, importance weights."""

    correct_ratios = False
    importance_cap = 2.0

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """TRL's loss over the rows that train something, cut to their own length; its value is unchanged."""
        busy, share = without_idle_rows(inputs)
        loss: Tensor = super().compute_loss(model, busy, return_outputs, num_items_in_batch)
        # Only dr_grpo divides by the number of rows; dapo divides by the tokens of the whole batch.
        if self.loss_type == "dr_grpo":
            loss = loss * share
        return loss

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if self.correct_ratios:
            weights = self._importance_weights(output)
            output["advantages"] = output["advantages"][:, None] * weights
        return output

    def _importance_weights(self, output: dict[str, Any]) -> Tensor:
        """[B, T] min(trainer probability / sampler probability, cap) of each completion token.

        A weight of at least 0 times the advantage equals TRL's own token-level correction on clipped losses.
        """
        with torch.no_grad():
            logprobs, _, _ = self._get_per_token_logps_and_entropies(
                self.model,
                torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1),
                torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1),
                output["completion_ids"].shape[1],
                batch_size=self.args.per_device_train_batch_size,
            )
        return (logprobs - output["sampling_per_token_logps"]).exp().clamp(max=self.importance_cap)


def without_idle_rows(inputs: dict[str, Any]) -> tuple[dict[str, Any], float]:
    """Leave out rows without a trained token and columns of padding alone.

    Groups without variance are masked whole, which is most of them once a policy is good: encoding them would cost
    as much as the rest and change nothing.

    Returns:
        The smaller batch, and the share of rows kept. Where no row trains anything, one is kept.
    """
    trained = inputs["completion_mask"] * inputs["tool_mask"]
    rows = trained.any(dim=1)
    if not rows.any():
        rows[0] = True
    width = int(trained[rows].any(dim=0).nonzero().max()) + 1 if trained[rows].any() else 1
    first = int(inputs["prompt_mask"][rows].any(dim=0).nonzero().min())
    busy = dict(inputs)
    for key in (*_ROW_KEYS, *_LOGPROB_KEYS):
        if key in inputs:
            busy[key] = inputs[key][rows]
    for key in ("prompt_ids", "prompt_mask"):
        busy[key] = busy[key][:, first:]
    for key in (*_COMPLETION_KEYS, *_LOGPROB_KEYS):
        if key in busy:
            busy[key] = busy[key][:, :width]
    if busy["advantages"].dim() == 2:
        busy["advantages"] = busy["advantages"][:, :width]
    return busy, float(rows.float().mean())


def trl_arguments(config: GrpoConfig, output_dir: Path, *, seed: int) -> TrlConfig:
    """Our configuration in TRL's words. Rollouts are ours, so TRL's own vLLM stays off; nothing is logged or saved."""
    episodes = config.prompts_per_step * config.group_size
    rows = min(config.rows_per_batch, episodes)
    while episodes % rows:
        rows -= 1
    return TrlConfig(
        output_dir=str(output_dir),
        max_steps=config.steps,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=episodes // rows,
        num_generations=config.group_size,
        max_completion_length=config.max_total_tokens,
        learning_rate=config.learning_rate,
        lr_scheduler_type=config.schedule,
        warmup_steps=config.warmup_steps,
        max_grad_norm=config.max_gradient_norm,
        weight_decay=0.0,
        beta=config.kl_coefficient,
        loss_type=config.loss_type,
        scale_rewards="none" if config.loss_type == "dr_grpo" else "group",
        entropy_coef=config.entropy_coefficient,
        temperature=config.temperature,
        use_vllm=False,
        bf16=config.dtype == "bfloat16",
        model_init_kwargs={"dtype": config.dtype},
        gradient_checkpointing=False,
        disable_dropout=True,
        seed=seed,
        shuffle_dataset=False,
        remove_unused_columns=False,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        logging_strategy="steps",
        logging_steps=1,
        log_completions=False,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
