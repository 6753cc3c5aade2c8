"""Regression of critics: one-step targets, the double-Q value of the next state, squared and Huber errors.

Papers: Watkins & Dayan 1992, "Q-learning"; van Hasselt et al. 2016, "Deep Reinforcement Learning with Double
Q-learning", equation 4; Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods",
section 4 (the smaller of two critics); Mnih et al. 2015, "Human-level control through deep reinforcement learning",
methods (the clipped error, which is Huber's loss).
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def td_target(
    rewards: Float[Tensor, "*shape"],
    next_values: Float[Tensor, "*shape"],
    terminated: Bool[Tensor, "*shape"],
    *,
    discount: float | Float[Tensor, "*shape"],
) -> Float[Tensor, "*shape"]:
    """One-step target `reward + discount * V(next state)`, without the second term after a terminal step.

    Args:
        rewards: What arrived between this step and the next.
        next_values: V at the next state, for example `returns.next_step_values`; may be NaN where `terminated` is
            True, since there is no next state. No gradient flows to it.
        terminated: The task came to its own end with this step. A truncated step is not terminated: it bootstraps.
        discount: Between 0 and 1, per step; a tensor where steps differ (`returns.step_discounts`).

    Returns:
        Targets of the dtype of `rewards`, detached.

    >>> terminated = torch.tensor([False, True])
    >>> td_target(torch.tensor([0.0, 1.0]), torch.tensor([2.0, 2.0]), terminated, discount=0.5).tolist()
    [1.0, 1.0]
    """
    zero = torch.zeros((), dtype=next_values.dtype, device=next_values.device)
    return (rewards + discount * torch.where(terminated, zero, next_values)).to(rewards.dtype).detach()


def critic_loss(
    twin_q_values: Float[Tensor, "critics ..."],
    targets: Float[Tensor, "*shape"],
    mask: Bool[Tensor, "*shape"],
) -> Float[Tensor, "*shape"]:
    """Squared error of each critic to a common target, summed over the critics.

    With targets from `td_target` this is Q-learning, with `returns.monte_carlo_returns` it is the regression on what
    was really earned, with `returns.td_lambda_returns` anything between.

    Args:
        twin_q_values: Q(s, a) of each critic on the first axis; any number of critics.
        targets: What Q(s, a) should be; a constant (no gradient flows to it).
        mask: Steps that have a target.

    Returns:
        Loss per step (no factor one half), dtype of `twin_q_values`; 0 behind the mask, where inputs may be NaN.

    >>> critic_loss(torch.tensor([[1.0], [3.0]]), torch.tensor([2.5]), torch.tensor([True])).tolist()
    [2.5]
    """
    return _errors(twin_q_values, targets, mask).square().sum(dim=0)


def critic_huber_loss(
    twin_q_values: Float[Tensor, "critics ..."],
    targets: Float[Tensor, "*shape"],
    mask: Bool[Tensor, "*shape"],
    *,
    huber_delta: float,
) -> Float[Tensor, "*shape"]:
    """Huber's loss of each critic to a common target, summed over the critics: rewards of large scale stay tame.

    `e ** 2 / 2` up to an error of `huber_delta`, and from there on the line `huber_delta * (|e| - huber_delta / 2)`,
    so no error has a gradient above `huber_delta`. Note the half: for small errors this is half of `critic_loss`.

    Args:
        twin_q_values: Q(s, a) of each critic on the first axis.
        targets: What Q(s, a) should be; a constant (no gradient flows to it).
        mask: Steps that have a target.
        huber_delta: Where the parabola turns into a line, in units of return; positive.

    Returns:
        Loss per step, dtype of `twin_q_values`; 0 behind the mask, where inputs may be NaN.

    >>> q = torch.tensor([[1.0], [5.0]])  # errors 1 and 3: 0.5 and 2 * (3 - 1)
    >>> critic_huber_loss(q, torch.tensor([2.0]), torch.tensor([True]), huber_delta=2.0).tolist()
    [4.5]
    """
    errors = _errors(twin_q_values, targets, mask).abs()
    parabola = 0.5 * errors.square()
    line = huber_delta * (errors - 0.5 * huber_delta)
    return torch.where(errors <= huber_delta, parabola, line).sum(dim=0)


def td_loss(
    twin_q_values: Float[Tensor, "critics ..."],
    rewards: Float[Tensor, "*shape"],
    next_values: Float[Tensor, "*shape"],
    terminated: Bool[Tensor, "*shape"],
    mask: Bool[Tensor, "*shape"],
    *,
    discount: float | Float[Tensor, "*shape"],
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
    return critic_loss(twin_q_values, td_target(rewards, next_values, terminated, discount=discount), mask)


def double_q_values(
    online_q_values: Float[Tensor, "critics *shape A"],
    target_q_values: Float[Tensor, "critics *shape A"],
    candidate_mask: Bool[Tensor, "*shape A"],
) -> Float[Tensor, "*shape"]:
    """Value of a state by double Q-learning: the online critics choose the action, the target critics judge it.

    The action is the best candidate by the mean of the online critics; its value is the smallest of the target
    critics' values. Choosing and judging with one set of critics would overestimate by what noise makes look good.

    Args:
        online_q_values: Q(s, a) of each online critic for A candidate actions a state.
        target_q_values: The same of the target critics.
        candidate_mask: Which candidates exist; states may differ in number.

    Returns:
        One value a state, of the dtype of `target_q_values`, detached. NaN where a state has no candidate: there is
        no such value, and `td_target` does not look at it where the step is terminated.

    >>> online = torch.tensor([[1.0, 3.0, 9.0]])  # the second is the best that exists
    >>> target = torch.tensor([[5.0, 4.0, 7.0]])
    >>> double_q_values(online, target, torch.tensor([True, True, False])).item()
    4.0
    """
    lowest = torch.full((), -math.inf, dtype=online_q_values.dtype, device=online_q_values.device)
    chosen = torch.where(candidate_mask, online_q_values.detach().mean(dim=0), lowest).argmax(dim=-1, keepdim=True)
    # Behind the mask the judge may hold NaN, which `amin` would spread: it reads the chosen candidate alone.
    index = chosen.unsqueeze(0).expand(target_q_values.shape[0], *chosen.shape)
    judged = target_q_values.detach().gather(-1, index).squeeze(-1).amin(dim=0)
    missing = torch.full((), math.nan, dtype=judged.dtype, device=judged.device)
    return torch.where(candidate_mask.any(dim=-1), judged, missing)


def _errors(twin_q_values: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
    """[critics, ...] differences to the detached targets, 0 behind the mask."""
    zero = torch.zeros((), dtype=twin_q_values.dtype, device=twin_q_values.device)
    return torch.where(mask, twin_q_values - targets.detach().to(twin_q_values.dtype), zero)
