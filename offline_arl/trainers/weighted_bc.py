"""Weighted behavior cloning of language-model policies: BC with weights of 1, advantage-weighted regression otherwise.

The loss of an update is

    sum over tokens of weight(step of t) * -log p(t)  /  number of action tokens that carry weight

over the global batch (all gradient-accumulation steps and processes), so the split into micro-batches changes
nothing. The weights are not normalized by their sum: a batch of good decisions moves the policy more than a batch
of bad ones, as in Kostrikov et al. 2021, equation 7. A step of weight 0 is masked: neither computed nor counted.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer, TrainingArguments

from offline_arl.datasets.collate import (
    IGNORED_LABEL,
    SegmentBatch,
    StepWeights,
    TokenBudgetSampler,
    collate_segments,
    length_sorted_batches,
    row_token_weights,
)
from offline_arl.datasets.segments import SegmentDataset, SegmentRow
from offline_arl.errors import DataError, UsageError
from offline_arl.models.policy import selected_logits
from offline_arl.objectives import masked_mean, predicting_mask, selected_token_logprobs, weighted_nll
from offline_arl.objectives.logprobs import scored_mask
from offline_arl.trainers.checkpoint import TrainingRecord, save_checkpoint
from offline_arl.trainers.config import WeightedBCConfig
from offline_arl.trainers.optimizers import MuonWithAdamW

_logger = logging.getLogger(__name__)


class SegmentTrainer(Trainer):  # type: ignore[misc]
    """transformers' Trainer on segment datasets: token-budget batches and the weighted loss."""

    loss_is_scaled_for_ga = True  # the denominator is the global batch's

    def __init__(
        self, *, segments: SegmentDataset, sampler: TokenBudgetSampler, step_weights: StepWeights | None,
        pad_token_id: int, share_prefix: bool, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(train_dataset=segments, data_collator=self._collate, **kwargs)
        self.remove_callback(PrinterCallback)  # standard output belongs to the caller
        # Have Trainer count the labels of every batch, also for models whose forward takes no loss arguments.
        self.model_accepts_loss_kwargs = True
        self._sampler = sampler
        self._step_weights = step_weights
        self._pad_token_id = pad_token_id
        self._share_prefix = share_prefix

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Batches in the sampler's order."""
        loader = DataLoader(
            self.train_dataset,
            batch_sampler=self._sampler,
            collate_fn=self._collate,
            generator=torch.Generator().manual_seed(self.args.seed),
        )
        prepared: DataLoader[Any] = self.accelerator.prepare(loader)
        return prepared

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """This micro-batch's part of the weighted loss over the global batch."""
        batch = SegmentBatch(**{name: value for name, value in inputs.items() if name != "labels"})
        mask = scored_mask(batch.loss_mask)
        shared = self.accelerator.num_processes == 1 and self._share_prefix
        logits = selected_logits(
            model,
            batch.input_ids,
            batch.attention_mask,
            predicting_mask(mask),
            shared_prefix=batch.shared_prefix if shared else 0,
        )
        logprobs = selected_token_logprobs(logits, batch.input_ids, mask)
        losses = weighted_nll(logprobs, batch.token_weights, mask)
        denominator = mask.sum() if num_items_in_batch is None else num_items_in_batch
        loss = masked_mean(losses, mask, denominator=denominator)
        if self.args.average_tokens_across_devices and num_items_in_batch is not None:
            loss = loss * self.accelerator.num_processes  # undo the mean over processes of the gradients
        return (loss, {"logprobs": logprobs}) if return_outputs else loss

    def _collate(self, rows: list[SegmentRow]) -> dict[str, Any]:
        batch = collate_segments(rows, pad_token_id=self._pad_token_id, step_weights=self._step_weights)
        labels = torch.where(scored_mask(batch.loss_mask), batch.input_ids, IGNORED_LABEL)
        return {**vars(batch), "labels": labels}


def train_weighted_bc(
    model: Any,
    tokenizer: Any,
    dataset: SegmentDataset,
    config: WeightedBCConfig,
    output_dir: str | Path,
    *,
    step_weights: StepWeights | None = None,
    seed: int,
    algorithm: str = "bc",
    resume_from_checkpoint: str | Path | None = None,
) -> TrainingRecord:
    """Clone the steps of a dataset into a policy and save it.

    Args:
        model: The causal language model to train, in place.
        tokenizer: Its tokenizer, saved with it.
        dataset: A segment dataset of any kind, rendered with this tokenizer.
        config: How to train.
        output_dir: Where the policy is saved; checkpoints, if asked for, in its sibling `<name>.checkpoints`.
        step_weights: Weight of each (trajectory_id, step); None clones every step alike. Segments whose steps all
            weigh 0 are left out.
        seed: Of batch order, dropout and adapters.
        algorithm: Name for the training record.
        resume_from_checkpoint: A checkpoint folder of an earlier run with the same arguments.

    Returns:
        The record saved beside the policy; its metrics hold the mean loss of the run and of its last log line,
        updates, action tokens and seconds.

    Raises:
        DataError: A step has no weight, or no step has a weight above 0.
        UsageError: Adapters are asked for and peft is missing.
    """
    output_dir = Path(output_dir)
    rows = _weighted_rows(dataset, step_weights)
    lengths = dataset.lengths[rows]
    batches = TokenBudgetSampler(lengths, max_tokens=config.tokens_per_batch, epochs=config.epochs, seed=seed)
    sampler = _limited(batches, config, rows)
    with _preserved_random_state():
        trained = _with_adapter(model, config, seed) if config.lora_rank is not None else model
        trainer = SegmentTrainer(
            model=trained,
            args=_arguments(config, output_dir, seed, len(sampler), trained),
            segments=dataset,
            sampler=sampler,
            step_weights=step_weights,
            pad_token_id=_pad_token_id(tokenizer),
            share_prefix=config.share_prefix and not config.gradient_checkpointing,
            optimizers=(_optimizer(config, trained), None),
        )
        result = trainer.train(
            resume_from_checkpoint=None if resume_from_checkpoint is None else str(resume_from_checkpoint)
        )
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    metrics = {
        "loss": float(result.training_loss),
        "last_loss": float(logged[-1]) if logged else float(result.training_loss),
        "updates": float(trainer.state.global_step),
        "tokens": float(sum(int(dataset.lengths[row]) for batch in sampler for row in batch)),
        "seconds": float(result.metrics["train_runtime"]),
    }
    if trained is not model:
        trained.merge_and_unload()
    model.eval()
    return save_checkpoint(
        model,
        tokenizer,
        output_dir,
        algorithm=algorithm,
        config=config.model_dump(mode="json"),
        seed=seed,
        dataset_fingerprint=dataset.manifest.fingerprint,
        dataset_sha256=dataset.manifest.content_sha256,
        metrics=metrics,
    )


def dataset_nll(
    model: Any, tokenizer: Any, dataset: SegmentDataset, *, tokens_per_batch: int = 8_192
) -> tuple[float, int]:
    """Mean negative log-likelihood per action token of a dataset, in nats, and the number of tokens."""
    total, count = 0.0, 0
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        for indices in length_sorted_batches(dataset.lengths, max_tokens=tokens_per_batch):
            batch = collate_segments([dataset[index] for index in indices], pad_token_id=_pad_token_id(tokenizer))
            batch = batch.to(model.device)
            mask = scored_mask(batch.action_mask)
            logits = selected_logits(
                model, batch.input_ids, batch.attention_mask, predicting_mask(mask), shared_prefix=batch.shared_prefix
            )
            total -= selected_token_logprobs(logits, batch.input_ids, mask).double().sum().item()
            count += int(mask.sum())
    model.train(was_training)
    return total / count, count


def _weighted_rows(dataset: SegmentDataset, step_weights: StepWeights | None) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Indices of the rows that carry weight."""
    carried = np.array([bool((row_token_weights(row, step_weights) > 0).any()) for row in dataset])
    rows = np.flatnonzero(carried)
    if len(rows) == 0:
        raise DataError("no step has a weight above 0: nothing to train on")
    if len(rows) < len(dataset):
        _logger.info("%d of %d segments carry no weight and are left out", len(dataset) - len(rows), len(dataset))
    return rows


def _limited(
    batches: TokenBudgetSampler, config: WeightedBCConfig, rows: np.ndarray[Any, np.dtype[np.int64]]
) -> TokenBudgetSampler:
    """The sampler with row numbers of the dataset, cut to `max_steps` updates."""
    limit = None if config.max_steps is None else config.max_steps * config.gradient_accumulation_steps
    batches.batches = [[int(rows[index]) for index in batch] for batch in batches.batches[:limit]]
    return batches


def _arguments(config: WeightedBCConfig, output_dir: Path, seed: int, n_batches: int, model: Any) -> TrainingArguments:
    updates = -(-n_batches // config.gradient_accumulation_steps)
    return TrainingArguments(
        output_dir=str(output_dir.parent / f"{output_dir.name}.checkpoints"),
        num_train_epochs=1,  # the sampler lays out all epochs
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        learning_rate=config.learning_rate,
        lr_scheduler_type=config.schedule,
        warmup_steps=round(config.warmup_fraction * updates),
        weight_decay=config.weight_decay,
        adam_beta2=config.adam_beta2,
        max_grad_norm=config.max_gradient_norm,
        optim="adamw_torch_fused",
        bf16=config.precision == "bfloat16",
        gradient_checkpointing=config.gradient_checkpointing,
        save_strategy="no" if config.save_steps is None else "steps",
        save_steps=config.save_steps or 500,
        save_total_limit=2,
        logging_steps=config.logging_steps,
        report_to="none",
        disable_tqdm=not config.progress,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        accelerator_config={"even_batches": False},
        use_cpu=next(model.parameters()).device.type == "cpu",
        seed=seed,
    )


def _optimizer(config: WeightedBCConfig, model: Any) -> MuonWithAdamW | None:
    """None: the Trainer makes the AdamW of its arguments."""
    if config.optimizer == "adamw":
        return None
    return MuonWithAdamW(
        model,
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
        adam_beta2=config.adam_beta2,
    )


def _with_adapter(model: Any, config: WeightedBCConfig, seed: int) -> Any:
    from offline_arl.optional import require

    peft = require("peft", extra="train")
    torch.manual_seed(seed)  # inside _preserved_random_state
    return peft.get_peft_model(
        model,
        peft.LoraConfig(
            r=config.lora_rank, lora_alpha=config.lora_alpha, target_modules="all-linear", task_type="CAUSAL_LM"
        ),
    )


def _pad_token_id(tokenizer: Any) -> int:
    pad: int | None = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    if pad is None:
        raise UsageError("the tokenizer has neither a pad nor an end-of-sequence token; set tokenizer.pad_token")
    return pad


@contextmanager
def _preserved_random_state() -> Iterator[None]:
    """Trainer seeds every global generator; give the caller's state back afterwards."""
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002
