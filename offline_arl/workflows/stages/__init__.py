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
from offline_arl.workflows.stages.data import Dataset, GenerateLogs, Ingest, InitialPolicy
from offline_arl.workflows.stages.evaluation import Evaluate
from offline_arl.workflows.stages.training import Online, TrainCloning, TrainIQL, TrainValues

__all__ = [
    "STAGE_TYPES",
    "AnyStage",
    "Artifact",
    "Dataset",
    "Evaluate",
    "GenerateLogs",
    "Ingest",
    "InitialPolicy",
    "InputFile",
    "Online",
    "Ref",
    "Stage",
    "Train",
    "TrainCloning",
    "TrainIQL",
    "TrainValues",
    "part_of",
    "stage_type",
]

Train = Annotated[TrainCloning | TrainValues | TrainIQL, Field(discriminator="algorithm")]
AnyStage = Annotated[
    GenerateLogs | Ingest | InitialPolicy | Dataset | Train | Online | Evaluate, Field(discriminator="kind")
]

STAGE_TYPES: tuple[type[Stage], ...] = (
    GenerateLogs, Ingest, InitialPolicy, Dataset, TrainCloning, TrainValues, TrainIQL, Online, Evaluate,
)  # fmt: skip


def stage_type(raw: dict[str, Any]) -> type[Stage] | None:
    """The class that a stage of a pipeline file will become, from its `kind` and `algorithm`; None if neither fits."""
    for candidate in STAGE_TYPES:
        fields = candidate.model_fields
        if raw.get("kind") not in _choices(fields["kind"].annotation):
            continue
        if "algorithm" not in fields or raw.get("algorithm") in _choices(fields["algorithm"].annotation):
            return candidate
    return None


def _choices(annotation: Any) -> tuple[Any, ...]:
    """The values of a `Literal`."""
    return tuple(getattr(annotation, "__args__", ()))
