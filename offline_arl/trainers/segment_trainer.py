"""The loss of weighted cloning on transformers' Trainer, and counts of what was trained on in its logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from offline_arl.datasets.collate import IGNORED_LABEL, SegmentBatch, StepWeights, collate_segments
from offline_arl.datasets.packing import collate_packed
from offline_arl.datasets.segments import SegmentRow
from offline_arl.models.policy import logits_at, selected_logits
from offline_arl.objectives import masked_mean, predicting_mask, selected_token_logprobs, weighted_nll
from offline_arl.objectives.logprobs import scored_mask
from offline_arl.trainers.update_trainer import UpdateTrainer

_COUNTS = 5  # tokens that carry weight, their weights, weights squared, tokens, tokens with padding


class SegmentTrainer(UpdateTrainer):
    """The loss of `trainers.weighted_bc`.

    Args:
        segments: The rows.
        step_weights: Weight of each (trajectory_id, step); None weighs every step 1.
        pad_token_id: Fills rows.
        share_prefix: Encode what all rows of a batch start with once, where the model and one process allow it.
        packing: None pads; "rows" packs segments into rows, "row" into a single one (see `models.packing`).
        kwargs: Those of `UpdateTrainer`.
    """

    def __init__(
        self, *, segments: Sequence[SegmentRow], step_weights: StepWeights | None, pad_token_id: int,
        share_prefix: bool, packing: str | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(rows=segments, collate=self._collate, **kwargs)
        # Have Trainer count the labels of every batch, also for models whose forward takes no loss arguments.
        self.model_accepts_loss_kwargs = True
        self._step_weights = step_weights
        self._pad_token_id = pad_token_id
        self._share_prefix = share_prefix
        self._packing = packing
        self._counted = torch.zeros(_COUNTS, dtype=torch.float64)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """This micro-batch's part of the weighted loss over the whole update."""
        batch = SegmentBatch(**{name: value for name, value in inputs.items() if name != "labels"})
        mask = scored_mask(batch.loss_mask)
        self._count(batch, mask)
        logprobs = selected_token_logprobs(self._logits(model, batch, mask), batch.input_ids, mask)
        losses = weighted_nll(logprobs, batch.token_weights, mask)
        denominator = mask.sum() if num_items_in_batch is None else num_items_in_batch
        loss = masked_mean(losses, mask, denominator=denominator)
        if self.args.average_tokens_across_devices and num_items_in_batch is not None:
            loss = loss * self.accelerator.num_processes  # undo the mean over processes of the gradients
        return (loss, {"logprobs": logprobs}) if return_outputs else loss

    @property
    def trained_tokens(self) -> float:
        """Tokens with weight up to the last log line, since the beginning of the run, also before an interruption."""
        return self._last_line()["trained_tokens"]

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add what was trained on to a log line with a loss.

        `trained_tokens`: tokens with weight, since the beginning of the run. `tokens_per_update`: their number in one
        update. `effective_tokens_per_update`: as many tokens of equal weight would be worth the same (Kish), less
        where few steps have most of the weight. `padding_fraction`: of the tokens that were computed.
        """
        if "loss" in logs:
            last = self._last_line()
            updates = self.state.global_step - last["step"]
            counted = self._counted.clone()
            if self.accelerator.num_processes > 1:
                counted = self.accelerator.reduce(counted.to(self.args.device), reduction="sum")
            count, weight, squared, tokens, computed = counted.tolist()
            self._counted.zero_()
            logs |= {
                "trained_tokens": last["trained_tokens"] + count,
                "tokens_per_update": count / updates,
                "effective_tokens_per_update": weight * weight / max(squared, 1e-30) / updates,
                "padding_fraction": 1 - tokens / max(computed, 1.0),
            }
        super().log(logs, start_time)

    def _last_line(self) -> dict[str, float]:
        lines: list[dict[str, float]] = [entry for entry in self.state.log_history if "trained_tokens" in entry]
        return lines[-1] if lines else {"step": 0, "trained_tokens": 0.0}

    def _logits(self, model: Any, batch: SegmentBatch, mask: torch.Tensor) -> torch.Tensor:
        predicting = predicting_mask(mask)
        if batch.position_ids is not None:
            # Without an attention mask, models make a block-diagonal one of positions that start anew.
            return logits_at(
                model, predicting, input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False
            )
        shared = batch.shared_prefix if self._share_prefix and self.accelerator.num_processes == 1 else 0
        return selected_logits(model, batch.input_ids, batch.attention_mask, predicting, shared_prefix=shared)

    def _count(self, batch: SegmentBatch, mask: torch.Tensor) -> None:
        weights = batch.token_weights[mask]
        counts = torch.stack([mask.sum(), weights.sum(), weights.square().sum(), batch.attention_mask.sum()])
        self._counted += torch.tensor([*counts.tolist(), mask.numel()], dtype=torch.float64)

    def _collate(self, rows: list[SegmentRow]) -> dict[str, Any]:
        if not rows:
            batch = _nothing(self._pad_token_id)
        elif self._packing is None:
            batch = collate_segments(rows, pad_token_id=self._pad_token_id, step_weights=self._step_weights)
        else:
            batch = collate_packed(
                rows,
                pad_token_id=self._pad_token_id,
                step_weights=self._step_weights,
                single_row=self._packing == "row",
            )
        labels = torch.where(scored_mask(batch.loss_mask), batch.input_ids, IGNORED_LABEL)
        return {**vars(batch), "labels": labels}


def _nothing(pad_token_id: int) -> SegmentBatch:
    """A batch without anything to train on, for a process that has no rows left in an update."""
    ids, off = torch.full((1, 2), pad_token_id), torch.zeros((1, 2), dtype=torch.bool)
    return SegmentBatch(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        action_mask=off,
        step_index=torch.full((1, 2), -1),
        token_weights=torch.zeros((1, 2)),
        shared_prefix=0,
    )
