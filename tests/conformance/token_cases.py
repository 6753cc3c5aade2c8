"""Objectives with one decision a token."""

from __future__ import annotations

import torch
from torch import Tensor

from conformance.case import B, C, Case, Inputs, T, V, chance, randn, row, some_mask
from offline_arl import objectives

DISCOUNT, EXPECTILE, CONSERVATIVE_WEIGHT, TEMPERATURE, K = 0.5, 0.75, 0.5, 0.5, 2


def _draw_logprobs(generator: torch.Generator, dtype: torch.dtype) -> Inputs:
    return {
        "logits": randn(generator, dtype, B, T, V),
        "input_ids": torch.randint(V, (B, T), generator=generator),
        "mask": some_mask(generator),
    }


def _draw_vocabulary(generator: torch.Generator, dtype: torch.dtype) -> Inputs:
    return {
        "features": randn(generator, dtype, B, T, K),
        "weight": randn(generator, dtype, V, K),
        "bias": randn(generator, dtype, V),
        "input_ids": torch.randint(V, (B, T), generator=generator),
        "mask": some_mask(generator),
    }


def _vocabulary_loss(features: Tensor, weight: Tensor, bias: Tensor, input_ids: Tensor, mask: Tensor) -> Tensor:
    """The conservative term; a factor on Q makes its two gradients different ones."""
    out = objectives.token_q_values(
        features[objectives.predicting_mask(mask)], weight, bias, input_ids, mask,
        temperature=TEMPERATURE, chunk_tokens=2,
    )  # fmt: skip
    return objectives.conservative_loss(out.logsumexp.unsqueeze(0), 2 * out.q_values.unsqueeze(0), mask)


def _draw_token_iql(generator: torch.Generator, dtype: torch.dtype) -> Inputs:
    return {
        "twin_q_values": randn(generator, dtype, C, B, T),
        "twin_logsumexp": randn(generator, dtype, C, B, T),
        "target_q_values": randn(generator, dtype, C, B, T),
        "values": randn(generator, dtype, B, T),
        "bootstrap_values": randn(generator, dtype, B, T),
        "rewards": randn(generator, dtype, B, T),
        "terminated": chance(generator, 0.2, B, T),
        "truncated": chance(generator, 0.2, B, T),
        "mask": some_mask(generator),
        "has_target": chance(generator, 0.8, B, T),
    }


def _token_iql_loss(mask: Tensor, **inputs: Tensor) -> Tensor:
    losses = objectives.token_iql_losses(**inputs, action_mask=mask, discount=DISCOUNT, expectile=EXPECTILE)
    return losses.value + losses.critics + CONSERVATIVE_WEIGHT * losses.conservative


TOKEN_CASES = {
    "token_logprobs": Case(
        lambda logits, input_ids, mask: objectives.token_logprobs(logits, input_ids, mask),
        _draw_logprobs,
        differentiable=("logits",),
        constant=(),
        shifted=("logits",),
        # Token 1 at index 1 is predicted by logits [0, log 3]: probability 3 / 4, log 0.75 = -0.28768.
        hand=(
            {
                "logits": torch.tensor([[[0.0, 1.0986123], [50.0, 0.0]]]),
                "input_ids": torch.tensor([[0, 1]]),
                "mask": row(False, True),
            },
            [[0.0, -0.28768207]],
        ),
    ),
    "token_q_values": Case(
        _vocabulary_loss,
        _draw_vocabulary,
        differentiable=("features", "weight", "bias"),
        constant=(),
        shared=("weight", "bias"),
        shifted=("features",),
        # Q after the first token is 1 * (0, 0) + (0, log(3) / 2). At temperature 1/2 the soft maximum is
        # log(1 + 3) / 2 = log 2, and twice Q of the token taken, the second, is log 3: log 2 - log 3 = -0.40547.
        hand=(
            {
                "features": torch.tensor([[[1.0], [5.0]]]),
                "weight": torch.tensor([[0.0], [0.0]]),
                "bias": torch.tensor([0.0, 0.5493061]),
                "input_ids": torch.tensor([[0, 1]]),
                "mask": row(False, True),
            },
            [[0.0, -0.4054651]],
        ),
    ),
    "token_iql": Case(
        _token_iql_loss,
        _draw_token_iql,
        differentiable=("twin_q_values", "twin_logsumexp", "values"),
        constant=("target_q_values", "bootstrap_values", "rewards"),
        bootstrapped=("values",),
        leading=("twin_q_values", "twin_logsumexp", "target_q_values"),
        # Two action tokens with an observation between them; the second ends the task.
        # Value: min(5, 3) - 1 = 2: 0.75 * 4 = 3; min(1, 2) - 4 = -3: 0.25 * 9 = 2.25.
        # Critics: targets 0 + 0.5 * 4 = 2 and 1; errors (1, 0): 1; errors (0, 2): 4.
        # Conservative, half of the sum over critics: (3 - 1) + (2 - 2) = 2: 1; (1 - 1) + (4 - 3) = 1: 0.5.
        hand=(
            {
                "twin_q_values": torch.tensor([[[1.0, 99.0, 1.0]], [[2.0, 99.0, 3.0]]]),
                "twin_logsumexp": torch.tensor([[[3.0, 99.0, 1.0]], [[2.0, 99.0, 4.0]]]),
                "target_q_values": torch.tensor([[[5.0, 99.0, 1.0]], [[3.0, 99.0, 2.0]]]),
                "values": row(1.0, 99.0, 4.0),
                "bootstrap_values": row(99.0, 99.0, 99.0),
                "rewards": row(0.0, 99.0, 1.0),
                "terminated": row(False, False, True),
                "truncated": row(False, False, False),
                "mask": row(True, False, True),
                "has_target": row(True, True, True),
            },
            [[3.0 + 1.0 + 1.0, 0.0, 2.25 + 4.0 + 0.5]],
        ),
    ),
}
