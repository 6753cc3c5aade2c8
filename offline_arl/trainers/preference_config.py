"""Configurations of preference training. This module imports no torch, so that pipeline files can be checked."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from offline_arl.trainers.config import WeightedBCConfig


class PreferenceConfig(WeightedBCConfig):
    """What all preference objectives share; the loss of an update is the mean over its rows, times their weights.

    The settings are those of cloning, with the papers' gentle learning rate. `tokens_per_batch` counts a prompt that
    both sides of a pair share once. `chosen_nll_weight` adds that much of the chosen side's mean negative
    log-likelihood (Pang et al. 2024, "Iterative Reasoning Preference Optimization"), which keeps chosen answers from
    becoming less likely; it is 0 in the papers of the losses themselves, and 0 here.
    """

    epochs: float = Field(default=1.0, gt=0, le=100_000)
    learning_rate: float = Field(default=1e-6, gt=0, le=1)
    schedule: Literal["linear", "cosine", "constant_with_warmup"] = "linear"
    warmup_fraction: float = Field(default=0.1, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0, lt=1)
    adam_beta2: float = Field(default=0.999, gt=0, lt=1)
    max_gradient_norm: PositiveFloat = 10.0  # that of the DPO authors
    packing: Literal[False] = False  # both sides of a pair share their prompt instead
    lora_dropout: float = Field(default=0.0, ge=0, le=0)  # noise on one side of a comparison is no preference


class PairConfig(PreferenceConfig):
    """Training on pairs."""

    chosen_nll_weight: NonNegativeFloat = 0.0


class DPOConfig(PairConfig):
    """Direct preference optimization; with `label_smoothing` above 0 the conservative one (cDPO).

    `label_smoothing` is the share of pairs whose label is thought to be wrong.
    """

    dpo_beta: PositiveFloat = 0.1
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)


class IPOConfig(PairConfig):
    """Identity preference optimization; `dpo_beta` is tau.

    `length_average` takes means over tokens in the place of the equation's sums, as TRL does. The distance asked for,
    `1 / (2 * dpo_beta)`, is then one per token.
    """

    dpo_beta: PositiveFloat = 0.1
    length_average: bool = False


class SimPOConfig(PairConfig):
    """SimPO: mean log-probabilities, a margin, no reference.

    `simpo_margin` is gamma; the authors' code sets it to a quarter of beta. `monitor_reference` computes the start's
    log-probabilities all the same, for the monitors alone; without it there is no KL and no log-ratio to look at.
    """

    simpo_beta: PositiveFloat = 2.0
    simpo_margin: NonNegativeFloat = 0.5
    monitor_reference: bool = True


class KTOConfig(PreferenceConfig):
    """KTO on single answers that are labeled desirable or not.

    The paper keeps the weighted numbers of desirable and undesirable answers within 1 and 4/3 of one another
    (equation 8 and section 4.2); training warns where the weights do not.
    """

    dpo_beta: PositiveFloat = 0.1
    desirable_weight: PositiveFloat = 1.0
    undesirable_weight: PositiveFloat = 1.0


AnyPreferenceConfig = DPOConfig | IPOConfig | SimPOConfig | KTOConfig
