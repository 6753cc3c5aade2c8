"""Implicit Q-learning: V is an upper expectile of Q over the actions of the data.

Paper: Kostrikov et al. 2021, "Offline Reinforcement Learning with Implicit Q-Learning", equation 5 (value); equation
6 (critics) is `td.td_loss` and equation 7 (policy) is in `awr`. Actions outside the data are never evaluated. The
functions do not care what a decision is: one message of the agent, or one token (`token_iql`).
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
    difference = torch.where(mask, q_values.detach().to(values.dtype) - values, zero)
    weight = torch.abs(expectile - (difference < 0).to(values.dtype))
    return weight * difference.square()
