"""The stages that train policies offline: cloning, advantage-weighted extraction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from offline_arl.datasets.collate import StepWeights
from offline_arl.datasets.manifest import load_manifest
from offline_arl.datasets.rehearsal import Rehearsal
from offline_arl.datasets.return_conditioned import conditioning_of
from offline_arl.datasets.segments import SegmentDataset
from offline_arl.errors import DataError, UsageError
from offline_arl.evaluation.intervals import Estimate
from offline_arl.models.feature_cache import load_features
from offline_arl.models.policy import load_policy
from offline_arl.models.reranked_policy import require_plain_policy
from offline_arl.models.value_heads import load_heads
from offline_arl.rendering import Renderer
from offline_arl.rendering.return_conditioning import return_token_ids
from offline_arl.trainers.adapters import ADAPTER_FOLDER
from offline_arl.trainers.config import WeightedBCConfig
from offline_arl.trainers.extraction import advantages, awr_step_weights, weight_spread
from offline_arl.trainers.return_weights import balanced_rows
from offline_arl.trainers.run import RunFolders
from offline_arl.trainers.value_record import load_value_record
from offline_arl.trainers.weighted_bc import train_weighted_bc
from offline_arl.trainers.weighted_sampling import SampledRows, as_frequencies, keep_tokens
from offline_arl.workflows.context import StageContext, StageOutputs
from offline_arl.workflows.stages import CloningStage, TrainCloning, TrainDecisionTransformer, TrainExtraction, part_of

Sampling = Callable[[SegmentDataset], SampledRows]
_VALUES_OF = {"iql": "iql_values", "cql": "cql_values", "awr": "behavior_values"}  # what each extraction reads


class HasData(Protocol):
    """A stage that trains on a dataset, from a policy."""

    @property
    def dataset(self) -> str: ...
    @property
    def policy(self) -> str: ...
    @property
    def dtype(self) -> str: ...


def train_cloning(config: TrainCloning, context: StageContext) -> StageOutputs:
    """Clone every step of the dataset alike.

    Raises:
        DataError: The dataset is damaged, or rendered for another tokenizer.
    """
    return _clone(config, context, config.algorithm)


def train_decision_transformer(config: TrainDecisionTransformer, context: StageContext) -> StageOutputs:
    """Clone every step under its return, and save with the policy how returns are written.

    Raises:
        DataError: The dataset is damaged, holds no conditions, or was rendered for another tokenizer.
        UsageError: The dataset is of another form, or returns are to be balanced that have no classes.
    """
    folder = context.path(config.dataset, "dataset")
    conditioning = conditioning_of(load_manifest(folder))
    sample: Sampling | None = None
    if config.balance_returns:
        sample = partial(balanced_rows, conditioning=conditioning, balance=config.balance_returns)
    returns = conditioning.returns
    note = (
        f"returns of the training data: {returns.minimum:g} to {returns.maximum:g}, mean {returns.mean:.3g}, "
        f"written as {conditioning.conditioning.form}"
        + (f" in {conditioning.writer.levels} classes" if conditioning.edges else "")
    )
    outputs = _clone(config, context, config.algorithm, sample=sample, notes=(note,))
    if context.first:
        policy = context.folder / outputs.artifacts["policy"]
        for place in (policy, policy / ADAPTER_FOLDER):
            if place.is_dir():
                conditioning.save(place)
    return outputs


def extract_policy(config: TrainExtraction, context: StageContext) -> StageOutputs:
    """Clone each step with the weight exp(inverse_temperature * advantage), capped.

    Raises:
        DataError: The value heads were trained on another dataset, or it was rendered for another tokenizer.
        UsageError: The value heads are of another algorithm.
    """
    values = context.path(config.values, "values")
    trained_by = load_value_record(values).algorithm
    if trained_by != _VALUES_OF[config.algorithm]:
        raise UsageError(
            f"{values}: these values are of {trained_by} and {config.algorithm} needs {_VALUES_OF[config.algorithm]}; "
            "name others, or change the algorithm"
        )
    weights = awr_step_weights(
        advantages(load_heads(values), load_features(values / "features")),
        inverse_temperature=config.inverse_temperature,
        max_weight=config.max_weight,
    )
    spread = weight_spread(weights, max_weight=config.max_weight)
    note = (
        f"step weights: median {spread.median:.2f}, mean {spread.mean:.2f}, {100 * spread.clipped_share:.1f} % at the "
        f"cap of {config.max_weight:g}; worth {spread.effective_sample_size:,.0f} equal steps of {spread.n:,}"
    )
    warning = spread.warning()
    notes = (note,) if warning is None else (note, f"warning: {warning}")
    sample: Sampling | None = None
    if config.weighting == "sampling":
        sample = partial(_sampled, step_weights=weights)
    outputs = _clone(config, context, config.algorithm, step_weights=weights, sample=sample, notes=notes)
    measured = {"effective_sample_size": spread.effective_sample_size, "clipped_share": spread.clipped_share}
    metrics = {f"{name}/{context.name}": Estimate(value, value, value, spread.n) for name, value in measured.items()}
    return replace(outputs, metrics={**outputs.metrics, **metrics})


def _sampled(dataset: SegmentDataset, step_weights: StepWeights) -> SampledRows:
    return keep_tokens(as_frequencies(dataset, step_weights), dataset)


def _clone(
    config: CloningStage,
    context: StageContext,
    algorithm: str,
    *,
    step_weights: StepWeights | None = None,
    sample: Sampling | None = None,
    notes: tuple[str, ...] = (),
) -> StageOutputs:
    """Clone a dataset, its steps weighted, or its rows seen as often as `sample` says in place of that."""
    dataset, model, tokenizer = dataset_and_policy(config, context)
    rehearsal: Rehearsal | None = None
    if config.rehearsal is not None:
        rehearsed = SegmentDataset.load(context.path(config.rehearsal, "dataset"))
        rehearsal = Rehearsal(rehearsed, config.rehearsal_fraction)
    for name, seen in (("dataset", dataset), ("rehearsal", None if rehearsal is None else rehearsal.dataset)):
        if seen is not None and seen.manifest.kind == "return_conditioned" and algorithm != "dt":
            raise UsageError(f"the {name} has returns in its context, which {algorithm} would not be asked for; use dt")
    frequencies: NDArray[np.float64] | None = None
    if sample is not None:
        frequencies, step_weights = sample(dataset)
    training = part_of(config, WeightedBCConfig)
    new_tokens = []
    if dataset.manifest.kind == "return_conditioned":
        conditioning = conditioning_of(dataset.manifest)
        if conditioning.conditioning.form == "quantile_tokens":
            new_tokens = return_token_ids(tokenizer, conditioning.writer.levels)
    record = train_weighted_bc(
        model,
        tokenizer,
        dataset,
        training,
        context.folder / "policy",
        step_weights=step_weights,
        row_frequencies=frequencies,
        rehearsal=rehearsal,
        new_tokens=new_tokens,
        seed=context.integer_seed(),
        algorithm=algorithm,
        resume_from_checkpoint="latest",
        folders=RunFolders(context.name, context.checkpoints, context.tensorboard, context.tell),
        report=lambda update, updates: context.progress("updates", update, updates),
    )
    done = record.metrics
    summary = f"{done['updates']:.0f} updates, loss {done['last_loss']:.3f}, {done['tokens_per_second']:,.0f} tokens/s"
    if training.packing and not done["packed"]:
        notes = ("padded, not packed: the model does not keep packed segments apart exactly", *notes)
    return StageOutputs(artifacts={"policy": "policy"}, notes=(summary, *notes))


def dataset_and_policy(config: HasData, context: StageContext) -> tuple[SegmentDataset, Any, Any]:
    """The dataset, the model and its tokenizer; token ids mean nothing under another tokenizer or template.

    Raises:
        DataError: The dataset is damaged, or rendered for another tokenizer.
        UsageError: The policy cannot be loaded, or its choices are not in its weights alone.
    """
    folder = context.path(config.dataset, "dataset")
    dataset = SegmentDataset.load(folder)
    policy = context.path(config.policy, "policy")
    require_plain_policy(policy)
    model, tokenizer = load_policy(policy, config.dtype)
    if Renderer(tokenizer).fingerprint != dataset.manifest.fingerprint:
        raise DataError(
            f"{folder}: was built for another tokenizer or chat template than that of {policy}; "
            "build it again for this policy"
        )
    return dataset, model, tokenizer
