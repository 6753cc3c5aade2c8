"""Stages that train: offline from a dataset, online from rollouts."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from offline_arl.environments.safety_config import SafetyConfig
from offline_arl.models.config import FeatureConfig
from offline_arl.online.config import GrpoConfig
from offline_arl.trainers.config import (
    BehaviorValuesConfig,
    CQLConfig,
    IQLConfig,
    TokenCQLConfig,
    TokenIQLConfig,
    WeightedBCConfig,
)
from offline_arl.workflows.stages.base import Artifact, Dtype, Ref, Stage


class CloningStage(WeightedBCConfig, Stage):
    """What the stages share that clone steps of `dataset`, from `policy` on.

    `rehearsal`: a dataset, of which as many rows are cloned in between, all with weight 1, as make up
    `rehearsal_fraction` of the tokens, so that the policy keeps what it learned from them.
    """

    kind: Literal["train"]
    dataset: Annotated[str, Ref("dataset")]
    policy: Annotated[str, Ref("policy")]
    dtype: Dtype = "float32"
    rehearsal: Annotated[str | None, Ref("dataset")] = None
    rehearsal_fraction: float = Field(0.1, gt=0, lt=1)

    produces: ClassVar[tuple[Artifact, ...]] = ("policy",)
    shared: ClassVar[bool] = True

    @model_validator(mode="after")
    def _check_rehearsal(self) -> Self:
        """A setting that nothing would read is refused."""
        default = type(self).model_fields["rehearsal_fraction"].default
        if self.rehearsal is None and self.rehearsal_fraction != default:
            raise ValueError("rehearsal_fraction goes with a dataset to rehearse; name one, or leave it out")
        return self


class TrainCloning(CloningStage):
    """Behavior cloning; "filtered_bc" needs a dataset of form filtered_bc and differs in name only."""

    algorithm: Literal["bc", "filtered_bc"]


class TrainDecisionTransformer(CloningStage):
    """The Decision Transformer: cloning of every step, good and bad, with its return in the context.

    Needs a dataset of form return_conditioned. How returns are written is saved with the policy, which `evaluate` then
    asks for the best return of the training data, or for `target_returns`.

    `balance_returns`: how much more often attempts of rare classes of returns are seen, from 0 (all alike, as in the
    paper) to 1 (each class has the same say). An epoch has as many steps as without.
    """

    algorithm: Literal["dt"]
    dataset: Annotated[str, Ref("dataset", ("return_conditioned",))]
    balance_returns: float = Field(0.0, ge=0, le=1)


class ValueStage(Stage):
    """What the stages share that fit value heads to cached hidden states of `policy`."""

    kind: Literal["train"]
    dataset: Annotated[str, Ref("dataset", ("transitions",))]
    policy: Annotated[str, Ref("policy")]
    dtype: Dtype = "float32"
    features: FeatureConfig = FeatureConfig()

    produces: ClassVar[tuple[Artifact, ...]] = ("values",)


class TrainIQLValues(IQLConfig, ValueStage):
    """Twin Q and V heads by step-level implicit Q-learning."""

    algorithm: Literal["iql_values"]


class TrainCQLValues(CQLConfig, ValueStage):
    """Twin Q and V heads by step-level conservative Q-learning over the logged actions of a state (or Cal-QL).

    `alternatives`: so many actions are sampled from `policy` in each state and added to the candidates.
    """

    algorithm: Literal["cql_values"]
    alternatives: int = Field(0, ge=0)
    max_tokens_per_step: int = Field(64, ge=1)  # of an alternative
    max_total_tokens: int = Field(1024, ge=16)  # of a state and an alternative; longer states get none
    backend: Literal["auto", "vllm", "transformers"] = "auto"


class TrainBehaviorValues(BehaviorValuesConfig, ValueStage):
    """Twin Q and V heads of the logged behavior, by Monte-Carlo or TD(lambda) returns."""

    algorithm: Literal["behavior_values"]


TrainValues = TrainIQLValues | TrainCQLValues | TrainBehaviorValues


class TokenValueStage(Stage):
    """What the stages share that fit heads with one decision a token to hidden states of `policy`.

    `values` are the heads, `policy` the model whose states they read: trained along, or the one that came in.
    """

    kind: Literal["train"]
    dataset: Annotated[str, Ref("dataset", ("transitions",))]
    policy: Annotated[str, Ref("policy")]
    dtype: Dtype = "float32"

    produces: ClassVar[tuple[Artifact, ...]] = ("values", "policy")
    shared: ClassVar[bool] = True


class TrainTokenIQLValues(TokenIQLConfig, TokenValueStage):
    """Q over the vocabulary and V by token-level implicit Q-learning (ILQL), for value-guided decoding."""

    algorithm: Literal["token_iql_values"]


class TrainTokenCQLValues(TokenCQLConfig, TokenValueStage):
    """Q over the vocabulary and V by token-level conservative Q-learning, for value-guided decoding."""

    algorithm: Literal["token_cql_values"]


TrainTokenValues = TrainTokenIQLValues | TrainTokenCQLValues


class TrainExtraction(CloningStage):
    """Advantage-weighted extraction of a policy from the value heads, starting from `policy`.

    The names go with the values: "iql" needs those of `iql_values`, "cql" of `cql_values`, and "awr"
    (advantage-weighted regression) of `behavior_values`. `weighting`: whether a step of twice the weight counts twice
    in the loss, or its attempt is seen more often (`trainers.weighted_sampling`), which learns more in few updates.
    """

    algorithm: Literal["iql", "cql", "awr"]
    values: Annotated[str, Ref("values")]
    inverse_temperature: float = Field(3.0, ge=0)
    max_weight: float = Field(100.0, gt=0)
    weighting: Literal["loss", "sampling"] = "loss"


class Online(GrpoConfig, Stage):
    """GRPO on rollouts in an environment, warm-started from `policy`, which is also the KL reference.

    The other things that a warm start may carry are one line each: `critic` names a stage that fitted step-level values
    (turn-level advantages, and what a curriculum predicts), `replay` a dataset of logged successes, and `curriculum`
    how tasks are drawn. `feature_policy` is the policy whose hidden states the values read; by default the one that
    the stage of the values names.

    The episodes of training are written to a store of their own. `safety` bounds what the policy may do
    (`environments.safety_config`).
    """

    kind: Literal["online"]
    algorithm: Literal["grpo"]
    policy: Annotated[str, Ref("policy")]
    environment: str
    critic: Annotated[str | None, Ref("values")] = None
    feature_policy: Annotated[str | None, Ref("policy")] = None
    replay: Annotated[str | None, Ref("dataset", ("bc", "filtered_bc", "return_conditioned"))] = None
    tasks: int = Field(2000, ge=1)  # training tasks to draw from
    validation_tasks: int = Field(100, ge=1)  # for the gate, and to choose the policy that is kept
    safety: SafetyConfig | None = None

    produces: ClassVar[tuple[Artifact, ...]] = ("policy", "store", "history")
    shared: ClassVar[bool] = True

    @model_validator(mode="after")
    def _check_gate(self) -> Self:
        """A gate that can only refuse is told before anything is played."""
        if self.gate is not None and self.validation_tasks < self.gate.minimum_tasks:
            raise ValueError(
                f"validation_tasks is {self.validation_tasks} and the gate needs gate.minimum_tasks, "
                f"{self.gate.minimum_tasks}: set validation_tasks={self.gate.minimum_tasks}, or "
                f"gate.minimum_tasks={self.validation_tasks} to judge by fewer, or gate=null to start without a gate "
                "(each with --set)"
            )
        return self

    @model_validator(mode="after")
    def _check_read(self) -> Self:
        """A setting that nothing would read is refused."""
        for setting, needed in (("turn_advantages", "critic"), ("feature_policy", "critic"), ("cloning", "replay")):
            is_set = getattr(self, setting) != type(self).model_fields[setting].default
            if is_set and getattr(self, needed) is None:
                raise ValueError(f"{setting} is for a warm start with a {needed}; name one, or leave {setting} out")
        return self
