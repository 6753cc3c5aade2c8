"""Preference losses; a decision is a pair, or a completion."""

from __future__ import annotations

import functools

import torch

from conformance.case import B, Case, Inputs, T, chance, randn, row, some_mask
from offline_arl import objectives

CONSTANT = ("reference_chosen_logprobs", "reference_rejected_logprobs")
POLICY = ("chosen_logprobs", "rejected_logprobs")


def _draw_pairs(generator: torch.Generator, dtype: torch.dtype) -> Inputs:
    logprobs = {name: -5 * randn(generator, dtype, B, T).abs() for name in (*POLICY, *CONSTANT)}
    return {**logprobs, "mask": some_mask(generator)}


def _draw_means(generator: torch.Generator, dtype: torch.dtype) -> Inputs:
    names = ("chosen_mean_logprobs", "rejected_mean_logprobs")
    return {**{name: -randn(generator, dtype, B, T).abs() for name in names}, "mask": some_mask(generator)}


def _draw_completions(generator: torch.Generator, dtype: torch.dtype) -> Inputs:
    return {
        "logprobs": -5 * randn(generator, dtype, B, T).abs(),
        "reference_logprobs": -5 * randn(generator, dtype, B, T).abs(),
        "desirable": chance(generator, 0.5, B, T),
        "reference_point": randn(generator, dtype, 1)[0].abs(),
        "mask": some_mask(generator),
    }


# h = (-1 - -2) - (-3 - -1) = 3 in the first pair; the second is masked.
PAIR = {
    "chosen_logprobs": row(-1.0, -9.0),
    "rejected_logprobs": row(-3.0, -9.0),
    "reference_chosen_logprobs": row(-2.0, 9.0),
    "reference_rejected_logprobs": row(-1.0, 9.0),
    "mask": row(True, False),
}

PREFERENCE_CASES = {
    "dpo_loss": Case(
        functools.partial(objectives.dpo_loss, dpo_beta=0.5, label_smoothing=0.25),
        _draw_pairs,
        differentiable=POLICY,
        constant=CONSTANT,
        # beta h = 1.5: 0.75 log(1 + e^-1.5) + 0.25 log(1 + e^1.5) = 0.75 * 0.2014133 + 0.25 * 1.7014133.
        hand=(PAIR, [[0.5764133, 0.0]]),
    ),
    "ipo_loss": Case(
        functools.partial(objectives.ipo_loss, dpo_beta=0.25),
        _draw_pairs,
        differentiable=POLICY,
        constant=CONSTANT,
        # (3 - 1 / 0.5) ** 2.
        hand=(PAIR, [[1.0, 0.0]]),
    ),
    "simpo_loss": Case(
        functools.partial(objectives.simpo_loss, simpo_beta=2.0, simpo_margin=0.5),
        _draw_means,
        differentiable=("chosen_mean_logprobs", "rejected_mean_logprobs"),
        constant=(),
        # 2 (-1 - -2) - 0.5 = 1.5: log(1 + e^-1.5).
        hand=(
            {
                "chosen_mean_logprobs": row(-1.0, -9.0),
                "rejected_mean_logprobs": row(-2.0, -9.0),
                "mask": row(True, False),
            },
            [[0.2014133, 0.0]],
        ),
    ),
    "kto_loss": Case(
        functools.partial(objectives.kto_loss, dpo_beta=0.5, desirable_weight=1.0, undesirable_weight=2.0),
        _draw_completions,
        differentiable=("logprobs",),
        constant=("reference_logprobs", "reference_point"),
        shared=("reference_point",),
        # Log-ratios 3 and 3, z0 = 1, so beta (r - z0) = 1: sigmoid(-1) = 0.2689414 and 2 sigmoid(1) = 1.4621172.
        hand=(
            {
                "logprobs": row(-1.0, -2.0, 9.0),
                "reference_logprobs": row(-4.0, -5.0, 9.0),
                "desirable": row(True, False, True),
                "reference_point": torch.tensor(1.0),
                "mask": row(True, True, False),
            },
            [[0.2689414, 1.4621172, 0.0]],
        ),
    ),
}
