"""Advantage-weighted regression: cloning in which good decisions count more.

Papers: Peng et al. 2019, "Advantage-Weighted Regression", section 3; Kostrikov et al. 2021, "Offline Reinforcement
Learning with Implicit Q-Learning", equation 7 (the policy extraction step).
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def advantage_weights(
    advantages: Float[Tensor, "*shape"], *, inverse_temperature: float, max_weight: float
) -> Float[Tensor, "*shape"]:
    """Weight of each decision, `min(exp(inverse_temperature * advantage), max_weight)`.

    Args:
        advantages: Advantage of each decision, in units of return.
        inverse_temperature: 0 clones everything alike; the larger, the greedier. Not negative.
        max_weight: Upper bound on a weight, which keeps one lucky decision from taking over the batch.

    Returns:
        Weights in [0, max_weight], same shape and dtype. No gradient flows to `advantages`.

    >>> advantage_weights(torch.tensor([0.0, 0.6931472, 5.0]), inverse_temperature=1.0, max_weight=100.0).tolist()
    [1.0, 2.0, 100.0]
    """
    return torch.exp(inverse_temperature * advantages.detach()).clamp(max=max_weight)


def weighted_nll(
    logprobs: Float[Tensor, "B T"], weights: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """Weighted negative log-likelihood of each token, `-weight * logprob`.

    Args:
        logprobs: Log-probability of each token under the policy, in nats.
        weights: Weight of each token, usually that of the step it belongs to; a constant (no gradient flows to it).
        mask: Tokens that count.

    Returns:
        [B, T] loss per token, dtype of `logprobs`; 0 behind the mask, where inputs may be NaN.

    >>> one_half = torch.log(torch.tensor([[0.5, 0.5]]))
    >>> weighted_nll(one_half, torch.tensor([[2.0, 1.0]]), torch.tensor([[True, False]])).exp().tolist()
    [[4.0, 1.0]]
    """
    zero = torch.zeros((), dtype=logprobs.dtype, device=logprobs.device)
    safe_weights = torch.where(mask, weights.detach().to(logprobs.dtype), zero)
    return -safe_weights * torch.where(mask, logprobs, zero)


def effective_sample_size(weights: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"]) -> Float[Tensor, ""]:
    """How many equally weighted decisions the weights are worth, `(sum w) ** 2 / sum w ** 2` (Kish 1965).

    The number of selected decisions where all weights are alike, 1 where one decision has all the weight. A small
    share of the decisions means that the policy is cloned from few of them: lower the inverse temperature.

    Args:
        weights: Not negative; usually of `advantage_weights`, one a decision.
        mask: Decisions that count.

    Returns:
        A scalar between 0 (nothing selected, or no weight at all) and the number of selected decisions, of the dtype
        of `weights`, detached. Weights behind the mask may be NaN.

    >>> weights = torch.tensor([1.0, 1.0, 2.0, float("nan")])  # 4 ** 2 / 6
    >>> round(effective_sample_size(weights, torch.tensor([True, True, True, False])).item(), 4)
    2.6667
    """
    zero = torch.zeros((), dtype=weights.dtype, device=weights.device)
    counted = torch.where(mask, weights.detach(), zero)
    total = counted.square().sum()
    return torch.where(total > 0, counted.sum().square() / total, zero)
