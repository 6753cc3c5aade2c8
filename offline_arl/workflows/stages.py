"""The stages a pipeline file can hold: one frozen configuration class a kind, a closed union.

A field marked `Ref("store")` names an earlier stage that produces a store; the runner passes that stage's output.
A field marked `InputFile()` holds paths whose content counts: when a file changes, the stage runs again.

The stages that train extend the configuration of their trainer, so each setting and its default stand in one place
and a pipeline file sets them directly (`stages.bc.learning_rate`); `part_of` takes the trainer's part out again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from offline_arl.models.config import FeatureConfig
from offline_arl.online.config import GrpoConfig
from offline_arl.rewards.components import RewardConfig
from offline_arl.trainers.config import IQLConfig, WeightedBCConfig

_POLICY_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
Dtype = Literal["float32", "bfloat16"]  # of the weights in memory
Artifact = Literal["logs", "store", "policy", "dataset", "values"]


@dataclass(frozen=True)
class Ref:
    """Marks a field that names an earlier stage (or several) and says which of its artifacts is needed."""

    artifact: Artifact


@dataclass(frozen=True)
class InputFile:
    """Marks a field that holds a path or several."""


class Stage(BaseModel):
    """What all kinds share. `seeded` is False where the result does not depend on the pipeline's seed."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    produces: ClassVar[tuple[Artifact, ...]] = ()
    seeded: ClassVar[bool] = True

    def references(self) -> Iterator[tuple[str, str, Artifact]]:
        """Each (field, stage name, artifact) that the configuration refers to."""
        for field, value, mark in self._marked(Ref):
            for name in (value,) if isinstance(value, str) else value:
                yield field, name, mark.artifact

    def input_files(self) -> Iterator[tuple[str, str]]:
        """Each (field, path) of the files that the stage reads."""
        for field, value, _ in self._marked(InputFile):
            for path in (value,) if isinstance(value, str) else value:
                yield field, path

    def _marked(self, mark_type: type[Any]) -> Iterator[tuple[str, Any, Any]]:
        for field, info in type(self).model_fields.items():
            value = getattr(self, field)
            for mark in info.metadata:
                if isinstance(mark, mark_type) and value is not None:
                    yield field, value, mark


class GenerateLogs(Stage):
    """Write logs of mixed quality with an environment's scripted agents, in OpenAI chat form."""

    kind: Literal["generate_logs"]
    environment: str
    trajectories: int = Field(4000, ge=1)

    produces: ClassVar[tuple[Artifact, ...]] = ("logs",)


class Ingest(Stage):
    """Read logs into a trajectory store: those of a `generate_logs` stage, or `source`.

    `outcome` names a judgement that decides success (see `offline-arl label`), for logs that are judged by
    feedback; with `outcome_threshold` a number of at least that (at most, where lower is better) is a success.
    """

    kind: Literal["ingest"]
    logs: Annotated[str | None, Ref("logs")] = None
    source: Annotated[tuple[str, ...] | str | None, InputFile()] = None
    format: str = "auto"
    engine: Literal["local", "ray"] = "local"
    workers: int = Field(1, ge=1)
    redact: bool = False
    outcome: str | None = None
    outcome_threshold: float | None = None

    produces: ClassVar[tuple[Artifact, ...]] = ("store",)
    seeded: ClassVar[bool] = False


class InitialPolicy(Stage):
    """The policy that training starts from.

    `model` is "tiny" (about 1 M parameters, its tokenizer trained on the store's text) or any Hugging Face chat
    model: a folder, or a name that is in the local cache or can be downloaded.
    """

    kind: Literal["initial_policy"]
    store: Annotated[str, Ref("store")]
    model: str
    vocabulary_size: int = Field(1024, ge=300)
    tie_embeddings: bool = True
    dtype: Dtype = "float32"

    produces: ClassVar[tuple[Artifact, ...]] = ("policy",)


class Dataset(Stage):
    """Tokenize the store into segments with exact action masks, for the tokenizer of `policy`.

    `splits`: only the trajectories of these splits of the store; all trajectories where there are none.
    """

    kind: Literal["dataset"]
    form: Literal["bc", "filtered_bc", "transitions", "return_conditioned"]
    store: Annotated[str, Ref("store")]
    policy: Annotated[str, Ref("policy")]
    splits: tuple[str, ...] = ()
    max_tokens: int | None = Field(1024, ge=16)  # of a segment; None: no bound
    rewards: RewardConfig = RewardConfig()

    produces: ClassVar[tuple[Artifact, ...]] = ("dataset",)
    seeded: ClassVar[bool] = False


