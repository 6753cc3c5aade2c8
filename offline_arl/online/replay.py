"""Logged successes as a cloning term beside the policy gradient.

Logged attempts never enter the mean of a GRPO group: without known behavior probabilities that would bias it. They are
cloned, by a loss of their own, most of all where no attempt at a task succeeds. Weights where the probabilities are
known: truncated importance sampling (Ionides 2008).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offline_arl.datasets.collate import collate_segments, length_sorted_batches
from offline_arl.datasets.segments import SegmentDataset, SegmentRow
from offline_arl.errors import DataError, UsageError
from offline_arl.models.policy import selected_logits, unwrapped_model
from offline_arl.objectives import masked_mean, mismatch_weights, selected_token_logprobs, weighted_nll
from offline_arl.objectives.logprobs import predicting_mask, scored_mask
from offline_arl.online.config import CloningConfig

_STREAM = 3  # of random numbers: no other draws of a run share it
_TOKENS_PER_BATCH = 4_096  # encoded together
_LEAST_WEIGHT = 0.05  # beside the share of failures: also what is solved is not forgotten


class LoggedSuccesses:
    """The successful rows of a dataset, drawn and cloned.

    Args:
        dataset: Of form bc (its successes are taken), filtered_bc (all of it) or return_conditioned (its successes, for
            a policy that reads returns).
        config: How many rows an update, and their weights.
        seed: Of the draws.
        fingerprint: Of the renderer of the rollouts; None: not checked.

    Raises:
        DataError: No row is a success, or the dataset was rendered with another tokenizer or template.
        UsageError: The dataset is of another kind.
    """

    def __init__(
        self, dataset: SegmentDataset, config: CloningConfig, *, seed: int, fingerprint: str | None = None
    ) -> None:
        if dataset.manifest.kind not in ("bc", "return_conditioned"):
            raise UsageError(
                f"the replay dataset is of the kind {dataset.manifest.kind}; replay takes bc, filtered_bc or "
                "return_conditioned"
            )
        if fingerprint not in (None, dataset.manifest.fingerprint):
            raise DataError(
                "the logged successes were built for another tokenizer or chat template than that of the policy; "
                "build them again for this policy"
            )
        self._dataset = dataset
        self._config = config
        self._seed = seed
        self._rows = _successes(dataset)
        if len(self._rows) == 0:
            raise DataError(
                f"none of the {len(dataset)} rows of the replay dataset is a success; build one of form filtered_bc "
                "from logs that hold successes, or leave replay out"
            )
        self._types = [task_type or "" for task_type in dataset.column("task_type")]
        tasks = dataset.column("task_id")
        self._by_task: dict[str, list[int]] = {}
        for row in self._rows.tolist():
            if tasks[row] is not None:
                self._by_task.setdefault(tasks[row], []).append(row)

    def __len__(self) -> int:
        """Successful rows."""
        return len(self._rows)

    def draw(
        self, step: int, update: int, wanted: Sequence[str], failures: Mapping[str, float] | None = None
    ) -> list[SegmentRow]:
        """The rows of one update: `config.rows`, or all where there are fewer, none twice.

        The same arguments give the same rows, whatever was drawn before.

        Args:
            step: Of the training.
            update: Within the step.
            wanted: Tasks (`task_id`) whose rows come first, in turn: one of each, then a second of each, and so on.
            failures: Task type to the share of attempts that fail. The other rows are drawn in proportion to it, so
                that what the policy does already is not cloned again and again; None: all alike.
        """
        generator = np.random.default_rng([self._seed, step, update, _STREAM])
        first: list[tuple[int, float, int]] = []  # (how many of its task before it, chance, row)
        for task in sorted(set(wanted)):
            for turn, row in enumerate(generator.permutation(self._by_task.get(task, [])).tolist()):
                first.append((turn, generator.random(), row))
        rows = [row for _, _, row in sorted(first)[: self._config.rows]]
        others = np.setdiff1d(self._rows, np.array(rows, dtype=np.int64))
        count = min(self._config.rows - len(rows), len(others))
        rows += generator.choice(
            others, count, replace=False, p=chances_by_failure([self._types[row] for row in others.tolist()], failures)
        ).tolist()
        return [self._dataset[row] for row in rows]

    def loss(self, model: Any, rows: Sequence[SegmentRow], *, pad_token_id: int) -> Tensor:
        """Mean over the action tokens of `-w * log p`, in nats.

        w is `min(p / behavior probability, importance_cap)`, a constant, where the behavior logprob was logged; where
        it was not, the propensity is unknown and w is 1, as in plain cloning.

        Args:
            model: A causal language model, or adapters or a data-parallel wrapper around one.
            rows: At least one, as `draw` gives them.
            pad_token_id: Fills rows.
        """
        tokens = sum(int(row.action_mask[1:].sum()) for row in rows)  # nothing predicts the first
        # Of similar length together: most rows are short, and a padded token costs as much as a real one.
        batches = length_sorted_batches(np.array([len(row) for row in rows]), max_tokens=_TOKENS_PER_BATCH)
        losses = [self._share(model, [rows[at] for at in batch], tokens, pad_token_id) for batch in batches]
        return torch.stack(losses).sum()

    def _share(self, model: Any, rows: Sequence[SegmentRow], tokens: int, pad_token_id: int) -> Tensor:
        """What some rows add to the mean over `tokens` action tokens."""
        device = next(model.parameters()).device
        batch = collate_segments(rows, pad_token_id=pad_token_id).to(device)
        mask = scored_mask(batch.action_mask)
        # A prefix is encoded beside the wrapper, which then would not gather its gradients.
        shared = batch.shared_prefix if unwrapped_model(model) is model else 0
        logits = selected_logits(
            model, batch.input_ids, batch.attention_mask, predicting_mask(mask), shared_prefix=shared
        )
        logprobs = selected_token_logprobs(logits, batch.input_ids, mask)
        behavior = _behavior_logprobs(rows, batch.input_ids.shape).to(device)
        weights = mismatch_weights(logprobs, behavior, mask, cap=self._config.importance_cap)
        return masked_mean(weighted_nll(logprobs, weights, mask), mask, denominator=tokens)

    def coefficient(self, done: float) -> float:
        """The weight of the loss where so large a share of the run is done: falls linearly, to 0 at `config.until`."""
        return self._config.coefficient * max(0.0, 1.0 - done / self._config.until)


def chances_by_failure(task_types: Sequence[str], failures: Mapping[str, float] | None) -> NDArray[np.float64] | None:
    """[N] The chance of each row to be drawn: in proportion to the share of attempts at its task type that fail.

    Args:
        task_types: [N], of the rows.
        failures: Task type to that share; a type that is not in it fails as often as the mean of the others.

    Returns:
        Chances that sum to 1; None, which is all alike, without failures or rows.
    """
    if not failures or not task_types:
        return None
    average = float(np.mean(list(failures.values())))
    weights = np.array([failures.get(task_type, average) for task_type in task_types]) + _LEAST_WEIGHT
    chances: NDArray[np.float64] = weights / weights.sum()
    return chances


def _successes(dataset: SegmentDataset) -> NDArray[np.int64]:
    """Numbers of the rows that are worth cloning."""
    filtered = dataset.manifest.config.get("only_successes") or dataset.manifest.config.get("min_return") is not None
    if filtered:
        return np.arange(len(dataset))
    return np.flatnonzero([success is True for success in dataset.column("success")])


def _behavior_logprobs(rows: Sequence[SegmentRow], shape: torch.Size) -> Tensor:
    """[B, T] logged logprobs, NaN where there is none."""
    found = np.full(tuple(shape), np.nan, dtype=np.float32)
    for position, row in enumerate(rows):
        if row.logprobs is not None:
            found[position, : len(row)] = row.logprobs
    return torch.from_numpy(found)
