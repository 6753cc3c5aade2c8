"""Stages that train: offline from a dataset, online from rollouts."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from offline_arl.models.config import FeatureConfig
from offline_arl.online.config import GrpoConfig
from offline_arl.trainers.config import IQLConfig, WeightedBCConfig
from offline_arl.workflows.stages.base import Artifact, Dtype, Ref, Stage


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
