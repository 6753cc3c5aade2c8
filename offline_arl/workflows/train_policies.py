"""The stages that train policies offline: cloning, advantage-weighted extraction."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from offline_arl.datasets.collate import StepWeights
from offline_arl.datasets.segments import SegmentDataset
from offline_arl.errors import DataError
from offline_arl.models.features import load_features
from offline_arl.models.policy import load_policy
from offline_arl.models.value_heads import load_heads
from offline_arl.rendering import Renderer
from offline_arl.trainers.config import WeightedBCConfig
from offline_arl.trainers.value import advantages, awr_step_weights
from offline_arl.trainers.weighted_bc import train_weighted_bc
from offline_arl.workflows.context import StageContext, StageOutputs
from offline_arl.workflows.stages import TrainCloning, TrainIQL, part_of


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
    return _clone(config, context, config.algorithm, step_weights=None)


def train_iql(config: TrainIQL, context: StageContext) -> StageOutputs:
    """Extract a policy: clone each step with the weight exp(inverse_temperature * advantage), capped.

    Raises:
        DataError: The value heads were trained on another dataset, or it was rendered for another tokenizer.
    """
    values = context.path(config.values, "values")
    heads = load_heads(values)
    features = load_features(values / "features")
    step_advantages = advantages(heads, features)
    weights = awr_step_weights(
        step_advantages, inverse_temperature=config.inverse_temperature, max_weight=config.max_weight
    )
    spread = torch.tensor(list(weights.values()))
    note = (
        f"step weights: median {spread.median():.2f}, mean {spread.mean():.2f}, "
        f"{100 * (spread >= config.max_weight).float().mean():.1f} % at the cap of {config.max_weight:g}"
    )
    return _clone(config, context, config.algorithm, step_weights=weights, notes=(note,))


def _clone(
    config: TrainCloning | TrainIQL,
    context: StageContext,
    algorithm: str,
    *,
    step_weights: StepWeights | None,
    notes: tuple[str, ...] = (),
) -> StageOutputs:
    dataset, model, tokenizer = dataset_and_policy(config, context)
    context.progress("cloning", 0, None)
    record = train_weighted_bc(
        model,
        tokenizer,
        dataset,
        part_of(config, WeightedBCConfig),
        context.folder / "policy",
        step_weights=step_weights,
        seed=context.integer_seed(),
        algorithm=algorithm,
    )
    done = record.metrics
    speed = done["tokens"] / max(done["seconds"], 1e-9)
    summary = f"{done['updates']:.0f} updates, loss {done['last_loss']:.3f}, {speed:,.0f} tokens/s"
    return StageOutputs(artifacts={"policy": "policy"}, notes=(summary, *notes))


def dataset_and_policy(config: HasData, context: StageContext) -> tuple[SegmentDataset, Any, Any]:
    """The dataset, the model and its tokenizer; token ids mean nothing under another tokenizer or template."""
    folder = context.path(config.dataset, "dataset")
    dataset = SegmentDataset.load(folder)
    policy = context.path(config.policy, "policy")
    model, tokenizer = load_policy(policy, config.dtype)
    if Renderer(tokenizer).fingerprint != dataset.manifest.fingerprint:
        raise DataError(
            f"{folder}: was built for another tokenizer or chat template than that of {policy}; "
            "build it again for this policy"
        )
    return dataset, model, tokenizer
