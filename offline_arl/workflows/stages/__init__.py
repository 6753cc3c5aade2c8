"""The stages a pipeline file can hold: one frozen configuration class a kind, a closed union.

A field marked `Ref("store")` names an earlier stage that produces a store; the runner passes that stage's output.
A field marked `InputFile()` holds paths whose content counts: when a file changes, the stage runs again.

The stages that train extend the configuration of their trainer, so each setting and its default stand in one place
and a pipeline file sets them directly (`stages.bc.learning_rate`); `part_of` takes the trainer's part out again.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from offline_arl.workflows.stages.base import Artifact, InputFile, Ref, Stage, part_of
from offline_arl.workflows.stages.data import (
    CopyingDataset,
    Dataset,
    GenerateLogs,
    Ingest,
    InitialPolicy,
    PairsDataset,
    UnpairedDataset,
)
from offline_arl.workflows.stages.decoding import Reranked, ValueFolded, ValueGuided
from offline_arl.workflows.stages.evaluation import CompareOnline, Evaluate, PredictSuccess
from offline_arl.workflows.stages.preferences import (
    Sample,
    TrainDPO,
    TrainIPO,
    TrainKTO,
    TrainPreferences,
    TrainSimPO,
)
from offline_arl.workflows.stages.training import (
    CloningStage,
    Online,
    TrainBehaviorValues,
    TrainCloning,
    TrainCQLValues,
    TrainDecisionTransformer,
    TrainExtraction,
    TrainIQLValues,
    TrainTokenCQLValues,
    TrainTokenIQLValues,
    TrainTokenValues,
    TrainValues,
)

__all__ = [
    "STAGE_TYPES",
    "AnyStage",
    "Artifact",
    "CloningStage",
    "CompareOnline",
    "CopyingDataset",
    "Dataset",
    "Evaluate",
    "GenerateLogs",
    "Ingest",
    "InitialPolicy",
    "InputFile",
    "Online",
    "PairsDataset",
    "PredictSuccess",
    "Ref",
    "Reranked",
    "Sample",
    "Stage",
    "Train",
    "TrainBehaviorValues",
    "TrainCQLValues",
    "TrainCloning",
    "TrainDPO",
    "TrainDecisionTransformer",
    "TrainExtraction",
    "TrainIPO",
    "TrainIQLValues",
    "TrainKTO",
    "TrainPreferences",
    "TrainSimPO",
    "TrainTokenCQLValues",
    "TrainTokenIQLValues",
    "TrainTokenValues",
    "TrainValues",
    "UnpairedDataset",
    "ValueFolded",
    "ValueGuided",
    "part_of",
    "stage_type",
]

Train = Annotated[
    TrainCloning
    | TrainDecisionTransformer
    | TrainValues
    | TrainTokenValues
    | TrainExtraction
    | TrainPreferences
    | ValueGuided
    | ValueFolded
    | Reranked,
    Field(discriminator="algorithm"),
]
AnyDataset = Annotated[Dataset | PairsDataset | UnpairedDataset | CopyingDataset, Field(discriminator="form")]
AnyStage = Annotated[
    GenerateLogs
    | Ingest
    | InitialPolicy
    | AnyDataset
    | Train
    | Sample
    | Online
    | Evaluate
    | PredictSuccess
    | CompareOnline,
    Field(discriminator="kind"),
]

STAGE_TYPES: tuple[type[Stage], ...] = (
    GenerateLogs, Ingest, InitialPolicy, Dataset, PairsDataset, UnpairedDataset, CopyingDataset,
    TrainCloning, TrainDecisionTransformer, TrainIQLValues,
    TrainCQLValues, TrainBehaviorValues, TrainTokenIQLValues, TrainTokenCQLValues, TrainExtraction,
    TrainDPO, TrainIPO, TrainSimPO, TrainKTO, Sample,
    ValueGuided, ValueFolded, Reranked, Online, Evaluate, PredictSuccess, CompareOnline,
)  # fmt: skip


def stage_type(raw: dict[str, Any]) -> type[Stage] | None:
    """The class that a stage of a pipeline file will become, from its `kind` and its `algorithm` or `form`.

    None if none fits.
    """
    for candidate in STAGE_TYPES:
        fields = candidate.model_fields
        keys = ("kind", *(key for key in ("algorithm", "form") if key in fields))
        if all(raw.get(key) in _choices(fields[key].annotation) for key in keys):
            return candidate
    return None


def _choices(annotation: Any) -> tuple[Any, ...]:
    """The values of a `Literal`."""
    return tuple(getattr(annotation, "__args__", ()))
