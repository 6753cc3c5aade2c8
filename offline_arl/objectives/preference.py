"""Preference objectives: DPO (and cDPO), IPO, SimPO on pairs, KTO on single completions.

Papers: Rafailov et al. 2023, "Direct Preference Optimization", equation 7; Mitchell 2023, "A note on DPO with noisy
preferences" (cDPO); Azar et al. 2024, "A General Theoretical Paradigm to Understand Learning from Human Preferences",
equation 17 (IPO); Meng et al. 2024, "SimPO: Simple Preference Optimization with a Reference-Free Reward", equation 6;
Ethayarajh et al. 2024, "KTO: Model Alignment as Prospect Theoretic Optimization", equations 7 and 8.

Everything is per sequence: `sequence_logprobs` sums over the tokens that the agent wrote, so that tool output and user
text inside a completion of several turns enter no loss. The losses work on any shape of pairs or completions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor


def sequence_logprobs(
    logprobs: Float[Tensor, "B T"], action_mask: Bool[Tensor, "B T"], *, average: bool
) -> Float[Tensor, " B"]:
    """Log-probability of what the agent wrote in each row, as a sum or a mean over its tokens.

    Args:
        logprobs: Of each token, in nats.
        action_mask: Tokens that the agent wrote and that are scored.
        average: Divide by the number of tokens (SimPO, length-averaged IPO); else the sum (DPO, IPO, KTO).

    Returns:
        [B], dtype of `logprobs`; 0 for a row without action tokens. Values behind the mask may be NaN.

    >>> logprobs, mask = torch.tensor([[9.0, -1.0, -3.0]]), torch.tensor([[False, True, True]])
    >>> sequence_logprobs(logprobs, mask, average=False).item(), sequence_logprobs(logprobs, mask, average=True).item()
    (-4.0, -2.0)
    """
    total = torch.where(action_mask, logprobs, _zero(logprobs)).sum(dim=-1)
    return total / action_mask.sum(dim=-1).clamp(min=1).to(total.dtype) if average else total


def dpo_loss(
    chosen_logprobs: Float[Tensor, "*shape"],
    rejected_logprobs: Float[Tensor, "*shape"],
    reference_chosen_logprobs: Float[Tensor, "*shape"],
    reference_rejected_logprobs: Float[Tensor, "*shape"],
    mask: Bool[Tensor, "*shape"],
    *,
    dpo_beta: float,
    label_smoothing: float,
) -> Float[Tensor, "*shape"]:
    """`-(1 - e) log sigmoid(beta h) - e log sigmoid(-beta h)`, h the log-ratio of chosen minus that of rejected.

    Args:
        chosen_logprobs: Of each chosen completion under the policy, summed over its action tokens.
        rejected_logprobs: Of each rejected completion.
        reference_chosen_logprobs: The same under the frozen reference; a constant.
        reference_rejected_logprobs: A constant.
        mask: Pairs that count.
        dpo_beta: How strongly the policy is held to the reference; 0.1 in the paper's experiments. Positive.
        label_smoothing: Probability e that a label is flipped, 0 for DPO, between 0 and 0.5 for cDPO.

    Returns:
        Loss per pair, dtype of `chosen_logprobs`; 0 behind the mask, where inputs may be NaN. log 2 where policy and
        reference agree and e is 0.

    >>> chosen, rejected, reference = torch.tensor([-1.0]), torch.tensor([-2.0]), torch.zeros(1)
    >>> yes = torch.tensor([True])
    >>> loss = dpo_loss(chosen, rejected, reference, reference, yes, dpo_beta=1.0, label_smoothing=0.0)
    >>> round(loss.item(), 4)  # log(1 + e ** -1)
    0.3133
    """
    margin = dpo_beta * _preference_margin(
        chosen_logprobs, rejected_logprobs, reference_chosen_logprobs, reference_rejected_logprobs, mask
    )
    losses = -(1 - label_smoothing) * F.logsigmoid(margin) - label_smoothing * F.logsigmoid(-margin)
    return torch.where(mask, losses, _zero(losses))


def ipo_loss(
    chosen_logprobs: Float[Tensor, "*shape"],
    rejected_logprobs: Float[Tensor, "*shape"],
    reference_chosen_logprobs: Float[Tensor, "*shape"],
    reference_rejected_logprobs: Float[Tensor, "*shape"],
    mask: Bool[Tensor, "*shape"],
    *,
    dpo_beta: float,
) -> Float[Tensor, "*shape"]:
    """`(h - 1 / (2 beta)) ** 2`: the log-ratio of a pair is drawn to a finite distance instead of growing for ever.

    Args:
        chosen_logprobs: Under the policy: sums over action tokens as in the paper, or means, which other code takes.
        rejected_logprobs: The same of the rejected completions.
        reference_chosen_logprobs: Under the frozen reference; a constant.
        reference_rejected_logprobs: A constant.
        mask: Pairs that count.
        dpo_beta: tau of the paper; the distance is `1 / (2 * dpo_beta)` nats (per token where means are given).

    Returns:
        Loss per pair, dtype of `chosen_logprobs`; 0 behind the mask, where inputs may be NaN.

    >>> chosen, zero, yes = torch.tensor([3.0]), torch.zeros(1), torch.tensor([True])
    >>> ipo_loss(chosen, zero, zero, zero, yes, dpo_beta=0.1).item()  # (3 - 5) ** 2
    4.0
    """
    margin = _preference_margin(
        chosen_logprobs, rejected_logprobs, reference_chosen_logprobs, reference_rejected_logprobs, mask
    )
    return torch.where(mask, (margin - 1 / (2 * dpo_beta)).square(), _zero(margin))


def simpo_loss(
    chosen_mean_logprobs: Float[Tensor, "*shape"],
    rejected_mean_logprobs: Float[Tensor, "*shape"],
    mask: Bool[Tensor, "*shape"],
    *,
    simpo_beta: float,
    simpo_margin: float,
) -> Float[Tensor, "*shape"]:
    """`-log sigmoid(beta (chosen - rejected) - gamma)` on mean log-probabilities; no reference, no cloning term.

    Args:
        chosen_mean_logprobs: Of each chosen completion under the policy, averaged over its action tokens.
        rejected_mean_logprobs: Of each rejected completion.
        mask: Pairs that count.
        simpo_beta: Scale of the reward, 2 to 10 in the paper and by its authors' later advice.
        simpo_margin: gamma of the paper, the margin asked for, in units of reward (after beta).

    Returns:
        Loss per pair, dtype of `chosen_mean_logprobs`; 0 behind the mask, where inputs may be NaN.

    >>> chosen, rejected, yes = torch.tensor([-1.0]), torch.tensor([-1.5]), torch.tensor([True])
    >>> round(simpo_loss(chosen, rejected, yes, simpo_beta=2.0, simpo_margin=1.0).item(), 4)  # log 2
    0.6931
    """
    difference = _masked(chosen_mean_logprobs, mask) - _masked(rejected_mean_logprobs, mask)
    losses = -F.logsigmoid(simpo_beta * difference - simpo_margin)
    return torch.where(mask, losses, _zero(losses))


def kto_loss(
    logprobs: Float[Tensor, "*shape"],
    reference_logprobs: Float[Tensor, "*shape"],
    desirable: Bool[Tensor, "*shape"],
    reference_point: Float[Tensor, ""],
    mask: Bool[Tensor, "*shape"],
    *,
    dpo_beta: float,
    desirable_weight: float,
    undesirable_weight: float,
) -> Float[Tensor, "*shape"]:
    """`weight * (1 - sigmoid(+-beta (log-ratio - z0)))`: single completions, each called desirable or not.

    Args:
        logprobs: Of each completion under the policy, summed over its action tokens.
        reference_logprobs: The same under the frozen reference; a constant.
        desirable: The label of each completion; the sign is + where True.
        reference_point: z0 of `kto_reference_point`, in nats; a constant.
        mask: Completions that count.
        dpo_beta: beta of the paper, 0.1 in its experiments.
        desirable_weight: lambda_D. The paper keeps `desirable_weight * desirable completions` within 1 to 4/3 of
            `undesirable_weight * undesirable completions`.
        undesirable_weight: lambda_U.

    Returns:
        Loss per completion between 0 and its weight, dtype of `logprobs`; 0 behind the mask, where inputs may be NaN.

    >>> zero, labels, yes = torch.zeros(2), torch.tensor([True, False]), torch.ones(2, dtype=torch.bool)
    >>> weights = {"desirable_weight": 1.0, "undesirable_weight": 3.0}
    >>> kto_loss(zero, zero, labels, torch.tensor(0.0), yes, dpo_beta=0.1, **weights).tolist()
    [0.5, 1.5]
    """
    log_ratios = _masked(logprobs, mask) - _masked(reference_logprobs.detach(), mask).to(logprobs.dtype)
    gain = dpo_beta * (log_ratios - reference_point.detach().to(log_ratios.dtype))
    losses = torch.where(desirable, desirable_weight * torch.sigmoid(-gain), undesirable_weight * torch.sigmoid(gain))
    return torch.where(mask, losses, _zero(losses))


def kto_reference_point(
    mismatched_logprobs: Float[Tensor, " B"],
    reference_mismatched_logprobs: Float[Tensor, " B"],
    mask: Bool[Tensor, " B"],
    *,
    denominator: int | float | Tensor,
) -> Float[Tensor, ""]:
    """z0 of KTO: the mean log-ratio of completions that answer other prompts, and at least 0.

    A completion put behind a prompt that it does not belong to stands for what the policy might say there, so the
    mean estimates the KL divergence from the reference with no sampling.

    Args:
        mismatched_logprobs: Of each mismatched completion under the policy, summed over its action tokens.
        reference_mismatched_logprobs: The same under the reference.
        mask: Which ones count.
        denominator: Their number in the whole batch (all processes, all micro-batches).

    Returns:
        A scalar in nats, dtype of `mismatched_logprobs`, not below 0, detached: no gradient flows through it.

    >>> policy, reference = torch.tensor([-1.0, -4.0]), torch.tensor([-3.0, -3.0])
    >>> kto_reference_point(policy, reference, torch.tensor([True, True]), denominator=2).item()
    0.5
    """
    reference = reference_mismatched_logprobs.to(mismatched_logprobs.dtype)
    log_ratios = (_masked(mismatched_logprobs, mask) - _masked(reference, mask)).detach()
    return (log_ratios.sum() / denominator).clamp(min=0).to(mismatched_logprobs.dtype)


def _preference_margin(
    chosen: Tensor, rejected: Tensor, reference_chosen: Tensor, reference_rejected: Tensor, mask: Tensor
) -> Tensor:
    """h, the log-ratio of the chosen completion minus that of the rejected one; 0 behind the mask."""
    dtype = chosen.dtype
    chosen_ratios = _masked(chosen, mask) - _masked(reference_chosen.detach(), mask).to(dtype)
    return chosen_ratios - (_masked(rejected, mask) - _masked(reference_rejected.detach(), mask).to(dtype))


def _masked(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, values, _zero(values))


def _zero(values: Tensor) -> Tensor:
    return torch.zeros((), dtype=values.dtype, device=values.device)
