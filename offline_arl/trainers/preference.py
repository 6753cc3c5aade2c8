"""Preference training on transformers' Trainer: DPO, cDPO, IPO and SimPO on pairs, KTO on labeled answers.

Token ids and masks come from the dataset as they are, so tool output and user text inside a completion of several
turns get no gradient. The reference's log-probabilities are computed once, before training. A pair's prompt is encoded
once for both sides. The loss of an update is

    sum over rows of weight(row) * loss(row)  /  number of rows

over the global batch, so the split into micro-batches and processes changes nothing; KTO's reference point is that of
the global batch too.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from offline_arl.datasets.collate import TokenBudgetSampler
from offline_arl.datasets.pairs import PairDataset, PairRow, UnpairedDataset
from offline_arl.datasets.preference_batches import (
    Side,
    answer_side,
    mismatched_partners,
    pair_costs,
    pair_sides,
    steady_batches,
)
from offline_arl.errors import DataError, UsageError
from offline_arl.models.policy import policy_fingerprint
from offline_arl.trainers.checkpoint import TrainingRecord
from offline_arl.trainers.model_checks import check_fits
from offline_arl.trainers.preference_config import (
    AnyPreferenceConfig,
    DPOConfig,
    IPOConfig,
    KTOConfig,
    PairConfig,
    SimPOConfig,
)
from offline_arl.trainers.preference_reference import answer_reference, pair_reference
from offline_arl.trainers.preference_trainers import KTOTrainer, PairTrainer, PreferenceTrainer
from offline_arl.trainers.random_state import preserved_random_state
from offline_arl.trainers.run import ResumeFrom, RunFolders, TrainingRun, pad_token_id
from offline_arl.trainers.update_trainer import Report

_logger = logging.getLogger(__name__)

MONITOR_NAME = "monitors.jsonl"
_ALGORITHMS: dict[type[AnyPreferenceConfig], str] = {
    DPOConfig: "dpo", IPOConfig: "ipo", SimPOConfig: "simpo", KTOConfig: "kto",
}  # fmt: skip


def train_preferences(
    model: Any,
    tokenizer: Any,
    dataset: PairDataset | UnpairedDataset,
    config: AnyPreferenceConfig,
    output_dir: str | Path,
    *,
    seed: int,
    reference_model: Any = None,
    reference_folder: str | Path | None = None,
    resume_from_checkpoint: ResumeFrom = None,
    folders: RunFolders | None = None,
    report: Report | None = None,
) -> TrainingRecord:
    """Train a policy on preferences and save it.

    Args:
        model: The causal language model to train, in place.
        tokenizer: Its tokenizer, saved with it.
        dataset: Pairs for DPO, IPO and SimPO, labeled answers for KTO, rendered with this tokenizer.
        config: Which objective, and how to train.
        output_dir: Where the policy is saved, with `monitors.jsonl` (a line for each log line of training).
        seed: Of batch order and adapters.
        reference_model: The frozen reference; None takes the policy as it is at the start. It is not needed any more
            once training begins.
        reference_folder: Where the reference's log-probabilities are kept for other runs on the same data; None
            computes them for this run alone.
        resume_from_checkpoint: A checkpoint folder of an earlier run with the same arguments. "latest": the newest
            complete one in the folder of checkpoints if it is of such a run, else the beginning.
        folders: Where checkpoints (with `save_steps`) and TensorBoard's events lie; None: beside the policy.
        report: Told (updates done, updates in all).

    Returns:
        The record saved beside the policy; its metrics hold the mean loss of the run, the monitors at
        the end, updates, trained tokens and seconds, and for each alarm the number of log lines that raised it.

    Raises:
        UsageError: The dataset is of the wrong kind, a checkpoint is of another run, a package is missing, or the
            memory does not suffice.
        DataError: No row has a weight above 0, one has a weight that is no number or a side without action tokens, KTO
            has labels of one kind alone, the dataset does not fit the model, or training diverged.
    """
    output_dir = Path(output_dir)
    rows = _rows_with_weight(dataset, config)
    _check_sides(rows)
    check_fits(model, _Sides(rows))
    reference = {
        "model": model if reference_model is None else reference_model,
        "pad_token_id": pad_token_id(tokenizer),
        "tokens_per_batch": config.tokens_per_batch,
        "precision": config.precision,
        "folder": None if reference_folder is None else Path(reference_folder),
    }
    batches, make = _prepared(rows, config, reference, seed)
    limit = None if config.max_steps is None else config.max_steps * config.gradient_accumulation_steps
    run = TrainingRun(
        config,
        model,
        batches[:limit],
        folders=folders or RunFolders.beside(output_dir),
        seed=seed,
        resume_from=resume_from_checkpoint,
        algorithm=_ALGORITHMS[type(config)],
        dataset=dataset.manifest,
        reference=None if reference_model is None else policy_fingerprint(reference_model),
    )
    with preserved_random_state():
        trained = run.adapted(model)
        trainer = make(rows=rows, **run.trainer_arguments(trained, tokenizer, report))
        metrics = run.train(trainer)
    record = run.save(
        trained,
        model,
        tokenizer,
        output_dir,
        metrics={
            **metrics,
            **trainer.monitor.at_the_end(),
            **{f"alarm/{kind}": float(number) for kind, number in trainer.monitor.alarms.items()},
            "trained_tokens": float(sum(_scored_tokens(rows[index]) for batch in batches[:limit] for index in batch)),
        },
    )
    if trainer.is_world_process_zero():
        lines = [json.dumps(entry) + "\n" for entry in trainer.state.log_history if "loss" in entry]
        (output_dir / MONITOR_NAME).write_text("".join(lines), encoding="utf-8")
    return record


def _prepared(
    rows: Sequence[Any], config: AnyPreferenceConfig, reference: dict[str, Any], seed: int
) -> tuple[list[list[int]], Callable[..., PreferenceTrainer]]:
    """The batches of the run, and what makes the trainer with the reference's values."""
    if isinstance(config, KTOConfig):
        _check_labels(rows, config)
        lengths = np.array([len(row) for row in rows])
        steady = steady_batches(lengths, max_tokens=config.tokens_per_batch, epochs=config.epochs, seed=seed)
        partners = mismatched_partners(rows, steady.batches).tolist()
        answers = answer_reference(rows=rows, partners=partners, **reference)
        return steady.schedule, partial(KTOTrainer, config=config, partners=partners, reference=answers)
    assert isinstance(config, PairConfig)
    costs = pair_costs(rows, share_prefix=config.share_prefix)
    batches = TokenBudgetSampler(costs, max_tokens=config.tokens_per_batch, epochs=config.epochs, seed=seed).batches
    needed = not isinstance(config, SimPOConfig) or config.monitor_reference
    pairs = pair_reference(rows=rows, **reference) if needed else None
    return batches, partial(PairTrainer, config=config, reference=pairs)


