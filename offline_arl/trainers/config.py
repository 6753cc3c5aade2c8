"""Configurations of the trainers. This module imports no torch, so that pipeline files can be checked without it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt


class WeightedBCConfig(BaseModel):
    """How to clone. One update sees about `tokens_per_batch * gradient_accumulation_steps` padded tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    epochs: PositiveFloat = 3.0
    max_steps: PositiveInt | None = None  # updates; None: as many as the epochs give
    tokens_per_batch: PositiveInt = 2_048
    gradient_accumulation_steps: PositiveInt = 1
    optimizer: Literal["adamw", "muon"] = "adamw"  # muon: for small policies trained from scratch
    learning_rate: PositiveFloat = 1e-3
    schedule: Literal["linear", "cosine", "constant_with_warmup"] = "cosine"
    warmup_fraction: float = Field(default=0.05, ge=0, lt=1)
    weight_decay: NonNegativeFloat = 0.01
    adam_beta2: float = Field(default=0.98, gt=0, lt=1)
    max_gradient_norm: PositiveFloat = 1.0
    precision: Literal["float32", "bfloat16"] = "float32"
    share_prefix: bool = True  # encode the prompt that a batch has in common once
    gradient_checkpointing: bool = False
    lora_rank: PositiveInt | None = None  # None: train all weights
    lora_alpha: PositiveFloat = 32.0
    save_steps: PositiveInt | None = None  # None: no checkpoint before the end
    logging_steps: PositiveInt = 20
    progress: bool = False


class IQLConfig(BaseModel):
    """Implicit Q-learning. Defaults follow the paper where it has one, but for `target_update_rate`.

    `target_update_rate`: the target critics lag about 1 / rate updates behind, and a reward needs that long to move
    back by one step, so `steps * target_update_rate` must well exceed the steps of a trajectory. The paper's 0.005
    goes with a million updates; small datasets are done in a few thousand.

    `truncation`: "bootstrap" takes the value of the state after a truncated attempt's last step, as for a task that
    could have gone on; "terminal" treats it as 0, for environments in which running out of steps is a failure.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    expectile: float = Field(default=0.7, gt=0, lt=1)
    discount: float = Field(default=0.99, ge=0, le=1)
    target_update_rate: float = Field(default=0.02, gt=0, le=1)
    truncation: Literal["bootstrap", "terminal"] = "bootstrap"
    steps: PositiveInt = 1_500
    batch_size: PositiveInt = 256
    learning_rate: PositiveFloat = 1e-3
    learning_rate_decay: Literal["none", "cosine"] = "cosine"
    weight_decay: NonNegativeFloat = 1e-4
    hidden_size: PositiveInt = 128
    hidden_layers: PositiveInt = 2
    layer_norm: bool = True
    holdout_fraction: float = Field(default=0.1, ge=0, lt=1)  # of tasks, for diagnostics
    log_every: PositiveInt = 250
