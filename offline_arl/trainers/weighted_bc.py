"""Weighted behavior cloning of language-model policies: BC with weights of 1, advantage-weighted regression otherwise.

The loss of an update is

    sum over tokens of weight(step of t) * -log p(t)  /  number of action tokens that carry weight

over the global batch (all gradient-accumulation steps and processes), so the split into micro-batches changes
nothing. The weights are not normalized by their sum: a batch of good decisions moves the policy more than a batch
of bad ones, as in Kostrikov et al. 2021, equation 7. A step of weight 0 is masked: neither computed nor counted.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from offline_arl.datasets.collate import (
    StepWeights,
    TokenBudgetSampler,
    collate_segments,
    length_sorted_batches,
    row_token_weights,
)
from offline_arl.datasets.rehearsal import Rehearsal, RehearsedSegments
from offline_arl.datasets.segments import SegmentDataset
from offline_arl.errors import DataError
from offline_arl.models.packing import packs_exactly, single_row
from offline_arl.models.policy import selected_logits, without_progress_bars
from offline_arl.objectives import predicting_mask, selected_token_logprobs
from offline_arl.objectives.logprobs import scored_mask
from offline_arl.trainers.checkpoint import TrainingRecord
from offline_arl.trainers.config import WeightedBCConfig
from offline_arl.trainers.model_checks import check_fits
from offline_arl.trainers.random_state import preserved_random_state
from offline_arl.trainers.resuming import weights_digest
from offline_arl.trainers.run import ResumeFrom, RunFolders, TrainingRun, pad_token_id
from offline_arl.trainers.segment_trainer import SegmentTrainer
from offline_arl.trainers.update_trainer import Report

_logger = logging.getLogger(__name__)


def train_weighted_bc(
    model: Any,
    tokenizer: Any,
    dataset: SegmentDataset,
    config: WeightedBCConfig,
    output_dir: str | Path,
    *,
    step_weights: StepWeights | None = None,
    row_frequencies: NDArray[np.float64] | None = None,
    rehearsal: Rehearsal | None = None,
    new_tokens: Sequence[int] = (),
    seed: int,
    algorithm: str = "bc",
    resume_from_checkpoint: ResumeFrom = None,
    folders: RunFolders | None = None,
    report: Report | None = None,
) -> TrainingRecord:
    """Clone the steps of a dataset into a policy and save it.

    Under `accelerate launch` (or torchrun) every process calls this with the same arguments; they share out each
    update, and the first one saves. With dropout each process draws its own.

    Args:
        model: The causal language model to train, in place.
        tokenizer: Its tokenizer, saved with it.
        dataset: A segment dataset of any kind, rendered with this tokenizer.
        config: How to train.
        output_dir: Where the policy is saved; with adapters they are merged into it, and kept in its folder `adapter`.
        step_weights: Weight of each (trajectory_id, step); None clones every step alike. Segments whose steps all
            weigh 0 are left out.
        row_frequencies: [rows] how often each row of the dataset is seen in an epoch on average; None: once.
        rehearsal: Rows of another dataset that are cloned among them, with weight 1.
        new_tokens: Tokens that the model has not met: their embeddings train also where adapters do (`lora_rank`).
        seed: Of batch order, dropout and adapters.
        algorithm: Name for the training record.
        resume_from_checkpoint: A checkpoint folder of an earlier run with the same arguments. "latest": the newest
            complete one in the folder of checkpoints if it is of such a run, else the beginning.
        folders: Where checkpoints (with `save_steps`) and TensorBoard's events lie; None: beside the policy.
        report: Told (updates done, updates in all).

    Returns:
        The record saved beside the policy; its metrics hold the mean loss of the run and of its last log line,
        updates, tokens, whether rows were packed, and seconds and tokens per second of this call.

    Raises:
        DataError: A dataset is empty or does not fit the model or the other, a step has no weight, no step has a
            weight above 0, or training diverged.
        UsageError: A checkpoint is of another run, a package is missing, or the memory does not suffice.
    """
    output_dir = Path(output_dir)
    check_fits(model, dataset)
    rows = _weighted_rows(dataset, step_weights)
    n_learned = len(rows)
    times = None if row_frequencies is None else row_frequencies[rows] * config.epochs
    segments: SegmentDataset | RehearsedSegments = dataset
    identity: dict[str, Any] = {}
    rehearsed: str | None = None
    if rehearsal is not None:
        segments = RehearsedSegments(dataset, rehearsal)
        check_fits(model, rehearsal.dataset)
        times = np.full(n_learned, config.epochs) if times is None else times
        times = np.concatenate([times, segments.times(float(times @ dataset.lengths[rows]))])
        rows = np.concatenate([rows, np.arange(len(dataset), len(segments))])
        step_weights = segments.step_weights(step_weights)
        rehearsed = rehearsal.dataset.manifest.content_sha256
        identity["rehearsal"] = [rehearsed, rehearsal.fraction]
    packing = _packing(model, config)
    seen, epochs = (rows, config.epochs) if times is None else (_repeated(rows, times, seed=seed), 1.0)
    batches = _batches(segments.lengths, seen, config, epochs=epochs, seed=seed, packed=packing is not None)
    run = TrainingRun(
        config,
        model,
        batches,
        folders=folders or RunFolders.beside(output_dir),
        seed=seed,
        resume_from=resume_from_checkpoint,
        algorithm=algorithm,
        dataset=dataset.manifest,
        step_weights=weights_digest(step_weights),
        packing=packing,
        new_tokens=list(new_tokens),
        **identity,
    )
    with preserved_random_state(), without_progress_bars():
        trained = run.adapted(model, new_tokens)
        trainer = SegmentTrainer(
            segments=segments,
            step_weights=step_weights,
            packing=packing,
            epochs=sum(row < len(dataset) for batch in batches for row in batch) / n_learned,
            **run.trainer_arguments(trained, tokenizer, report),
        )
        metrics = run.train(trainer)
    tokens = float(sum(int(segments.lengths[row]) for batch in batches for row in batch))
    begun = 0 if run.checkpoint is None else int(run.checkpoint.name.removeprefix("checkpoint-"))
    computed = tokens * (1 - begun / metrics["updates"])
    metrics |= {
        "trained_tokens": trainer.trained_tokens,
        "tokens": tokens,
        "tokens_per_second": computed / max(metrics["seconds"], 1e-9),
        "packed": float(packing is not None),
    }
    return run.save(trained, model, tokenizer, output_dir, metrics=metrics, rehearsal_sha256=rehearsed)


def dataset_nll(
    model: Any, tokenizer: Any, dataset: SegmentDataset, *, tokens_per_batch: int = 8_192
) -> tuple[float, int]:
    """Mean negative log-likelihood per action token of a dataset, in nats, and the number of tokens.

    Raises:
        DataError: The dataset has no action token, or does not fit the model.
    """
    check_fits(model, dataset)
    total, count = 0.0, 0
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        for indices in length_sorted_batches(dataset.lengths, max_tokens=tokens_per_batch):
            batch = collate_segments([dataset[index] for index in indices], pad_token_id=pad_token_id(tokenizer))
            batch = batch.to(model.device)
            mask = scored_mask(batch.action_mask)
            logits = selected_logits(
                model, batch.input_ids, batch.attention_mask, predicting_mask(mask), shared_prefix=batch.shared_prefix
            )
            total -= selected_token_logprobs(logits, batch.input_ids, mask).double().sum().item()
            count += int(mask.sum())
    model.train(was_training)
    if count == 0:
        raise DataError("the dataset has no action token to score")
    return total / count, count


def _weighted_rows(dataset: SegmentDataset, step_weights: StepWeights | None) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Indices of the rows that carry weight."""
    carried = np.array([bool((row_token_weights(row, step_weights)[1:] > 0).any()) for row in dataset], dtype=np.bool_)
    rows = np.flatnonzero(carried)
    if len(rows) == 0:
        raise DataError("no step has a weight above 0: nothing to train on")
    if len(rows) < len(dataset):
        _logger.info("%d of %d segments carry no weight and are left out", len(dataset) - len(rows), len(dataset))
    return rows


