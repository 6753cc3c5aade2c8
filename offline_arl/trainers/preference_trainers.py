"""Trainers of preference rows: batches, losses over the whole update, monitors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from offline_arl.datasets.preference_batches import (
    AnswerBatch,
    AnswerLike,
    PairBatch,
    PairLike,
    SequenceBatch,
    collate_answers,
    collate_pairs,
    collate_sides,
    mismatched_side,
)
from offline_arl.objectives import (
    dpo_loss,
    ipo_loss,
    kto_loss,
    kto_reference_point,
    masked_mean,
    sequence_logprobs,
    simpo_loss,
)
from offline_arl.objectives.logprobs import scored_mask
from offline_arl.trainers.preference_config import DPOConfig, IPOConfig, KTOConfig, PairConfig, SimPOConfig
from offline_arl.trainers.preference_forward import batch_logprobs
from offline_arl.trainers.preference_monitors import PreferenceMonitor, Scores
from offline_arl.trainers.preference_reference import ReferenceLogprobs
from offline_arl.trainers.update_trainer import UpdateTrainer


class PreferenceTrainer(UpdateTrainer):
    """What all preference objectives share. A subclass makes batches of rows and their losses.

    Args:
        rows: The preference rows.
        pad_token_id: Fills sequences.
        share_prefix: Encode prompts once, where the model and one process allow it.
        kwargs: Those of `UpdateTrainer`.
    """

    def __init__(self, *, rows: Sequence[Any], pad_token_id: int, share_prefix: bool, **kwargs: Any) -> None:
        super().__init__(rows=_Numbered(rows), collate=self._collated, **kwargs)
        self.monitor = PreferenceMonitor(self._over_processes)
        self._pad_token_id = pad_token_id
        self._share_prefix = share_prefix

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[dict[str, Any]], Tensor]:
        """The micro-batches of one update, and its number of rows in all processes."""
        samples, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        rows = torch.tensor(float(sum(int((sample["weights"] > 0).sum()) for sample in samples)), device=device)
        return samples, self._over_processes(rows)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """This micro-batch's part of the mean over the rows of the whole update."""
        with self.accelerator.autocast(), without_dropout(model):
            losses = self._losses(model, inputs)
        weights = inputs["weights"].to(losses.dtype)
        counted = weights > 0
        rows = counted.sum() if num_items_in_batch is None else num_items_in_batch
        loss = masked_mean(weights * losses, counted, denominator=rows)
        if num_items_in_batch is not None:
            loss = loss * self.accelerator.num_processes  # undo the mean over processes of the gradients
        return (loss, {"losses": losses}) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add what the monitors saw to each log line of training, for every tracker."""
        super().log({**logs, **self.monitor.window()} if "loss" in logs else logs, start_time)

    def _collated(self, rows: list[tuple[int, Any]]) -> dict[str, Any]:
        """A batch; where this process has no rows left in an update, one that weighs nothing."""
        if rows:
            return self._collate(rows)
        nothing = self._collate([self.train_dataset[0]])
        return {**nothing, "weights": torch.zeros_like(nothing["weights"])}

    @abstractmethod
    def _collate(self, rows: list[tuple[int, Any]]) -> dict[str, Any]:
        """A batch of numbered rows, with their `weights`."""

    @abstractmethod
    def _losses(self, model: Any, inputs: dict[str, Any]) -> Float[Tensor, " N"]:
        """The unweighted loss of each row."""

    def _shares(self) -> bool:
        """A prompt's pass goes around the wrappers of several processes, so it is for one process."""
        return self._share_prefix and self.accelerator.num_processes == 1

    def _over_processes(self, values: Tensor) -> Tensor:
        if self.accelerator.num_processes == 1:
            return values
        summed: Tensor = self.accelerator.reduce(values.to(self.accelerator.device), reduction="sum")
        return summed.cpu() if values.device.type == "cpu" else summed


class PairTrainer(PreferenceTrainer):
    """DPO, cDPO, IPO or SimPO, as the configuration is."""

    def __init__(
        self, *, config: PairConfig, rows: Sequence[PairLike], reference: ReferenceLogprobs | None, **kwargs: Any
    ) -> None:
        self._config = config
        self._reference = reference
        super().__init__(rows=rows, **kwargs)

    def _collate(self, rows: list[tuple[int, PairLike]]) -> dict[str, Any]:
        batch = collate_pairs([row for _, row in rows], pad_token_id=self._pad_token_id)
        inputs = dict(vars(batch))
        if self._reference is not None:
            sequences = [2 * index for index, _ in rows] + [2 * index + 1 for index, _ in rows]
            inputs["reference"] = self._reference.padded(sequences, batch.action_mask)
        return inputs

    def _losses(self, model: Any, inputs: dict[str, Any]) -> Float[Tensor, " N"]:
        batch = PairBatch(**{name: value for name, value in inputs.items() if name != "reference"})
        logprobs = batch_logprobs(model, batch, share_prefix=self._shares())
        pairs = len(batch.weights)
        reference, scored = inputs.get("reference"), scored_mask(batch.action_mask)
        chosen, rejected = (
            Scores(logprobs[side], None if reference is None else reference[side], scored[side])
            for side in (slice(None, pairs), slice(pairs, None))
        )
        losses, margins = pair_losses(self._config, chosen, rejected)
        counted = batch.weights > 0
        self.monitor.add_scores("chosen", chosen, counted)
        self.monitor.add_scores("rejected", rejected, counted)
        self.monitor.add_margins(margins[counted], (chosen.scored.sum(dim=1) - rejected.scored.sum(dim=1))[counted])
        return losses


