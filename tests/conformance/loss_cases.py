"""Losses of decisions, whatever a decision is."""

from __future__ import annotations

import torch
from torch import Tensor

from conformance.case import A, B, C, Case, Inputs, T, chance, randn, row, some_mask
from offline_arl import objectives

DISCOUNT, EXPECTILE, HUBER_DELTA, TEMPERATURE = 0.5, 0.75, 1.0, 0.5


def _draw_nll(generator: torch.Generator, dtype: torch.dtype) -> Inputs:
    return {
        "logprobs": -randn(generator, dtype, B, T).abs(),
        "weights": randn(generator, dtype, B, T).abs(),
        "mask": some_mask(generator),
    }


def _draw_expectile(generator: torch.Generator, dtype: torch.dtype) -> Inputs:
    return {
        "q_values": randn(generator, dtype, B, T),
        "values": randn(generator, dtype, B, T),
        "mask": some_mask(generator),
    }


def _draw_td(generator: torch.Generator, dtype: torch.dtype) -> Inputs:
    return {
        "twin_q_values": randn(generator, dtype, C, B, T),
        "rewards": randn(generator, dtype, B, T),
        "next_values": randn(generator, dtype, B, T),
        "terminated": chance(generator, 0.3, B, T),
        "mask": some_mask(generator),
    }


def _draw_double_q(generator: torch.Generator, dtype: torch.dtype) -> Inputs:
    inputs = _draw_td(generator, dtype)
    del inputs["next_values"]
    candidate_mask = chance(generator, 0.5, B, T, A)
    candidate_mask[..., 1] |= ~candidate_mask.any(dim=-1)
    return {
        **inputs,
        "online_q_values": randn(generator, dtype, C, B, T, A),
        "target_q_values": randn(generator, dtype, C, B, T, A),
        "candidate_mask": candidate_mask,
    }


def _double_q_loss(
    twin_q_values: Tensor,
    rewards: Tensor,
    terminated: Tensor,
    mask: Tensor,
    online_q_values: Tensor,
    target_q_values: Tensor,
    candidate_mask: Tensor,
) -> Tensor:
    next_values = objectives.double_q_values(online_q_values, target_q_values, candidate_mask)
    return objectives.td_loss(twin_q_values, rewards, next_values, terminated, mask, discount=DISCOUNT)


def _draw_critic(generator: torch.Generator, dtype: torch.dtype) -> Inputs:
    return {
        "twin_q_values": 2 * randn(generator, dtype, C, B, T),
        "targets": randn(generator, dtype, B, T),
        "mask": some_mask(generator),
    }


def _draw_conservative(generator: torch.Generator, dtype: torch.dtype) -> Inputs:
    return {
        "twin_logsumexp": randn(generator, dtype, C, B, T),
        "twin_q_values": randn(generator, dtype, C, B, T),
        "mask": some_mask(generator),
    }


def _draw_candidates(generator: torch.Generator, dtype: torch.dtype) -> Inputs:
    return {
        "candidate_q_values": randn(generator, dtype, C, B, T, A),
        "candidate_mask": chance(generator, 0.6, B, T, A),
        "twin_q_values": randn(generator, dtype, C, B, T),
        "mask": some_mask(generator),
    }


def _draw_cal_ql(generator: torch.Generator, dtype: torch.dtype) -> Inputs:
    return {
        **_draw_candidates(generator, dtype),
        "monte_carlo_returns": randn(generator, dtype, B, T),
        "from_policy": chance(generator, 0.5, B, T, A),
    }


def _cal_ql_loss(
    candidate_q_values: Tensor,
    candidate_mask: Tensor,
    twin_q_values: Tensor,
    mask: Tensor,
    monte_carlo_returns: Tensor,
    from_policy: Tensor,
) -> Tensor:
    calibrated = objectives.calibrated_q_values(candidate_q_values, monte_carlo_returns, from_policy)
    return objectives.candidate_conservative_loss(calibrated, candidate_mask, twin_q_values, mask, temperature=1.0)