class TrainCloning(WeightedBCConfig, Stage):
    """Behavior cloning; "filtered_bc" needs a dataset of form filtered_bc and differs in name only."""

    kind: Literal["train"]
    algorithm: Literal["bc", "filtered_bc"]
    dataset: Annotated[str, Ref("dataset")]
    policy: Annotated[str, Ref("policy")]
    dtype: Dtype = "float32"

    produces: ClassVar[tuple[Artifact, ...]] = ("policy",)


class TrainValues(IQLConfig, Stage):
    """Twin Q and V heads on cached hidden states of `policy`, by step-level implicit Q-learning."""

    kind: Literal["train"]
    algorithm: Literal["iql_values"]
    dataset: Annotated[str, Ref("dataset")]
    policy: Annotated[str, Ref("policy")]
    dtype: Dtype = "float32"
    features: FeatureConfig = FeatureConfig()

    produces: ClassVar[tuple[Artifact, ...]] = ("values",)


class TrainIQL(WeightedBCConfig, Stage):
    """Advantage-weighted extraction of a policy from the value heads, starting from `policy`."""

    kind: Literal["train"]
    algorithm: Literal["iql"]
    dataset: Annotated[str, Ref("dataset")]
    policy: Annotated[str, Ref("policy")]
    dtype: Dtype = "float32"
    values: Annotated[str, Ref("values")]
    inverse_temperature: float = Field(3.0, ge=0)
    max_weight: float = Field(100.0, gt=0)

    produces: ClassVar[tuple[Artifact, ...]] = ("policy",)


class Online(GrpoConfig, Stage):
    """GRPO on rollouts in an environment, warm-started from `policy`, which is also the KL reference.

    The episodes of training are written to a store of their own.
    """

    kind: Literal["online"]
    algorithm: Literal["grpo"]
    policy: Annotated[str, Ref("policy")]
    environment: str
    tasks: int = Field(2000, ge=1)  # training tasks to draw from
    validation_tasks: int = Field(100, ge=1)  # for the gate, and to choose the policy that is kept

    produces: ClassVar[tuple[Artifact, ...]] = ("policy", "store")


class Evaluate(Stage):
    """Success, steps, tool-call accuracy and invalid actions of policies on tasks that no training saw.

    The names of the stages in `policies` are the policies' names in the metrics (`success/bc`).
    """

    kind: Literal["evaluate"]
    policies: Annotated[tuple[str, ...], Ref("policy")]
    store: Annotated[str | None, Ref("store")] = None  # adds the row "behavior": the logs themselves
    environment: str
    split: Literal["validation", "test"] = "test"
    tasks: int = Field(300, ge=1)
    greedy: bool = True
    sampled: bool = True
    backend: Literal["auto", "vllm", "transformers"] = "auto"
    max_tokens_per_step: int = Field(64, ge=1)
    max_total_tokens: int = Field(1024, ge=16)  # of an episode
    dtype: Dtype = "float32"

    @field_validator("policies")
    @classmethod
    def _check_names(cls, policies: tuple[str, ...]) -> tuple[str, ...]:
        """The names are parts of metric names, where `behavior` stands for the logs."""
        for name in policies:
            if not _POLICY_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name; use letters, digits, '_', '.' and '-'")
            if name == "behavior":
                raise ValueError("'behavior' is the name of the logs themselves; choose another")
            if policies.count(name) > 1:
                raise ValueError(f"{name!r} stands twice")
        return policies


Train = Annotated[TrainCloning | TrainValues | TrainIQL, Field(discriminator="algorithm")]
AnyStage = Annotated[
    GenerateLogs | Ingest | InitialPolicy | Dataset | Train | Online | Evaluate, Field(discriminator="kind")
]

STAGE_TYPES: tuple[type[Stage], ...] = (
    GenerateLogs, Ingest, InitialPolicy, Dataset, TrainCloning, TrainValues, TrainIQL, Online, Evaluate,
)  # fmt: skip


ConfigT = TypeVar("ConfigT", bound=BaseModel)


def part_of(stage: Stage, kind: type[ConfigT]) -> ConfigT:
    """The trainer's own configuration out of a stage that extends it."""
    return kind.model_validate({name: getattr(stage, name) for name in kind.model_fields})


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