class KTOTrainer(PreferenceTrainer):
    """KTO; `partners` names the row whose answer stands behind each row's prompt in its mismatched sequence."""

    def __init__(
        self,
        *,
        config: KTOConfig,
        rows: Sequence[AnswerLike],
        partners: Sequence[int],
        reference: ReferenceLogprobs,
        **kwargs: Any,
    ) -> None:
        self._config = config
        self._rows = rows
        self._partners = partners
        self._reference = reference
        self._mismatched_sums = reference.sums()[len(rows) :]
        super().__init__(rows=rows, **kwargs)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[dict[str, Any]], Tensor]:
        """The micro-batches of one update with the reference point of the whole update, before its gradients."""
        samples, rows = super().get_batch_samples(epoch_iterator, num_batches, device)
        total = torch.zeros((), dtype=torch.float64)
        for sample in samples:
            batch = SequenceBatch(**sample.pop("mismatched")).to(device)
            reference, counted = sample.pop("mismatched_reference"), sample["weights"] > 0
            with torch.no_grad(), self.accelerator.autocast(), without_dropout(self.model):
                logprobs = batch_logprobs(self.model_wrapped, batch, share_prefix=self._shares())
            sums = sequence_logprobs(logprobs, scored_mask(batch.action_mask), average=False)
            total += (sums.cpu() - reference)[counted].double().sum()
        mean = self._over_processes(total).reshape(1)
        point = kto_reference_point(mean, torch.zeros_like(mean), torch.ones_like(mean).bool(), denominator=rows.cpu())
        for sample in samples:
            sample["reference_point"] = point.float()
        self.monitor.add("reference_point", point.reshape(1))
        return samples, rows

    def _collate(self, rows: list[tuple[int, AnswerLike]]) -> dict[str, Any]:
        batch = collate_answers([row for _, row in rows], pad_token_id=self._pad_token_id)
        numbers = [index for index, _ in rows]
        others = [mismatched_side(row, self._rows[self._partners[index]]) for index, row in rows]
        return {
            **vars(batch),
            "reference": self._reference.padded(numbers, batch.action_mask),
            "mismatched": dict(vars(collate_sides(others, pad_token_id=self._pad_token_id))),
            "mismatched_reference": self._mismatched_sums[numbers],
        }

    def _losses(self, model: Any, inputs: dict[str, Any]) -> Float[Tensor, " N"]:
        own = {name: value for name, value in inputs.items() if name not in ("reference", "reference_point")}
        batch, config = AnswerBatch(**own), self._config
        logprobs = batch_logprobs(model, batch, share_prefix=self._shares())
        scores = Scores(logprobs, inputs["reference"], scored_mask(batch.action_mask))
        self.monitor.add_scores("desirable", scores, batch.desirable & (batch.weights > 0))
        self.monitor.add_scores("undesirable", scores, ~batch.desirable & (batch.weights > 0))
        return kto_loss(
            sequence_logprobs(logprobs, scores.scored, average=False),
            sequence_logprobs(inputs["reference"], scores.scored, average=False),
            batch.desirable,
            inputs["reference_point"],
            torch.ones_like(batch.desirable),
            dpo_beta=config.dpo_beta,
            desirable_weight=config.desirable_weight,
            undesirable_weight=config.undesirable_weight,
        )


class PairLosses(NamedTuple):
    """Of each pair: the loss, and the margin of its reward."""

    losses: Float[Tensor, " N"]
    margins: Float[Tensor, " N"]


def pair_losses(config: PairConfig, chosen: Scores, rejected: Scores) -> PairLosses:
    """The losses of a batch of pairs under any of the pair objectives."""
    average = isinstance(config, SimPOConfig) or (isinstance(config, IPOConfig) and config.length_average)
    policy = [sequence_logprobs(side.logprobs, side.scored, average=average) for side in (chosen, rejected)]
    every = torch.ones(len(policy[0]), dtype=torch.bool, device=policy[0].device)
    if isinstance(config, SimPOConfig):
        losses = simpo_loss(policy[0], policy[1], every, simpo_beta=config.simpo_beta, simpo_margin=config.simpo_margin)
        margins = config.simpo_beta * (policy[0] - policy[1])
    else:
        reference = []
        for side in (chosen, rejected):
            assert side.reference is not None
            reference.append(sequence_logprobs(side.reference, side.scored, average=average))
        inputs = (*policy, *reference, every)
        if isinstance(config, IPOConfig):
            losses, beta = ipo_loss(*inputs, dpo_beta=config.dpo_beta), config.dpo_beta
        else:
            assert isinstance(config, DPOConfig)
            beta = config.dpo_beta
            losses = dpo_loss(*inputs, dpo_beta=beta, label_smoothing=config.label_smoothing)
        margins = beta * (policy[0] - reference[0] - policy[1] + reference[1])
    if config.chosen_nll_weight > 0:
        losses = losses - config.chosen_nll_weight * sequence_logprobs(chosen.logprobs, chosen.scored, average=True)
    return PairLosses(losses, margins.detach())


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """No dropout inside: noise on one side of a comparison is no preference, and the reference has none."""
    changed: list[tuple[Any, str, float]] = []
    for module in model.modules():
        for name in ("p", "attention_dropout", "dropout"):
            value = getattr(module, name, None)
            if isinstance(value, float) and value > 0 and (name != "p" or isinstance(module, nn.Dropout)):
                changed.append((module, name, value))
                setattr(module, name, 0.0)
    try:
        yield
    finally:
        for module, name, value in changed:
            setattr(module, name, value)


class _Numbered(Sequence[tuple[int, Any]]):
    """Rows with their numbers, by which their reference values are found."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        return index, self._rows[index]
