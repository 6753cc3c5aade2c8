"""Stages that make policies out of values and train nothing: decoding by values, folding, choosing among steps."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from offline_arl.workflows.stages.base import Artifact, Dtype, Ref, Stage


class _TokenLevel(Stage):
    """What the stages share that tilt a policy's next-token distribution by token-level values.

    `support_threshold`: a token needs at least this share of the probability that the policy gives to its best token.
    `only_action_tokens`: and it occurs in an action of the dataset.
    """

    kind: Literal["train"]
    dataset: Annotated[str, Ref("dataset")]
    policy: Annotated[str, Ref("policy")]
    values: Annotated[str, Ref("values")]
    dtype: Dtype = "float32"
    inverse_temperature: float = Field(10.0, ge=0)
    support_threshold: float = Field(0.05, ge=0, le=1)
    only_action_tokens: bool = True
    measured_tokens: PositiveInt = 20_000  # decisions of the dataset, about, on which the policy is measured

    produces: ClassVar[tuple[Artifact, ...]] = ("policy",)


class ValueGuided(_TokenLevel):
    """Value-guided decoding: log behavior + inverse_temperature * (Q - V) on the tokens that `policy` supports.

    The folder is sampled as such by `evaluate`, on transformers and on vLLM; `vllm serve` serves it where offline_arl
    is installed.
    """

    algorithm: Literal["value_guided"]
    critics: Literal["minimum", "mean"] = "minimum"


class ValueFolded(_TokenLevel):
    """Value-guided decoding of linear heads as a plain model folder: the mean of the critics in the output layer.

    Without a support mask; the probability that it gives to tokens outside the support is measured on `dataset`. An
    output layer without a bias cannot hold that of the heads; `error_tolerance` is how far the policy may be from the
    guided one because of that, a mean total variation distance.
    """

    algorithm: Literal["value_folded"]
    error_tolerance: PositiveFloat = 0.02


class Reranked(Stage):
    """Best of n: of `candidates` sampled steps the one of the highest step-level Q is taken, or a draw by Q.

    `feature_policy`: the policy on whose hidden states `values` were trained, if that is not `policy`.
    """

    kind: Literal["train"]
    algorithm: Literal["reranked"]
    policy: Annotated[str, Ref("policy")]
    values: Annotated[str, Ref("values")]
    feature_policy: Annotated[str | None, Ref("policy")] = None
    dtype: Dtype = "float32"  # that of the stage that trained the values
    candidates: PositiveInt = 8
    candidate_temperature: PositiveFloat = 1.0
    inverse_temperature: float = Field(10.0, ge=0)  # of draws; a greedy request takes the best candidate

    produces: ClassVar[tuple[Artifact, ...]] = ("policy",)
    seeded: ClassVar[bool] = False
