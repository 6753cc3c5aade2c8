"""Conservative Q-learning over a finite set of actions, and its calibration.

Papers: Kumar et al. 2020, "Conservative Q-Learning for Offline Reinforcement Learning", equation 4 (CQL(H)); Nakamoto
et al. 2023, "Cal-QL: Calibrated Offline RL Pre-Training for Efficient Online Fine-Tuning", equation 5.1.

The critics' loss is `td.td_loss` (with `td.double_q_values` as the value of the next state) plus
`conservative_weight` times a loss of this module. What an action is decides which one: with tokens the set is the
vocabulary, whose log-sum-exp comes from `vocabulary.token_q_values`; with messages it is a list of candidates, logged
actions of the same task and alternatives that a policy sampled.

Deviation: each critic has its own conservative term and the terms are summed, as in the authors' code. d3rlpy's
DiscreteCQL takes the term of the critics' mean; with one critic the two are the same.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def conservative_loss(
    twin_logsumexp: Float[Tensor, "critics ..."],
    twin_q_values: Float[Tensor, "critics ..."],
    mask: Bool[Tensor, "*shape"],
) -> Float[Tensor, "*shape"]:
    """`logsumexp over actions of Q(s, .) - Q(s, a)`, summed over the critics: pushes down what the data lack.

    It is the cross-entropy of the logged action with Q as logits, so it is never negative. For tokens both parts come
    from `vocabulary.token_q_values`.

    Args:
        twin_logsumexp: Log-sum-exp of Q over all actions of each critic, the logged one included.
        twin_q_values: Q of the logged action.
        mask: Decisions that count.

    Returns:
        Loss per decision, dtype of `twin_q_values`; 0 behind the mask, where inputs may be NaN. Gradients reach both.

    >>> two_actions = torch.tensor([[0.0, 0.0]])  # one critic, two actions alike: log 2
    >>> lse, chosen = two_actions.logsumexp(-1, keepdim=True), two_actions[:, :1]
    >>> round(conservative_loss(lse, chosen, torch.tensor([True])).item(), 4)
    0.6931
    """
    zero = torch.zeros((), dtype=twin_q_values.dtype, device=twin_q_values.device)
    return torch.where(mask, twin_logsumexp - twin_q_values, zero).sum(dim=0)


def candidate_conservative_loss(
    candidate_q_values: Float[Tensor, "critics *shape A"],
    candidate_mask: Bool[Tensor, "*shape A"],
    twin_q_values: Float[Tensor, "critics ..."],
    mask: Bool[Tensor, "*shape"],
    *,
    temperature: float,
) -> Float[Tensor, "*shape"]:
    """`conservative_loss` over a ragged list of candidate actions a state.

    Args:
        candidate_q_values: Q(s, a) of each critic for A candidates: logged actions of the same task and sampled ones.
            Put the logged action of the state among them; then the loss is not negative and vanishes where there is
            no alternative. Candidates drawn with known probabilities may have `-log(probability)` added, which
            makes the sum an estimate of that over all actions (appendix F of the paper). An action that stands
            twice counts twice.
        candidate_mask: Which candidates exist. 0 is returned for a state that has none.
        twin_q_values: Q of the logged action.
        mask: Decisions that count.
        temperature: Of the soft maximum, `temperature * logsumexp(Q / temperature)`: 1 in the paper, near 0 the
            largest Q of all. Positive.

    Returns:
        Loss per decision summed over the critics, dtype of `twin_q_values`; 0 behind the mask. Values behind either
        mask may be NaN. Gradients reach candidates and logged actions.

    >>> candidates = torch.tensor([[[0.0, 0.0, 50.0]]])
    >>> exists, chosen = torch.tensor([[True, True, False]]), torch.tensor([[0.0]])
    >>> loss = candidate_conservative_loss(candidates, exists, chosen, torch.tensor([True]), temperature=1.0)
    >>> round(loss.item(), 4)
    0.6931
    """
    usable = candidate_mask & mask.unsqueeze(-1)
    some = usable.any(dim=-1)
    lowest = torch.full((), -math.inf, dtype=candidate_q_values.dtype, device=candidate_q_values.device)
    zero = torch.zeros((), dtype=candidate_q_values.dtype, device=candidate_q_values.device)
    # A row of minus infinities has no gradient but NaN: rows without candidates hold zeros until they are dropped.
    scaled = torch.where(usable, candidate_q_values / temperature, torch.where(some.unsqueeze(-1), lowest, zero))
    return conservative_loss(temperature * torch.logsumexp(scaled, dim=-1), twin_q_values, some)


def calibrated_q_values(
    candidate_q_values: Float[Tensor, "critics *shape A"],
    monte_carlo_returns: Float[Tensor, "*shape"],
    from_policy: Bool[Tensor, "*shape A"],
) -> Float[Tensor, "critics *shape A"]:
    """Cal-QL: Q of a policy's action counts as no less than what the log really earned from that state.

    Goes inside the log-sum-exp of `candidate_conservative_loss` and nowhere else. Where the critic is already below
    the return there is nothing left to push down, so values keep the scale of returns and the first online updates
    do not unlearn the policy.

    Args:
        candidate_q_values: Q(s, a) of each critic for A candidates, before any `-log(probability)` is added.
        monte_carlo_returns: Return of the logged attempt from each state on, at the discount of the critics.
        from_policy: Candidates that the learned policy proposed. Others (logged actions, random ones) stay as they
            are.

    Returns:
        The larger of Q and the return for candidates of the policy, Q for the others; dtype of `candidate_q_values`.
        No gradient reaches `monte_carlo_returns`, nor a Q that was raised.

    >>> q = torch.tensor([[[1.0, 5.0, 1.0]]])
    >>> calibrated_q_values(q, torch.tensor([3.0]), torch.tensor([[True, True, False]])).tolist()
    [[[3.0, 5.0, 1.0]]]
    """
    floor = monte_carlo_returns.detach().to(candidate_q_values.dtype).unsqueeze(-1)
    return torch.where(from_policy & (candidate_q_values < floor), floor, candidate_q_values)