def _repeated(
    rows: np.ndarray[Any, np.dtype[np.int64]], times: NDArray[np.float64], *, seed: int
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Each row as often as the whole run sees it: `times`, rounded up or down at random."""
    if not (np.isfinite(times).all() and (times >= 0).all()):
        raise DataError("a row is to be seen a number of times that is negative or no number; give other frequencies")
    offsets = np.random.default_rng([seed, 1]).random(len(rows))
    repeated = np.repeat(rows, np.floor(times + offsets).astype(np.int64))
    if len(repeated) == 0:
        raise DataError("no row of the dataset is seen even once; train for more epochs")
    return repeated


def _packing(model: Any, config: WeightedBCConfig) -> Literal["rows", "row"] | None:
    """How to pack; None where it is not wanted, or not exact for this model."""
    if not config.packing:
        return None
    if not packs_exactly(model):
        _logger.warning(
            "%s with %s attention does not keep packed segments apart: rows are padded instead; "
            "load the model with attn_implementation='sdpa' if it has that",
            type(model).__name__, getattr(model.config, "_attn_implementation", "its own"),
        )  # fmt: skip
        return None
    return "row" if single_row(model) else "rows"


def _batches(
    lengths: NDArray[np.int64],
    rows: np.ndarray[Any, np.dtype[np.int64]],
    config: WeightedBCConfig,
    *,
    epochs: float,
    seed: int,
    packed: bool,
) -> list[list[int]]:
    """The batches of the whole run, as row numbers of the dataset, cut to `max_steps` updates."""
    sampler = TokenBudgetSampler(
        lengths[rows], max_tokens=config.tokens_per_batch, epochs=epochs, seed=seed, packed=packed
    )
    limit = None if config.max_steps is None else config.max_steps * config.gradient_accumulation_steps
    return [[int(rows[index]) for index in batch] for batch in sampler.batches[:limit]]
