"""Stages of preference learning: training on pairs and labels, and sampling a policy's own attempts."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from offline_arl.environments.safety_config import SafetyConfig
from offline_arl.trainers.preference_config import DPOConfig, IPOConfig, KTOConfig, SimPOConfig
from offline_arl.workflows.stages.base import Artifact, Dtype, Ref, Stage


class PreferenceStage(Stage):
    """What the stages share that train on preferences.

    `reference`: the frozen policy that the trained one is held to; `policy` itself where none is named.
    """

    kind: Literal["train"]
    dataset: Annotated[str, Ref("dataset")]
    policy: Annotated[str, Ref("policy")]
    reference: Annotated[str | None, Ref("policy")] = None
    dtype: Dtype = "float32"

    produces: ClassVar[tuple[Artifact, ...]] = ("policy",)
    shared: ClassVar[bool] = True


class TrainDPO(DPOConfig, PreferenceStage):
    """Direct preference optimization on a dataset of form pairs."""

    algorithm: Literal["dpo"]
    dataset: Annotated[str, Ref("dataset", ("pairs",))]


class TrainIPO(IPOConfig, PreferenceStage):
    """Identity preference optimization on a dataset of form pairs."""

    algorithm: Literal["ipo"]
    dataset: Annotated[str, Ref("dataset", ("pairs",))]


class TrainSimPO(SimPOConfig, PreferenceStage):
    """SimPO on a dataset of form pairs; `reference` serves the monitors alone."""

    algorithm: Literal["simpo"]
    dataset: Annotated[str, Ref("dataset", ("pairs",))]


class TrainKTO(KTOConfig, PreferenceStage):
    """KTO on a dataset of form unpaired.

    `recommended_weights` multiplies the class weights by those with which the dataset says that its labels balance.
    """

    algorithm: Literal["kto"]
    dataset: Annotated[str, Ref("dataset", ("unpaired",))]
    recommended_weights: bool = False


TrainPreferences = TrainDPO | TrainIPO | TrainSimPO | TrainKTO


class Sample(Stage):
    """Sample a policy's own attempts at an environment's tasks and keep some of them in a store.

    "successes" keeps what the environment judged a success: to clone them (a dataset of form bc) is rejection-sampling
    fine-tuning. Equal successes at a task are kept once, and of different ones at most `per_task`: the "shortest"
    (fewest tokens), or the most "diverse", which start with the shortest and differ most from one another. "all" keeps
    every attempt, to mine pairs of the policy's own attempts.
    """

    kind: Literal["sample"]
    policy: Annotated[str, Ref("policy")]
    environment: str
    tasks: int = Field(500, ge=1)
    attempts: int = Field(8, ge=1)  # at each task
    temperature: float = Field(1.0, gt=0)
    keep: Literal["successes", "all"] = "successes"
    per_task: int | None = Field(1, ge=1)  # None: all that differ
    prefer: Literal["shortest", "diverse"] = "shortest"
    backend: Literal["auto", "vllm", "transformers"] = "auto"
    max_tokens_per_step: int = Field(64, ge=1)
    max_total_tokens: int = Field(1024, ge=16)  # of an episode
    dtype: Dtype = "float32"
    safety: SafetyConfig | None = None  # bounds of what the policy may do

    produces: ClassVar[tuple[Artifact, ...]] = ("store",)
