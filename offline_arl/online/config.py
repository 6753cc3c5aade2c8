"""Configuration of online GRPO."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from offline_arl.online.rows import Gate
from offline_arl.rollouts.backends import Backend
from offline_arl.rollouts.sync import FLOAT32_TOLERANCE
from offline_arl.warmstart import MINIMUM_SUCCESS, MINIMUM_TASKS


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CurriculumConfig(_Frozen):
    """Draw task types by how much their groups can teach: the variance p (1 - p) of success at estimate p."""

    floor: PositiveFloat = 0.05  # added to the variance, so that solved and hopeless types still come up
    memory: float = Field(default=0.9, ge=0, lt=1)  # of the running success of a task type, a group


class GateConfig(_Frozen):
    """When a warm start is good enough; see `warmstart.check_gate`."""

    minimum_success: float = Field(default=MINIMUM_SUCCESS, ge=0, le=1)
    minimum_tasks: PositiveInt = MINIMUM_TASKS


class GrpoConfig(_Frozen):
    """How to train online. One step samples `prompts_per_step * group_size` episodes and makes one update."""

    steps: PositiveInt = 60
    group_size: int = Field(default=8, ge=2)
    prompts_per_step: PositiveInt = 16
    learning_rate: PositiveFloat = 5e-4  # of a policy of 1 M parameters; 1e-6 to 1e-5 for billions
    warmup_steps: NonNegativeInt = 5  # without, Adam's first updates move a good policy far
    schedule: Literal["constant_with_warmup", "linear", "cosine"] = "linear"
    max_gradient_norm: PositiveFloat = 1.0
    kl_coefficient: NonNegativeFloat = 0.02  # on the k3 estimate of KL(policy || warm start), a token
    loss_type: Literal["dapo", "dr_grpo"] = "dapo"  # dr_grpo: no division by the group's standard deviation
    group_gate: Gate = "outcome"  # a group teaches where its attempts differ in this
    entropy_coefficient: NonNegativeFloat = 0.0
    temperature: PositiveFloat = 1.0
    max_tokens_per_step: PositiveInt = 64
    max_total_tokens: PositiveInt = 1024
    rows_per_batch: PositiveInt = 128  # episodes a backward pass; fewer need less memory
    curriculum: CurriculumConfig | None = None
    gate: GateConfig | None = GateConfig()  # needs validation tasks; None: start whatever the policy is worth
    validation_every: PositiveInt = 10  # steps
    sync_check_first: NonNegativeInt = 3  # the first weight syncs are all verified ...
    sync_check_every: PositiveInt = 10  # ... and then one in so many
    sync_check_episodes: PositiveInt = 8
    sync_tolerance: PositiveFloat = FLOAT32_TOLERANCE  # nats a token; about 0.1 suits bfloat16
    on_mismatch: Literal["refuse", "correct"] = "refuse"  # correct: weigh tokens by the ratio trainer : sampler
    importance_cap: PositiveFloat = 2.0  # upper bound on that weight
    dtype: Literal["float32", "bfloat16"] = "float32"
    backend: Backend = "auto"
