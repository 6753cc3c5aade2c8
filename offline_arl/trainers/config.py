"""Configurations of the trainers. This module imports no torch, so that pipeline files can be checked without it."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

# Settings that change nothing about the weights that a training ends with: it may go on under others.
OF_NO_CONSEQUENCE = frozenset({"save_steps", "logging_steps", "progress", "report_to", "project"})


class WeightedBCConfig(BaseModel):
    """How to clone. One update sees about `tokens_per_batch * gradient_accumulation_steps` padded tokens, on one
    process or many: processes share an update out among them.

    `precision`: bfloat16 computes in bfloat16 and keeps weights and optimizer in the type that they are loaded in.
    `packing` puts several segments in one row instead of padding, where that is exact for the model; it takes the
    place of `share_prefix`. `report_to` needs the package of each tracker.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    epochs: float = Field(default=3.0, gt=0, le=100_000)
    max_steps: PositiveInt | None = None  # updates; None: as many as the epochs give
    tokens_per_batch: PositiveInt = 2_048
    gradient_accumulation_steps: int = Field(default=1, ge=1, le=65_536)
    optimizer: Literal["adamw", "muon"] = "adamw"  # muon: for small policies trained from scratch
    learning_rate: float = Field(default=1e-3, gt=0, le=1)
    schedule: Literal["linear", "cosine", "constant_with_warmup"] = "cosine"
    warmup_fraction: float = Field(default=0.05, ge=0, lt=1)
    weight_decay: float = Field(default=0.01, ge=0, lt=1)
    adam_beta2: float = Field(default=0.98, gt=0, lt=1)
    max_gradient_norm: PositiveFloat = 1.0
    precision: Literal["float32", "bfloat16"] = "float32"
    share_prefix: bool = True  # encode the prompt that a batch has in common once
    packing: bool = False
    gradient_checkpointing: bool = False
    lora_rank: int | None = Field(default=None, ge=1, le=4_096)  # None: train all weights
    lora_alpha: PositiveFloat = 32.0
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    save_steps: PositiveInt | None = None  # updates between checkpoints to resume from; None: none
    logging_steps: PositiveInt = 20
    progress: bool = False  # a bar on standard error
    report_to: tuple[Literal["tensorboard", "trackio", "wandb"], ...] = ()
    project: str = "offline_arl"  # of the trackers that have projects


