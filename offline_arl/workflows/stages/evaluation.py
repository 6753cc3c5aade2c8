"""Stages that measure policies."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from offline_arl.environments.safety_config import SafetyConfig
from offline_arl.trainers.config import BehaviorValuesConfig, IQLConfig
from offline_arl.workflows.stages.base import Dtype, Ref, Stage

TargetReturn = Literal["best", "task"] | float

_POLICY_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class Evaluate(Stage):
    """Success, steps, tool-call accuracy and invalid actions of policies on tasks that no training saw.

    The names of the stages in `policies` are the policies' names in the metrics (`success/bc`).

    `target_returns`: what return-conditioned policies are asked for: a number; "best", the best return of their
    training data; "task", what the environment says for each task. Of several, the first gives the policy's figures
    and all numbers together its calibration curve (`achieved_return/dt/0.5`).

    `schedule`: "continuous" where tools are slow (`rollouts.collect`). `servers`: URLs of vLLM servers that run a
    policy of the same architecture under the name `served_model` (`rollouts.server_sampler`); each policy's weights are
    loaded into them. `safety`: bounds of what policies may do (`environments.safety_config`).
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
    schedule: Literal["lockstep", "continuous"] = "lockstep"
    servers: tuple[str, ...] = ()
    served_model: str = "policy"
    target_returns: tuple[TargetReturn, ...] | TargetReturn = "best"
    safety: SafetyConfig | None = None

    @property
    def targets(self) -> tuple[TargetReturn, ...]:
        """The target returns as a list."""
        return self.target_returns if isinstance(self.target_returns, tuple) else (self.target_returns,)

    @field_validator("target_returns")
    @classmethod
    def _check_targets(
        cls, targets: tuple[TargetReturn, ...] | TargetReturn
    ) -> tuple[TargetReturn, ...] | TargetReturn:
        if targets == ():
            raise ValueError("is empty; give a number, best or task")
        return targets

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


class PredictSuccess(Stage):
    """Can success be told before an attempt ends? Value heads on hidden states, a linear probe of these, and a
    regression on what can be counted, by cross-validation over tasks.

    The hidden states are those that the stage `values` keeps; heads are fitted anew for each fold.
    """

    kind: Literal["predict_success"]
    store: Annotated[str, Ref("store")]
    dataset: Annotated[str, Ref("dataset")]
    values: Annotated[str, Ref("values")]
    folds: int = Field(5, ge=2)
    fractions: tuple[Annotated[float, Field(gt=0, le=1)], ...] = Field((0.25, 0.5, 0.75, 1.0), min_length=1)
    iql: IQLConfig = IQLConfig()
    behavior: BehaviorValuesConfig = BehaviorValuesConfig()


class CompareOnline(Stage):
    """How many environment steps online trainings need to close half of the gap between a start and a target.

    The gap is that of sampled validation success between the start of `baseline` and `target`, the same for all
    `runs`, which have to be validated on the same tasks. Also measured: success at the end of each run, and how far it
    fell below its start on the way.
    """

    kind: Literal["compare_online"]
    runs: Annotated[tuple[str, ...], Ref("history")]
    baseline: Annotated[str, Ref("history")]
    target: float = Field(0.97, gt=0, le=1)

    seeded: ClassVar[bool] = False
