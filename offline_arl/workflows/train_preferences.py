"""The stages that train policies on preferences: DPO, IPO, SimPO, KTO."""

from __future__ import annotations

from typing import Any

from offline_arl.datasets.pairs import PairDataset, UnpairedDataset, load_preferences
from offline_arl.errors import DataError
from offline_arl.evaluation.intervals import Estimate
from offline_arl.models.policy import load_model, load_policy
from offline_arl.rendering import Renderer
from offline_arl.trainers.checkpoint import TrainingRecord
from offline_arl.trainers.preference import train_preferences as train
from offline_arl.trainers.preference_config import AnyPreferenceConfig, DPOConfig, IPOConfig, KTOConfig, SimPOConfig
from offline_arl.trainers.run import RunFolders
from offline_arl.workflows.context import StageContext, StageOutputs
from offline_arl.workflows.stages import TrainDPO, TrainIPO, TrainKTO, TrainPreferences, TrainSimPO, part_of

_MONITORS = {
    "log_ratio/chosen": "chosen_log_ratio",
    "log_ratio/rejected": "rejected_log_ratio",
    "log_ratio/desirable": "desirable_log_ratio",
    "log_ratio/undesirable": "undesirable_log_ratio",
    "reward/margin": "reward_margin",
    "reward/accuracy": "reward_accuracy",
    "kl_to_reference": "kl_to_reference",
    "end_log_ratio": "end_log_ratio",
    "margin_length_correlation": "margin_length_correlation",
}  # a monitor's name in the logs -> the measure's name in metrics, which have one slash only


def train_preferences(config: TrainPreferences, context: StageContext) -> StageOutputs:
    """Train on pairs or labeled answers, held to the policy at the start or to another reference.

    The reference's log-probabilities lie beside the dataset, for every stage that trains on it.

    Raises:
        DataError: The dataset is damaged, or rendered for another tokenizer, or cannot be trained on.
        UsageError: The dataset is of another form.
    """
    folder = context.path(config.dataset, "dataset")
    dataset, model, tokenizer = _dataset_and_policy(config, context)
    reference = None
    if config.reference is not None and config.reference != config.policy:
        reference = load_model(context.path(config.reference, "policy"), config.dtype)
    context.progress("reference log-probabilities", 0, None)
    record = train(
        model,
        tokenizer,
        dataset,
        _trainer_config(config, dataset),
        context.folder / "policy",
        seed=context.integer_seed(),
        reference_model=reference,
        reference_folder=folder.with_name(f"{folder.name}.reference"),
        resume_from_checkpoint="latest",
        folders=RunFolders(context.name, context.checkpoints, context.tensorboard, context.tell),
        report=lambda done, total: context.progress("preferences", done, total),
    )
    return StageOutputs(
        artifacts={"policy": "policy"}, metrics=_metrics(record, context.name, len(dataset)), notes=_notes(record)
    )


def _trainer_config(config: TrainPreferences, dataset: PairDataset | UnpairedDataset) -> AnyPreferenceConfig:
    if isinstance(config, TrainDPO):
        return part_of(config, DPOConfig)
    if isinstance(config, TrainIPO):
        return part_of(config, IPOConfig)
    if isinstance(config, TrainSimPO):
        return part_of(config, SimPOConfig)
    assert isinstance(config, TrainKTO)
    plain = part_of(config, KTOConfig)
    recommended: dict[str, float] = dataset.manifest.config.get("recommended", {}) if config.recommended_weights else {}
    return plain.model_copy(update={name: getattr(plain, name) * value for name, value in recommended.items()})


def _dataset_and_policy(
    config: TrainPreferences, context: StageContext
) -> tuple[PairDataset | UnpairedDataset, Any, Any]:
    """The dataset, the model and its tokenizer; token ids mean nothing under another tokenizer or template."""
    folder, policy = context.path(config.dataset, "dataset"), context.path(config.policy, "policy")
    dataset = load_preferences(folder)
    model, tokenizer = load_policy(policy, config.dtype)
    if Renderer(tokenizer).fingerprint != dataset.manifest.fingerprint:
        raise DataError(
            f"{folder}: was built for another tokenizer or chat template than that of {policy}; "
            "build it again for this policy"
        )
    return dataset, model, tokenizer


def _metrics(record: TrainingRecord, name: str, rows: int) -> dict[str, Estimate]:
    found = record.metrics
    return {
        f"{measure}/{name}": Estimate(found[monitor], found[monitor], found[monitor], rows)
        for monitor, measure in _MONITORS.items()
        if monitor in found
    }


def _notes(record: TrainingRecord) -> tuple[str, ...]:
    done = record.metrics
    sides = [
        f"{kind} {done[f'log_ratio/{kind}']:+.2f}"
        for kind in ("chosen", "rejected", "desirable", "undesirable")
        if f"log_ratio/{kind}" in done
    ]
    notes = [
        f"{done['updates']:.0f} updates on {done['trained_tokens']:,.0f} trained tokens, loss {done['last_loss']:.3f}"
    ]
    if sides:
        notes.append(
            f"log-ratio to the reference at the end, nats an answer: {', '.join(sides)}; "
            f"KL {done['kl_to_reference']:.3f} nats a token"
        )
    alarms = {name.removeprefix("alarm/"): value for name, value in done.items() if name.startswith("alarm/")}
    return (*notes, *(f"alarm: {kind} in {number:.0f} log lines" for kind, number in alarms.items()))
