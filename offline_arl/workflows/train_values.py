"""The stages that fit value heads to a dataset."""

from __future__ import annotations

import torch

from offline_arl.datasets.segments import SegmentDataset
from offline_arl.evaluation.intervals import Estimate
from offline_arl.models.features import StepFeatures
from offline_arl.models.value_heads import ValueHeads, save_heads
from offline_arl.trainers.config import IQLConfig
from offline_arl.trainers.value import compute_features
from offline_arl.trainers.value import train_iql as fit_heads
from offline_arl.trainers.value_quality import value_quality
from offline_arl.workflows.context import StageContext, StageOutputs
from offline_arl.workflows.stages import TrainValues, part_of
from offline_arl.workflows.train_policies import dataset_and_policy


def train_values(config: TrainValues, context: StageContext) -> StageOutputs:
    """Fit the heads and say how well V tells attempts that will succeed, on tasks that were held out.

    Raises:
        DataError: The dataset has no transitions or is for another tokenizer, every task was held out, or
            training diverged.
    """
    dataset, model, tokenizer = dataset_and_policy(config, context)
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
