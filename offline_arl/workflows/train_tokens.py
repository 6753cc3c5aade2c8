"""The stages that fit token-level value heads to a dataset."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from offline_arl.models.policy import policy_fingerprint
from offline_arl.trainers import token_values
from offline_arl.trainers.config import TokenCQLConfig, TokenIQLConfig
from offline_arl.trainers.run import RunFolders
from offline_arl.trainers.token_record import save_token_values
from offline_arl.trainers.value_record import ValueRecord
from offline_arl.trajectories.places import seen_from
from offline_arl.workflows.context import StageContext, StageOutputs
from offline_arl.workflows.stages import TrainTokenIQLValues, TrainTokenValues, part_of
from offline_arl.workflows.train_policies import dataset_and_policy


def train_token_values(config: TrainTokenValues, context: StageContext) -> StageOutputs:
    """Fit the heads; the policy whose states they read lies beside them.

    Raises:
        DataError: The dataset is for another tokenizer, every task was held out, or training diverged.
        UsageError: The dataset holds no transitions.
    """
    dataset, model, tokenizer = dataset_and_policy(config, context)
    context.progress("hidden states", 0, None)
    settings = _settings(config)
    policy = context.folder / "policy"
    result = token_values.train_token_values(
        model,
        tokenizer,
        dataset,
        settings,
        policy,
        seed=context.integer_seed(),
        resume_from_checkpoint="latest",
        folders=RunFolders(context.name, context.checkpoints, context.tensorboard, context.tell),
        report=lambda update, updates: context.progress("updates", update, updates),
    )
    if context.first:
        if config.language_model == "frozen":
            shutil.copytree(context.path(config.policy, "policy"), policy, copy_function=_link)
        record = ValueRecord(
            algorithm=config.algorithm,
            config=settings.model_dump(mode="json"),
            seed=context.integer_seed(),
            policy=str(context.final("policy").absolute()),
            policy_relative=seen_from("values", "policy"),
            policy_sha256=policy_fingerprint(model),
            layers=(-1,),
            dataset_fingerprint=dataset.manifest.fingerprint,
            dataset_sha256=dataset.manifest.content_sha256,
            metrics=result.diagnostics,
        )
        save_token_values(result.heads, record, context.folder / "values")
    return StageOutputs(artifacts={"values": "values", "policy": "policy"}, notes=_notes(result.diagnostics))


def _settings(config: TrainTokenValues) -> TokenIQLConfig | TokenCQLConfig:
    """The trainer's own configuration out of the stage."""
    if isinstance(config, TrainTokenIQLValues):
        return part_of(config, TokenIQLConfig)
    return part_of(config, TokenCQLConfig)


def _notes(diagnostics: dict[str, float]) -> tuple[str, ...]:
    states = "states kept" if diagnostics["states_kept"] else "states computed for every batch"
    fitted = f"{diagnostics['decisions']:,.0f} tokens, {diagnostics['updates']:.0f} updates, {states}"
    losses = ", ".join(
        f"{name.replace('_', ' ')} {diagnostics[f'held_out/{name}']:.4f}"
        for name in ("q_loss", "value_loss", "conservative_loss", "mean_q", "mean_v")
        if f"held_out/{name}" in diagnostics
    )
    return (fitted, f"on held-out tasks: {losses}") if losses else (fitted,)


def _link(source: str, target: str) -> Any:
    """A second name for a file; a copy where the file system has none. Files of a stage are never written to again."""
    try:
        os.link(Path(source).resolve(), target)
    except OSError:
        shutil.copy2(source, target)
    return target