class ValueConfig(BaseModel):
    """What step-level value training has in common: twin critics Q and a value function V on cached features.

    `target_update_rate`: the target critics lag about 1 / rate updates behind, and a reward needs that long to move
    back by one step, so `steps * target_update_rate` must well exceed the steps of a trajectory. The IQL paper's 0.005
    goes with a million updates; small datasets are done in a few thousand.

    `truncation`: "bootstrap" takes the value of the state after a truncated attempt's last step, as for a task that
    could have gone on; "terminal" treats it as 0, for environments in which running out of steps is a failure.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

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


class IQLConfig(ValueConfig):
    """Implicit Q-learning: V is an upper expectile of Q over the logged actions, the critics' targets read V.

    `ensemble`: so many pairs of critics with a V each, trained side by side on the same batches from other initial
    weights; Q, V and advantages are their means. With few successes a single one is off by more than what a step is
    worth, each somewhere else.
    """

    expectile: float = Field(default=0.7, gt=0, lt=1)
    ensemble: int = Field(default=1, ge=1, le=64)


class CQLConfig(ValueConfig):
    """Conservative Q-learning over candidate actions: all that the logs did in the very same state, and what a policy
    proposed there where such proposals are given.

    The critics' targets are double Q-learning over the candidates of the next state. `conservative_weight` pulls the
    critics of candidates other than the logged action down; 0 leaves Q-learning on the support of the data.
    `calibrated` (Cal-QL) pulls none below what the logged attempt really earned. V is the mean of Q over the logged
    actions; the targets read it only where no candidate is known.

    The weight and the temperature are in units of return: with returns between 0 and 1 a weight of 1 moves Q by up to
    half a success.
    """

    conservative_weight: NonNegativeFloat = 0.1
    conservative_temperature: PositiveFloat = 1.0
    calibrated: bool = False
    max_candidates: int = Field(default=16, ge=2)  # of a state; the most frequent logged actions go first


class BehaviorValuesConfig(ValueConfig):
    """The values of the logged behavior: Q and V are fitted to lambda-returns, with a `trace_decay` of 1 to what was
    really earned (Monte-Carlo). Targets are computed anew every `refresh_every` updates.
    """

    trace_decay: float = Field(default=1.0, ge=0, le=1)
    refresh_every: PositiveInt = 50


class TokenValueConfig(WeightedBCConfig):
    """What token-level value training has in common: how heads are shaped and fitted, and whether the model learns too.

    `discount_unit`: "step" discounts once a message, at its last token, so that a token has the return of its step
    however long messages are; "token" discounts every token, as in the ILQL paper.

    `target_update_rate`, `truncation`: as in `ValueConfig`. A reward moves back token by token here, so for messages of
    L tokens `max_steps * target_update_rate` must well exceed L times the steps of a trajectory.

    `conservative_weight`: pushes down the Q of tokens that the data lack. Without it (0) training never goes through
    the vocabulary, which is much faster, and Q of untrained tokens means nothing: decode with a support threshold.

    `bias`: False keeps the bias of linear critics at 0; such heads fold exactly into an output layer that has none
    (`value_folded`), as most models have it. What all tokens share is then learned from the mean of the states.

    `language_model`: "frozen" reads the hidden states of the policy as it is. They are computed once and kept, where
    they take at most `cache_megabytes`, and an update sees `batch_size` decisions; otherwise they are computed for
    every batch of `tokens_per_batch` tokens. "trained" trains the model along with the heads, adapters alone with
    `lora_rank`; the cloning loss of all action tokens, weighted with `bc_weight`, keeps it a policy. The settings of
    the optimizer are for the heads, `policy_learning_rate` is the model's.
    """

    max_steps: PositiveInt | None = 2_000  # updates; None: as many as the epochs give
    optimizer: Literal["adamw"] = "adamw"
    learning_rate: float = Field(default=1e-3, gt=0, le=1)
    weight_decay: float = Field(default=1e-4, ge=0, lt=1)
    adam_beta2: float = Field(default=0.999, gt=0, lt=1)
    max_gradient_norm: PositiveFloat = 10.0
    packing: Literal[False] = False
    discount: float = Field(default=0.99, ge=0, le=1)
    discount_unit: Literal["step", "token"] = "step"
    expectile: float = Field(default=0.7, gt=0, lt=1)
    conservative_weight: NonNegativeFloat = 0.01  # that of LMRL-Gym; for returns of about 1
    conservative_temperature: PositiveFloat = 1.0
    target_update_rate: float = Field(default=0.02, gt=0, le=1)
    truncation: Literal["bootstrap", "terminal"] = "bootstrap"
    critics: int = Field(default=2, ge=1, le=2)
    hidden_layers: int = Field(default=1, ge=0, le=2)  # 0: linear heads, which fold into the output layer
    hidden_size: PositiveInt | None = None  # None: twice that of the language model, as in the paper
    bias: bool = True
    batch_size: PositiveInt = 256
    chunk_tokens: PositiveInt | None = None  # positions a pass over the vocabulary; None: 64 MiB of numbers
    cache_megabytes: NonNegativeInt = 2_048
    whiten_states: bool = True  # of a frozen model, in every direction; False: each dimension by itself
    language_model: Literal["frozen", "trained"] = "frozen"
    policy_learning_rate: float = Field(default=1e-4, gt=0, le=1)
    bc_weight: NonNegativeFloat = 1.0
    holdout_fraction: float = Field(default=0.1, ge=0, lt=1)  # of tasks, for diagnostics

    @model_validator(mode="after")
    def _only_linear_heads_fold(self) -> Self:
        if self.hidden_layers and not self.bias:
            raise ValueError("bias: false is for linear heads, which fold; set hidden_layers: 0 too, or leave bias out")
        return self


class TokenIQLConfig(TokenValueConfig):
    """Implicit Q-learning with one decision a token (ILQL): V is an expectile of Q, the critics' targets read V."""


class TokenCQLConfig(TokenValueConfig):
    """Conservative Q-learning with one decision a token. Targets are the value of the best token of the vocabulary,
    chosen and judged by different critics (double Q), so the conservative term is needed.

    V is fitted to the critics, at `expectile` 0.5 to their mean over the data's tokens, and no target reads it.
    """

    expectile: float = Field(default=0.5, gt=0, lt=1)
    conservative_weight: NonNegativeFloat = 1.0
