"""What weighs tokens in a policy gradient: advantages of attempts at one task, and weights for off-policy sampling.

Papers: Shao et al. 2024, "DeepSeekMath" (group-relative advantages, arXiv:2402.03300); Liu et al. 2025,
"Understanding R1-Zero-Like Training" (Dr. GRPO: no division by the deviation, arXiv:2503.20783); Ahmadian et al. 2024,
"Back to Basics" (leave-one-out baseline, arXiv:2402.14740); Yao et al. 2025, "Your Efficient RL Framework Secretly
Brings You Off-Policy RL Training" (truncated weights), and the masked form of it (IcePop).

The clipped surrogate loss itself is TRL's.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

_EPSILON = 1e-4  # added to the deviation, as in TRL


def group_advantages(
    returns: Float[Tensor, " N"],
    *,
    group_size: int,
    baseline: Literal["mean", "leave_one_out"] = "mean",
    deviation: Literal["sample", "population", "none"] = "sample",
) -> Float[Tensor, " N"]:
    """How much better each attempt was than the others at its task.

    Args:
        returns: Of the attempts, groups next to one another; NaN marks an attempt that says nothing (its harness
            failed) and that no baseline counts.
        group_size: Attempts a group.
        baseline: What is taken off: the mean of the group, or of the other attempts (RLOO).
        deviation: What the difference is divided by: the standard deviation of the group with n - 1 or n in its
            denominator, or nothing.

    Returns:
        [N], detached; 0 for attempts that say nothing, and for all of a group with fewer than two others or in which
        all returns are equal.

    >>> group_advantages(torch.tensor([3.0, 1.0, 1.0, 3.0]), group_size=2, deviation="none").tolist()
    [1.0, -1.0, -1.0, 1.0]
    >>> returns = torch.tensor([4.0, 1.0, 1.0])
    >>> group_advantages(returns, group_size=3, baseline="leave_one_out", deviation="none").tolist()
    [3.0, -1.5, -1.5]
    """
    groups = returns.detach().reshape(-1, group_size)
    counts = ~groups.isnan()
    known = torch.where(counts, groups, torch.zeros((), dtype=groups.dtype, device=groups.device))
    n = counts.sum(dim=1, keepdim=True).to(groups.dtype)
    differences = torch.where(counts, known - known.sum(dim=1, keepdim=True) / n.clamp(min=1), torch.zeros_like(known))
    squares = differences.square().sum(dim=1, keepdim=True)
    teaches = (n >= 2) & (differences.abs().amax(dim=1, keepdim=True) > 1e-6)
    if baseline == "leave_one_out":
        differences = differences * (n / (n - 1).clamp(min=1))
    if deviation != "none":
        denominator = (n - 1 if deviation == "sample" else n).clamp(min=1)
        differences = differences / ((squares / denominator).sqrt() + _EPSILON)
    return torch.where(teaches, differences, torch.zeros_like(differences)).reshape(-1)


def mismatch_weights(
    trainer_logprobs: Float[Tensor, "B T"],
    sampler_logprobs: Float[Tensor, "B T"],
    action_mask: Bool[Tensor, "B T"],
    *,
    level: Literal["token", "sequence"] = "token",
    bound: Literal["truncate", "mask"] = "truncate",
    cap: float = 2.0,
    floor: float = 0.5,
) -> Float[Tensor, "B T"]:
    """Importance weights for tokens that another implementation of the policy sampled than the one that is trained.

    Args:
        trainer_logprobs: Of the sampled tokens under the policy as the trainer computes it, before the update.
        sampler_logprobs: As the sampler reported them; NaN where it did not: such a token counts as agreed on.
        action_mask: Tokens that the policy sampled.
        level: The ratio of each token, or of all tokens of its row together.
        bound: "truncate": ratios above the cap become the cap. "mask": those above the cap or below the floor become 0.
        cap: At least 1.
        floor: At most 1; read with "mask" alone.

    Returns:
        [B, T] weights, detached; 0 behind the mask.

    >>> trainer, sampler = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -3.0]])
    >>> mask = torch.tensor([[True, True]])
    >>> mismatch_weights(trainer, sampler, mask, cap=2.0).tolist()
    [[1.0, 2.0]]
    >>> mismatch_weights(trainer, sampler, mask, bound="mask", cap=2.0).tolist()
    [[1.0, 0.0]]
    """
    known = action_mask & ~sampler_logprobs.isnan()
    zero = torch.zeros((), dtype=trainer_logprobs.dtype, device=trainer_logprobs.device)
    log_ratios = torch.where(known, trainer_logprobs.detach() - sampler_logprobs.to(trainer_logprobs.dtype), zero)
    if level == "sequence":
        log_ratios = log_ratios.sum(dim=1, keepdim=True).expand_as(log_ratios)
    ratios = log_ratios.exp()
    if bound == "truncate":
        weights = ratios.clamp(max=cap)
    else:
        weights = torch.where((ratios <= cap) & (ratios >= floor), ratios, zero)
    return torch.where(action_mask, weights, zero)
