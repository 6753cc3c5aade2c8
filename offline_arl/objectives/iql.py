"""Implicit Q-learning on the steps of an agent.

Paper: Kostrikov et al. 2021, "Offline Reinforcement Learning with Implicit Q-Learning", equations 5 (value) and 6
(critics). Actions outside the data are never evaluated: V is an upper expectile of Q over the actions of the data.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def expectile_loss(
    q_values: Float[Tensor, "*shape"],
    values: Float[Tensor, "*shape"],
    mask: Bool[Tensor, "*shape"],
    *,
    expectile: float,
) -> Float[Tensor, "*shape"]:
    """Asymmetric squared error `|expectile - 1(u < 0)| * u**2` with `u = Q - V`.

    A V below Q (u > 0) costs `expectile` times the squared error, a V above Q costs `1 - expectile` times. So V is
    drawn to the mean of Q at 0.5 and towards its maximum over the actions of the data as `expectile` nears 1.

    Args:
        q_values: Target Q(s, a), the smaller of the twin target critics; a constant (no gradient flows to it).
        values: V(s).
        mask: States that count.
        expectile: Between 0 and 1, exclusive; the paper uses 0.7 to 0.9.

    Returns:
        Loss per state, dtype of `values`; 0 behind the mask, where inputs may be NaN.

    >>> q, v = torch.tensor([2.0, 0.0]), torch.tensor([1.0, 1.0])  # V one too low, V one too high
    >>> expectile_loss(q, v, torch.tensor([True, True]), expectile=0.75).tolist()
    [0.75, 0.25]
    """
    zero = torch.zeros((), dtype=values.dtype, device=values.device)
    difference = torch.where(mask, q_values.detach() - values, zero)
    weight = torch.abs(expectile - (difference < 0).to(values.dtype))
    return weight * difference.square()


def td_target(
    rewards: Float[Tensor, "*shape"],
    next_values: Float[Tensor, "*shape"],
    terminated: Bool[Tensor, "*shape"],
    *,
    discount: float,
) -> Float[Tensor, "*shape"]:
    """One-step target `reward + discount * V(next state)`, without the second term after a terminal step.

    Args:
        rewards: What arrived between this step and the next.
        next_values: V at the next state; may be NaN where `terminated` is True, since there is no next state. No
            gradient flows to it.
        terminated: The task came to its own end with this step. A truncated step is not terminated: it bootstraps.
        discount: Between 0 and 1, per step.

    Returns:
        Targets of the dtype of `rewards`, detached.

    >>> terminated = torch.tensor([False, True])
    >>> td_target(torch.tensor([0.0, 1.0]), torch.tensor([2.0, 2.0]), terminated, discount=0.5).tolist()
    [1.0, 1.0]
    """
    zero = torch.zeros((), dtype=next_values.dtype, device=next_values.device)
    return (rewards + discount * torch.where(terminated, zero, next_values)).to(rewards.dtype).detach()


def td_loss(
    twin_q_values: Float[Tensor, "critics ..."],
    rewards: Float[Tensor, "*shape"],
    next_values: Float[Tensor, "*shape"],
    terminated: Bool[Tensor, "*shape"],
    mask: Bool[Tensor, "*shape"],
    *,
    discount: float,
) -> Float[Tensor, "*shape"]:
    """Squared error of each critic to the one-step target, summed over the critics.

    Args:
        twin_q_values: Q(s, a) of each critic on the first axis.
        rewards: What arrived between this step and the next.
        next_values: V at the next state; no gradient flows to it.
        terminated: No bootstrap where True; a truncated step is not terminated.
        mask: Transitions that count; a truncated step without a next state has no target and is left out here.
        discount: Between 0 and 1, per step.

    Returns:
        Loss per transition, dtype of `twin_q_values`; 0 behind the mask, where inputs may be NaN.

    >>> q = torch.tensor([[1.0], [2.0]])  # target 0.5 + 0.5 * 1 = 1: errors 0 and 1
    >>> no, yes = torch.tensor([False]), torch.tensor([True])
    >>> td_loss(q, torch.tensor([0.5]), torch.tensor([1.0]), no, yes, discount=0.5).tolist()
    [1.0]
    """
    target = td_target(rewards, next_values, terminated, discount=discount)
    zero = torch.zeros((), dtype=twin_q_values.dtype, device=twin_q_values.device)
    error = torch.where(mask, twin_q_values - target.to(twin_q_values.dtype), zero)
    return error.square().sum(dim=0)