def _rows_with_weight(dataset: PairDataset | UnpairedDataset, config: AnyPreferenceConfig) -> Sequence[Any]:
    """The rows that carry weight."""
    kind = UnpairedDataset if isinstance(config, KTOConfig) else PairDataset
    if not isinstance(dataset, kind):
        raise UsageError(
            f"{_ALGORITHMS[type(config)]} trains on a dataset of kind {kind.kind}, this one is of kind {dataset.kind}"
        )
    weights = dataset.column("weight")
    names = dataset.column("pair_id" if isinstance(dataset, PairDataset) else "row_id")
    for name, weight in zip(names, weights, strict=True):
        if not 0.0 <= weight < math.inf:
            raise DataError(f"row {name} has the weight {weight}; give weights that are finite and at least 0")
    kept = [index for index, weight in enumerate(weights) if weight > 0]
    if not kept:
        raise DataError("no row has a weight above 0: nothing to train on; build the dataset again")
    if len(kept) < len(dataset):
        _logger.info("%d of %d rows carry no weight and are left out", len(dataset) - len(kept), len(dataset))
    return _Subset(dataset, kept)


def _check_sides(rows: Sequence[Any]) -> None:
    """Refuse a side without anything to score, whose probability would be 1 whatever the policy does.

    Raises:
        DataError: There is one.
    """
    for row in rows:
        if any(not side.action_mask[1:].any() for side in _sides(row)):
            name = row.pair_id if isinstance(row, PairRow) else row.row_id
            raise DataError(f"row {name} has a side without action tokens; leave it out and build the dataset again")


def _check_labels(rows: Sequence[Any], config: KTOConfig) -> None:
    """Refuse labels of one kind alone; warn where the weighted kinds are far from balanced.

    Raises:
        DataError: All labels are alike.
    """
    totals = {label: sum(row.weight for row in rows if bool(row.label) == label) for label in (True, False)}
    if min(totals.values()) == 0:
        only = "desirable" if totals[True] else "undesirable"
        raise DataError(f"all {len(rows)} answers are {only}: KTO needs both kinds; clone desirable answers instead")
    ratio = config.desirable_weight * totals[True] / (config.undesirable_weight * totals[False])
    if not 0.99 <= ratio <= 1.34:
        balanced = config.desirable_weight * totals[True] / totals[False]
        _logger.warning(
            "weighted desirable answers are %.2f times the undesirable ones, the paper recommends 1 to 4/3; set "
            "undesirable_weight between %.2f and %.2f, or desirable_weight accordingly",
            ratio, 0.75 * balanced, balanced,
        )  # fmt: skip


def _scored_tokens(row: Any) -> int:
    """Tokens of a row that the loss is about."""
    return sum(int(side.action_mask[1:].sum()) for side in _sides(row))


def _sides(row: Any) -> tuple[Side, ...]:
    return pair_sides(row) if isinstance(row, PairRow) else (answer_side(row),)


class _Sides:
    """What `check_fits` reads, of the sequences of all rows."""

    def __init__(self, rows: Sequence[Any]) -> None:
        lengths_and_tokens = [(len(side), int(side.token_ids.max())) for row in rows for side in _sides(row)]
        lengths, largest = zip(*lengths_and_tokens, strict=True)
        self.lengths = np.array(lengths, dtype=np.int64)
        self._largest: int = max(largest)

    def __len__(self) -> int:
        return len(self.lengths)

    def largest_token(self) -> int:
        return self._largest


class _Subset(Sequence[Any]):
    """Some rows of a dataset, renumbered."""

    def __init__(self, rows: Sequence[Any], kept: Sequence[int]) -> None:
        self._rows = rows
        self._kept = kept

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, index: Any) -> Any:
        return self._rows[self._kept[index]]
