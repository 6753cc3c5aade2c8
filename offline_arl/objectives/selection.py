"""Selections of what to clone, for filtered behavior cloning.

Paper: Chen et al. 2021, "Decision Transformer: Reinforcement Learning via Sequence Modeling", section 5.1 (percentile
behavior cloning).
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def top_fraction_mask(returns: Float[Tensor, " N"], mask: Bool[Tensor, " N"], *, fraction: float) -> Bool[Tensor, " N"]:
    """The attempts with the highest returns: at least `fraction` of them, ties at the border included.

    Attempts of equal return are treated alike, so the selection does not depend on their order, and with returns of 0
    and 1 it may hold more than the fraction: all successes, or everything if fewer than `fraction` succeed.

    Deviation: the paper counts time steps, this counts attempts.

    Args:
        returns: One return an attempt; NaN behind the mask is allowed.
        mask: Attempts to choose from.
        fraction: Above 0, at most 1; 0.1 is the usual "10 % BC".

    Returns:
        A mask; nothing where `mask` selects nothing.

    >>> returns = torch.tensor([1.0, 3.0, 2.0, 3.0])
    >>> top_fraction_mask(returns, torch.tensor([True, True, True, True]), fraction=0.25).tolist()
    [False, True, False, True]
    """
    available = returns[mask]
    if len(available) == 0:
        return torch.zeros_like(mask)
    count = max(1, math.ceil(fraction * len(available) - 1e-9))  # 0.07 * 100 is a little more than 7
    border = available.topk(count).values[-1]
    return mask & (returns >= border)
