"""Returns and advantages of ragged sequences: Monte-Carlo, TD(lambda) and generalized advantage estimation.

Papers: Sutton 1988, "Learning to Predict by the Methods of Temporal Differences"; Sutton & Barto 2018, "Reinforcement
Learning", section 12.8 (the lambda-return by recursion); Schulman et al. 2016, "High-Dimensional Continuous Control
Using Generalized Advantage Estimation", equation 16; Pardo et al. 2018, "Time Limits in Reinforcement Learning"
(a time limit does not stop the bootstrap).

A position is a step of an agent ([B, S]) or a token ([B, T]). The mask says which positions are decisions; everything
is carried across the others (padding, or the observation tokens between two messages of the agent) as if they were
not there. Two endings are kept apart. At a `terminated` position nothing follows. At a `truncated` position, and at
the last decision of a row that is not terminated, the attempt was cut off: what would have followed is estimated by
`bootstrap_values`. Nothing is carried across either, so a row may hold several attempts one after another.

All results are targets: detached, of the dtype of `rewards`, 0 behind the mask, where every input may be NaN.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def monte_carlo_returns(
    rewards: Float[Tensor, "B T"],
    bootstrap_values: Float[Tensor, "B T"],
    terminated: Bool[Tensor, "B T"],
    truncated: Bool[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    *,
    discount: float | Float[Tensor, "B T"],
) -> Float[Tensor, "B T"]:
    """Discounted sum of the rewards from each position on, its own included.

    Args:
        rewards: What arrived between this decision and the next.
        bootstrap_values: V of the state after the position, read where an attempt was cut off alone; NaN elsewhere is
            fine. Zeros take what was logged for all there was.
        terminated: The task came to its own end here.
        truncated: The attempt was cut off here.
        mask: Positions that are decisions.
        discount: Between 0 and 1, per decision; a tensor where they differ (`step_discounts`).

    Returns:
        [B, T] returns; see the module for gradients, padding and dtype.

    >>> rewards, nothing = torch.tensor([[1.0, 9.0, 2.0]]), torch.zeros(1, 3)
    >>> mask, no = torch.tensor([[True, False, True]]), torch.tensor([[False, False, False]])
    >>> monte_carlo_returns(rewards, nothing, no, no, mask, discount=0.5).tolist()
    [[2.0, 0.0, 2.0]]
    """
    return _carry_back(rewards, None, bootstrap_values, terminated, truncated, mask, discount, trace_decay=1.0)


def td_lambda_returns(
    rewards: Float[Tensor, "B T"],
    values: Float[Tensor, "B T"],
    bootstrap_values: Float[Tensor, "B T"],
    terminated: Bool[Tensor, "B T"],
    truncated: Bool[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    *,
    discount: float | Float[Tensor, "B T"],
    trace_decay: float,
) -> Float[Tensor, "B T"]:
    """Lambda-return: `r + discount * ((1 - trace_decay) * V(next) + trace_decay * return of the next decision)`.

    Args:
        rewards: What arrived between this decision and the next.
        values: V of the state before each decision.
        bootstrap_values: V of the state after the position, read where an attempt was cut off alone.
        terminated: The task came to its own end here.
        truncated: The attempt was cut off here.
        mask: Positions that are decisions.
        discount: Between 0 and 1, per decision.
        trace_decay: Lambda, between 0 (one-step targets) and 1 (Monte-Carlo returns).

    Returns:
        [B, T] returns; see the module for gradients, padding and dtype.

    >>> rewards, values = torch.tensor([[0.0, 1.0]]), torch.tensor([[5.0, 3.0]])
    >>> no, yes, end = torch.zeros(1, 2).bool(), torch.ones(1, 2).bool(), torch.tensor([[False, True]])
    >>> td_lambda_returns(rewards, values, values, end, no, yes, discount=0.5, trace_decay=0.5).tolist()
    [[1.0, 1.0]]
    """
    return _carry_back(rewards, values, bootstrap_values, terminated, truncated, mask, discount, trace_decay)


def generalized_advantages(
    rewards: Float[Tensor, "B T"],
    values: Float[Tensor, "B T"],
    bootstrap_values: Float[Tensor, "B T"],
    terminated: Bool[Tensor, "B T"],
    truncated: Bool[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    *,
    discount: float | Float[Tensor, "B T"],
    trace_decay: float,
) -> Float[Tensor, "B T"]:
    """Generalized advantage estimate, the sum of `(discount * trace_decay) ** k` times the k-th TD error to come.

    It equals the lambda-return minus V, which is how it is computed. Nothing is whitened.

    Args:
        rewards: What arrived between this decision and the next.
        values: V of the state before each decision.
        bootstrap_values: V of the state after the position, read where an attempt was cut off alone.
        terminated: The task came to its own end here.
        truncated: The attempt was cut off here.
        mask: Positions that are decisions.
        discount: Between 0 and 1, per decision.
        trace_decay: Lambda, between 0 (TD errors) and 1 (Monte-Carlo returns minus V).

    Returns:
        [B, T] advantages; see the module for gradients, padding and dtype.

    >>> rewards, values = torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 3.0]])
    >>> no, yes, end = torch.zeros(1, 2).bool(), torch.ones(1, 2).bool(), torch.tensor([[False, True]])
    >>> # TD errors 0 + 0.5 * 3 - 1 = 0.5 and 1 - 3 = -2: 0.5 + 0.25 * -2 = 0
    >>> generalized_advantages(rewards, values, values, end, no, yes, discount=0.5, trace_decay=0.5).tolist()
    [[0.0, -2.0]]
    """
    returns = _carry_back(rewards, values, bootstrap_values, terminated, truncated, mask, discount, trace_decay)
    zero = torch.zeros((), dtype=returns.dtype, device=returns.device)
    return torch.where(mask, returns - values.detach().to(returns.dtype), zero)


def next_step_values(
    values: Float[Tensor, "B T"],
    bootstrap_values: Float[Tensor, "B T"],
    truncated: Bool[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
) -> Float[Tensor, "B T"]:
    """V of the state that follows each decision: that of the next decision of the row, or the bootstrap value.

    The next state of an action token is the state before the next action token, however many observation tokens lie
    between them. Made for `td_target`, which drops what stands at terminated positions.

    Args:
        values: V of the state before each decision.
        bootstrap_values: V of the state after the position, read at truncated positions and at the last decision.
        truncated: The attempt was cut off here.
        mask: Positions that are decisions.

    Returns:
        [B, T] of the dtype of `values`, detached; 0 behind the mask, where inputs may be NaN.

    >>> values, after = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    >>> mask = torch.tensor([[True, False, True, True]])
    >>> next_step_values(values, after, torch.tensor([[False, False, False, False]]), mask).tolist()
    [[3.0, 0.0, 4.0, 0.4000000059604645]]
    """
    length = values.shape[1]
    positions = torch.arange(length, device=values.device).expand_as(mask)
    here = torch.where(mask, positions, length)
    # The smallest masked position from each place on, then moved by one: strictly after each place.
    from_here = here.flip(1).cummin(dim=1).values.flip(1)
    following = torch.nn.functional.pad(from_here[:, 1:], (0, 1), value=length)
    cut_off = truncated | (following == length)
    carried = values.detach().gather(1, following.clamp(max=max(length - 1, 0)))
    found = torch.where(cut_off, bootstrap_values.detach().to(values.dtype), carried)
    return torch.where(mask, found, torch.zeros((), dtype=values.dtype, device=values.device))


def step_discounts(
    step_index: Int[Tensor, "B T"], action_mask: Bool[Tensor, "B T"], *, discount: float
) -> Float[Tensor, "B T"]:
    """Discounts for tokens that add up to one discount a step: 1 inside a message, `discount` at its last token.

    With a constant discount a token, a reward fades with the number of tokens that lie before it, so long messages
    look bad; with these the return of a token is the return of its step.

    Args:
        step_index: Which step each token belongs to; read at action tokens alone.
        action_mask: Tokens the policy sampled.
        discount: Between 0 and 1, per step.

    Returns:
        [B, T] float32; 1 where the next action token of the row is of the same step and behind the mask.

    >>> steps, mask = torch.tensor([[0, 0, -1, 1]]), torch.tensor([[True, True, False, True]])
    >>> step_discounts(steps, mask, discount=0.5).tolist()
    [[1.0, 0.5, 1.0, 0.5]]
    """
    none = torch.full(step_index.shape, -1.0, dtype=torch.float64, device=step_index.device)
    following = next_step_values(step_index.double(), none, torch.zeros_like(action_mask), action_mask)
    last = action_mask & (following != step_index.double())
    return torch.where(last, discount, 1.0).to(torch.float32)


@torch.no_grad()
def _carry_back(
    rewards: Tensor,
    values: Tensor | None,
    bootstrap_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    mask: Tensor,
    discount: float | Tensor,
    trace_decay: float,
) -> Tensor:
    """Lambda-returns from the back; `values` are needed for a trace decay below 1 only."""
    returns = torch.zeros_like(rewards)
    zero = torch.zeros(len(rewards), dtype=rewards.dtype, device=rewards.device)
    following_return, following_value = zero, zero
    has_following = torch.zeros(len(rewards), dtype=torch.bool, device=rewards.device)
    for position in reversed(range(rewards.shape[1])):
        counts = mask[:, position]
        carried = following_return
        if values is not None and trace_decay < 1.0:
            carried = (1.0 - trace_decay) * following_value + trace_decay * following_return
        goes_on = has_following & ~truncated[:, position]
        later = torch.where(goes_on, carried, bootstrap_values[:, position].to(rewards.dtype))
        later = torch.where(terminated[:, position], zero, later)
        factor = discount[:, position].to(rewards.dtype) if isinstance(discount, Tensor) else discount
        following_return = torch.where(counts, rewards[:, position] + factor * later, following_return)
        returns[:, position] = torch.where(counts, following_return, zero)
        if values is not None:
            following_value = torch.where(counts, values[:, position].to(rewards.dtype), following_value)
        has_following = has_following | counts
    return returns