LOSS_CASES = {
    "weighted_nll": Case(
        objectives.weighted_nll,
        _draw_nll,
        differentiable=("logprobs",),
        constant=("weights",),
        # -2 * -0.5 = 1, masked, -3 * -1 = 3.
        hand=(
            {"logprobs": row(-0.5, -9.0, -1.0), "weights": row(2.0, 9.0, 3.0), "mask": row(True, False, True)},
            [[1.0, 0.0, 3.0]],
        ),
    ),
    "expectile_loss": Case(
        lambda q_values, values, mask: objectives.expectile_loss(q_values, values, mask, expectile=EXPECTILE),
        _draw_expectile,
        differentiable=("values",),
        constant=("q_values",),
        # u = 2 - 0 = 2: 0.75 * 4 = 3. u = 0 - 2 = -2: 0.25 * 4 = 1. u = 0: 0.
        hand=(
            {"q_values": row(2.0, 0.0, 1.0), "values": row(0.0, 2.0, 1.0), "mask": row(True, True, True)},
            [[3.0, 1.0, 0.0]],
        ),
    ),
    "td_loss": Case(
        lambda twin_q_values, rewards, next_values, terminated, mask: objectives.td_loss(
            twin_q_values, rewards, next_values, terminated, mask, discount=DISCOUNT
        ),
        _draw_td,
        differentiable=("twin_q_values",),
        constant=("rewards", "next_values"),
        leading=("twin_q_values",),
        # Targets 1 + 0.5 * 4 = 3 and, at the end, 1. Critics (2, 3) and (5, 1): (1 + 4) and (4 + 0).
        hand=(
            {
                "twin_q_values": torch.tensor([[[2.0, 3.0]], [[5.0, 1.0]]]),
                "rewards": row(1.0, 1.0),
                "next_values": row(4.0, 4.0),
                "terminated": row(False, True),
                "mask": row(True, True),
            },
            [[5.0, 4.0]],
        ),
    ),
    "double_q_td_loss": Case(
        _double_q_loss,
        _draw_double_q,
        differentiable=("twin_q_values",),
        constant=("rewards", "online_q_values", "target_q_values"),
        leading=("twin_q_values", "online_q_values", "target_q_values"),
        # Online means are (3, 2) and, of one candidate, 0: the first is chosen. Target critics give it 6 and 4, so
        # the next value is 4 and the target 1 + 0.5 * 4 = 3; errors of 2 and 1 give 4 + 1. (The larger means of the
        # target critics, 8 for the second, play no part, nor does the candidate that does not exist.)
        hand=(
            {
                "twin_q_values": torch.tensor([[[1.0]], [[2.0]]]),
                "rewards": row(1.0),
                "terminated": row(False),
                "mask": row(True),
                "online_q_values": torch.tensor([[[[2.0, 4.0, 99.0]]], [[[4.0, 0.0, 99.0]]]]),
                "target_q_values": torch.tensor([[[[6.0, 8.0, 99.0]]], [[[4.0, 8.0, 99.0]]]]),
                "candidate_mask": torch.tensor([[[True, True, False]]]),
            },
            [[5.0]],
        ),
    ),
    "critic_loss": Case(
        objectives.critic_loss,
        _draw_critic,
        differentiable=("twin_q_values",),
        constant=("targets",),
        leading=("twin_q_values",),
        # Errors 1 - 3 = -2 and 4 - 3 = 1: 4 + 1.
        hand=(
            {"twin_q_values": torch.tensor([[[1.0]], [[4.0]]]), "targets": row(3.0), "mask": row(True)},
            [[5.0]],
        ),
    ),
    "critic_huber_loss": Case(
        lambda twin_q_values, targets, mask: objectives.critic_huber_loss(
            twin_q_values, targets, mask, huber_delta=HUBER_DELTA
        ),
        _draw_critic,
        differentiable=("twin_q_values",),
        constant=("targets",),
        leading=("twin_q_values",),
        # Errors -2 and 0.5: the line 1 * (2 - 0.5) = 1.5, the parabola 0.25 / 2 = 0.125.
        hand=(
            {"twin_q_values": torch.tensor([[[1.0]], [[3.5]]]), "targets": row(3.0), "mask": row(True)},
            [[1.625]],
        ),
    ),
    "conservative_loss": Case(
        objectives.conservative_loss,
        _draw_conservative,
        differentiable=("twin_logsumexp", "twin_q_values"),
        constant=(),
        leading=("twin_logsumexp", "twin_q_values"),
        # (3 - 1) + (2 - 1.5).
        hand=(
            {
                "twin_logsumexp": torch.tensor([[[3.0]], [[2.0]]]),
                "twin_q_values": torch.tensor([[[1.0]], [[1.5]]]),
                "mask": row(True),
            },
            [[2.5]],
        ),
    ),
    "candidate_conservative_loss": Case(
        lambda candidate_q_values, candidate_mask, twin_q_values, mask: objectives.candidate_conservative_loss(
            candidate_q_values, candidate_mask, twin_q_values, mask, temperature=TEMPERATURE
        ),
        _draw_candidates,
        differentiable=("candidate_q_values", "twin_q_values"),
        constant=(),
        leading=("candidate_q_values", "twin_q_values"),
        # At temperature 1/2 the soft maximum of (0, log(3) / 2) is log(1 + 3) / 2 = log 2; less Q(s, a) = 0 that is
        # log 2. The second state has one candidate, the logged action: 0. The third has none: 0.
        hand=(
            {
                "candidate_q_values": torch.tensor([[[[0.0, 0.5493061], [7.0, 9.0], [9.0, 9.0]]]]),
                "candidate_mask": torch.tensor([[[True, True], [True, False], [False, False]]]),
                "twin_q_values": torch.tensor([[[0.0, 7.0, 9.0]]]),
                "mask": row(True, True, True),
            },
            [[0.6931472, 0.0, 0.0]],
        ),
    ),
    "cal_ql": Case(
        _cal_ql_loss,
        _draw_cal_ql,
        differentiable=("candidate_q_values", "twin_q_values"),
        constant=("monte_carlo_returns",),
        leading=("candidate_q_values", "twin_q_values"),
        # The return 0 lifts the policy's -50 to 0 and leaves its log 2 and the logged -50 alone: log(1 + 2) - 0.
        hand=(
            {
                "candidate_q_values": torch.tensor([[[[-50.0, 0.6931472, -50.0]]]]),
                "candidate_mask": torch.tensor([[[True, True, True]]]),
                "twin_q_values": torch.tensor([[[0.0]]]),
                "mask": row(True),
                "monte_carlo_returns": row(0.0),
                "from_policy": torch.tensor([[[True, True, False]]]),
            },
            [[1.0986123]],
        ),
    ),
}
