"""From a stage's configuration to the function that does it. Modules are imported when their stage runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from offline_arl import environments
from offline_arl.environments.protocol import KnowsTargetReturns
from offline_arl.errors import DataError, MissingDependencyError, UsageError
from offline_arl.logs.adapter import adapter_named
from offline_arl.models.adapters import is_model_folder
from offline_arl.optional import available
from offline_arl.workflows.context import StageContext, StageOutputs
from offline_arl.workflows.stages import (
    CompareOnline,
    CopyingDataset,
    Dataset,
    Evaluate,
    GenerateLogs,
    Ingest,
    InitialPolicy,
    Online,
    PairsDataset,
    PredictSuccess,
    Reranked,
    Sample,
    Stage,
    TrainBehaviorValues,
    TrainCloning,
    TrainCQLValues,
    TrainDecisionTransformer,
    TrainDPO,
    TrainExtraction,
    TrainIPO,
    TrainIQLValues,
    TrainKTO,
    TrainSimPO,
    TrainTokenCQLValues,
    TrainTokenIQLValues,
    UnpairedDataset,
    ValueFolded,
    ValueGuided,
)

_FUNCTIONS: dict[type[Stage], str] = {
    GenerateLogs: "offline_arl.workflows.logs:generate_logs",
    Ingest: "offline_arl.workflows.logs:ingest_logs",
    InitialPolicy: "offline_arl.workflows.build:initial_policy",
    Dataset: "offline_arl.workflows.build:build_dataset",
    CopyingDataset: "offline_arl.workflows.build:build_copying_dataset",
    PairsDataset: "offline_arl.workflows.build_preferences:build_pairs_dataset",
    UnpairedDataset: "offline_arl.workflows.build_preferences:build_unpaired_dataset",
    TrainCloning: "offline_arl.workflows.train_policies:train_cloning",
    TrainDecisionTransformer: "offline_arl.workflows.train_policies:train_decision_transformer",
    TrainIQLValues: "offline_arl.workflows.train_values:train_values",
    TrainCQLValues: "offline_arl.workflows.train_values:train_values",
    TrainBehaviorValues: "offline_arl.workflows.train_values:train_values",
    TrainTokenIQLValues: "offline_arl.workflows.train_tokens:train_token_values",
    TrainTokenCQLValues: "offline_arl.workflows.train_tokens:train_token_values",
    TrainExtraction: "offline_arl.workflows.train_policies:extract_policy",
    ValueGuided: "offline_arl.workflows.decoding:make_value_guided",
    ValueFolded: "offline_arl.workflows.decoding:make_value_folded",
    Reranked: "offline_arl.workflows.decoding:make_reranked",
    TrainDPO: "offline_arl.workflows.train_preferences:train_preferences",
    TrainIPO: "offline_arl.workflows.train_preferences:train_preferences",
    TrainSimPO: "offline_arl.workflows.train_preferences:train_preferences",
    TrainKTO: "offline_arl.workflows.train_preferences:train_preferences",
    Sample: "offline_arl.workflows.sample:sample",
    Online: "offline_arl.workflows.online:train_online",
    Evaluate: "offline_arl.workflows.evaluate:evaluate",
    PredictSuccess: "offline_arl.workflows.predict_success:predict_success",
    CompareOnline: "offline_arl.workflows.compare_online:compare_online",
}
_WITHOUT_TORCH = (GenerateLogs, Ingest, CompareOnline)
_TRAINING_PACKAGES = ("torch", "transformers")


def stage_function(kind: type[Stage]) -> Callable[[Stage, StageContext], StageOutputs]:
    """The function of a kind of stage."""
    module, _, name = _FUNCTIONS[kind].partition(":")
    function: Callable[[Stage, StageContext], StageOutputs] = getattr(importlib.import_module(module), name)
    return function


def check_ready(stage: Stage, *, where: str) -> None:
    """Find out before any work begins what a stage would stumble over later.

    Raises:
        DataError: An input file does not exist.
        UsageError: No source is named, an environment, a model or a log format is not there, or an environment has no
            targets of its own where they are wanted.
        MissingDependencyError: The stage needs packages that are not installed.
    """
    if isinstance(stage, Ingest):
        if stage.logs is None and not stage.source:
            raise UsageError(f"{where} has nothing to read; name your logs with --set source=FILE")
        if stage.format != "auto":
            adapter_named(stage.format)
    for field, path in stage.input_files():
        if not path:
            raise UsageError(f"{where}.{field}: a path is empty; give a log file or folder")
        if not Path(path).expanduser().exists():
            raise DataError(f"{where}.{field}: {path} does not exist; give a log file or folder")
    if isinstance(stage, PairsDataset) and stage.negatives.environment is not None:
        environments.load(stage.negatives.environment)
    environment = getattr(stage, "environment", None)
    if environment is not None:
        family = environments.load(environment)
        wants_targets = isinstance(stage, Evaluate) and "task" in stage.targets
        if wants_targets and not isinstance(family, KnowsTargetReturns):
            raise UsageError(
                f"{where}.target_returns: the environment {environment!r} has no target return for its tasks; "
                "give numbers, or best"
            )
    if isinstance(stage, InitialPolicy):
        check_model(stage.model, where=f"{where}.model")
    if not isinstance(stage, _WITHOUT_TORCH):
        for package in _TRAINING_PACKAGES:
            if not available(package):
                raise MissingDependencyError(
                    f"{where} needs {package}, which is not installed; "
                    "install it with: pip install 'offline_arl[train]'"
                )


def check_model(model: str, *, where: str) -> None:
    """Refuse what is plainly a path and leads nowhere; a hub name (`owner/name`) is looked up when it is loaded.

    Raises:
        UsageError: The folder is missing, or holds no model.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not is_model_folder(folder):
            raise UsageError(
                f"{where}: {model} holds neither config.json nor adapter_config.json, so it is no Hugging Face model "
                "folder"
            )
        return
    if model != "tiny" and (model.startswith((".", "/", "~")) or model.count("/") != 1 or folder.exists()):
        raise UsageError(f"{where}: no model at {model}; give 'tiny', a Hugging Face model folder or a name owner/name")
