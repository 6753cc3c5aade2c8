"""The offline training stages: cloning, value heads, advantage-weighted extraction."""

from __future__ import annotations

from typing import Any

import torch

from offline_arl.datasets.collate import StepWeights
from offline_arl.datasets.segments import SegmentDataset
from offline_arl.errors import DataError
from offline_arl.evaluation.intervals import Estimate
from offline_arl.models.features import StepFeatures, load_features
from offline_arl.models.policy import load_policy
from offline_arl.models.value_heads import ValueHeads, load_heads, save_heads
from offline_arl.rendering import Renderer
from offline_arl.trainers.config import IQLConfig, WeightedBCConfig
from offline_arl.trainers.value import advantages, awr_step_weights, compute_features
from offline_arl.trainers.value import train_iql as fit_heads
from offline_arl.trainers.value_quality import value_quality
from offline_arl.trainers.weighted_bc import train_weighted_bc
from offline_arl.workflows.context import StageContext, StageOutputs
from offline_arl.workflows.stages import TrainCloning, TrainIQL, TrainValues, part_of


def train_cloning(config: TrainCloning, context: StageContext) -> StageOutputs:
    """Clone every step of the dataset alike.

    Raises:
        DataError: The dataset is damaged, or rendered for another tokenizer.
    """
    return _clone(config, context, config.algorithm, step_weights=None)


def train_values(config: TrainValues, context: StageContext) -> StageOutputs:
    """Fit the heads and say how well V tells attempts that will succeed, on tasks that were held out.

    Raises:
        DataError: The dataset has no transitions or is for another tokenizer, every task was held out, or
            training diverged.
    """
    dataset, model, tokenizer = _dataset_and_policy(config, context)
    folder = context.folder / "values"
    context.progress("hidden states", 0, None)
    features = compute_features(model, tokenizer, dataset, folder / "features", config=config.features)
    iql = part_of(config, IQLConfig)
    result = fit_heads(
        features,
        dataset,
        iql,
        generator=torch.Generator().manual_seed(context.integer_seed()),
        report=lambda update, _: context.progress("value updates", update, iql.steps),
    )
    save_heads(result.heads, folder)
    metrics = _value_quality(context, dataset, features, result.held_out, result.heads)
    diagnostics = result.diagnostics
    losses = ", ".join(
        f"{name.replace('_', ' ')} {diagnostics[f'held_out/{name}']:.4f}"
        for name in ("q_loss", "value_loss", "mean_q", "mean_v")
        if f"held_out/{name}" in diagnostics
    )
    notes = [f"{diagnostics['transitions']:.0f} transitions, {diagnostics['updates']:.0f} updates"]
    if losses:
        notes.append(f"on held-out tasks: {losses}")
    notes += [
        f"{name}: {value.estimate:.3f} [{value.low:.3f}, {value.high:.3f}] on {value.n} held-out attempts"
        for name, value in metrics.items()
    ]
    return StageOutputs(artifacts={"values": "values"}, metrics=metrics, notes=tuple(notes))


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
    dataset, model, tokenizer = _dataset_and_policy(config, context)
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


def _dataset_and_policy(
    config: TrainCloning | TrainValues | TrainIQL, context: StageContext
) -> tuple[SegmentDataset, Any, Any]:
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


def _value_quality(
    context: StageContext,
    dataset: SegmentDataset,
    features: StepFeatures,
    held_out: frozenset[str],
    heads: ValueHeads,
) -> dict[str, Estimate]:
    """AUC of V for success on the held-out trajectories; empty where none were held out."""
    columns = (dataset.column(name) for name in ("trajectory_id", "task_id", "success"))
    rows = [row for row in zip(*columns, strict=True) if row[0] in held_out and row[2] is not None]
    if not rows:
        return {}
    quality = value_quality(
        heads,
        features,
        {trajectory: bool(success) for trajectory, _, success in rows},
        generator=context.generator("value quality"),
        clusters={trajectory: task or trajectory for trajectory, task, _ in rows},
    )
    return {
        f"value_auc_{name}/{context.name}": Estimate(*interval)
        for name, interval in (("first_step", quality.first_step), ("mid_trajectory", quality.mid_trajectory))
    }
