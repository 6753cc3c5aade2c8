"""The stages that fit value heads to a dataset."""

from __future__ import annotations

import shutil
from functools import partial
from typing import Any

import torch

from offline_arl.datasets.segments import SegmentDataset
from offline_arl.evaluation.intervals import Estimate
from offline_arl.models.features import StepFeatures
from offline_arl.models.policy import policy_fingerprint
from offline_arl.models.value_heads import ValueHeads
from offline_arl.rendering import Renderer
from offline_arl.rollouts.backends import make_sampler
from offline_arl.trainers.config import BehaviorValuesConfig, CQLConfig, IQLConfig
from offline_arl.trainers.step_features import compute_features
from offline_arl.trainers.value import ValueResult, fit_values
from offline_arl.trainers.value_quality import value_quality
from offline_arl.trainers.value_record import ValueRecord, save_values
from offline_arl.trajectories.places import seen_from
from offline_arl.workflows.alternatives import propose_alternatives
from offline_arl.workflows.context import StageContext, StageOutputs
from offline_arl.workflows.stages import TrainCQLValues, TrainIQLValues, TrainValues, part_of
from offline_arl.workflows.train_policies import dataset_and_policy


def train_values(config: TrainValues, context: StageContext) -> StageOutputs:
    """Fit the heads and say how well V tells attempts that will succeed, on tasks that were held out.

    Raises:
        DataError: The dataset has no transitions or is for another tokenizer, every task was held out, or
            training diverged.
    """
    dataset, model, tokenizer = dataset_and_policy(config, context)
    folder, policy = context.folder / "values", context.path(config.policy, "policy")
    # Kept until the stage is done: values that are fitted again, or a pass that was interrupted, need no other pass.
    caches, told = context.checkpoints, partial(context.progress, "hidden states")
    features = compute_features(model, tokenizer, dataset, caches / "features", config=config.features, report=told)
    settings = fitting_part(config)
    proposed = None
    if isinstance(config, TrainCQLValues) and config.alternatives:
        proposed = _propose(config, context, dataset, model, tokenizer)
    result = fit_values(
        features,
        dataset,
        settings,
        generator=torch.Generator().manual_seed(context.integer_seed()),
        proposed=proposed,
        report=lambda update, _: context.progress("value updates", update, settings.steps),
    )
    metrics = _value_quality(context, dataset, features, result.held_out, result.heads)
    record = ValueRecord(
        algorithm=config.algorithm,
        config=settings.model_dump(mode="json"),
        seed=context.integer_seed(),
        policy=str(policy.absolute()),
        policy_relative=seen_from(folder, policy),
        policy_sha256=policy_fingerprint(model),
        layers=config.features.layers,
        state_window=config.features.state_window,
        dataset_fingerprint=dataset.manifest.fingerprint,
        dataset_sha256=dataset.manifest.content_sha256,
        metrics=result.diagnostics,
    )
    readable = {
        name: f"{value.estimate:.3f} [{value.low:.3f}, {value.high:.3f}] on {value.n} held-out attempts"
        for name, value in metrics.items()
    }
    save_values(result.heads, record, folder, intervals=readable)
    for cache in list(caches.glob("features*")):
        shutil.move(cache, folder)
    notes = [*_notes(result), *(f"{name}: {value}" for name, value in readable.items())]
    return StageOutputs(artifacts={"values": "values"}, metrics=metrics, notes=tuple(notes))


def fitting_part(config: TrainValues) -> IQLConfig | CQLConfig | BehaviorValuesConfig:
    """The trainer's own configuration out of a stage that fits values."""
    if isinstance(config, TrainIQLValues):
        return part_of(config, IQLConfig)
    if isinstance(config, TrainCQLValues):
        return part_of(config, CQLConfig)
    return part_of(config, BehaviorValuesConfig)


def _propose(
    config: TrainCQLValues, context: StageContext, dataset: SegmentDataset, model: Any, tokenizer: Any
) -> tuple[StepFeatures, SegmentDataset]:
    """Sample alternatives and read their hidden states; what was sampled stays in the stage's folder."""
    context.progress("alternatives", 0, None)
    sampler = make_sampler(
        context.path(config.policy, "policy"),
        stop_token_ids=Renderer(tokenizer).stop_token_ids,
        backend=config.backend,
        max_model_len=config.max_total_tokens,
        dtype=config.dtype,
    )
    try:
        made = propose_alternatives(
            dataset,
            sampler,
            context.folder / "alternatives",
            per_state=config.alternatives,
            max_tokens=config.max_tokens_per_step,
            seed=context.integer_seed("alternatives"),
        )
    finally:
        sampler.close()
    cache = context.checkpoints / "features_of_alternatives"
    told = partial(context.progress, "hidden states of alternatives")
    return compute_features(model, tokenizer, made, cache, config=config.features, report=told), made


def _notes(result: ValueResult) -> list[str]:
    diagnostics = result.diagnostics
    fitted = f"{diagnostics['transitions']:.0f} transitions, {diagnostics['updates']:.0f} updates"
    if "states_with_alternatives" in diagnostics:
        share = 100 * diagnostics["states_with_alternatives"]
        fitted += f"; {share:.1f} % of the states have more than one candidate action"
    losses = ", ".join(
        f"{name.replace('_', ' ')} {diagnostics[f'held_out/{name}']:.4f}"
        for name in ("q_loss", "value_loss", "conservative_loss", "mean_q", "mean_v")
        if f"held_out/{name}" in diagnostics
    )
    return [fitted, f"on held-out tasks: {losses}"] if losses else [fitted]


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
