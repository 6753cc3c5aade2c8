"""Returns as a small number of classes, the condition of a Decision Transformer.

Paper: Chen et al. 2021, "Decision Transformer: Reinforcement Learning via Sequence Modeling", section 3. The loss is
plain cloning, `awr.weighted_nll` with weights of 1: the condition stands in the context.

Deviation: the paper feeds the return as a real number through a linear layer. A language model reads tokens, so the
return-to-go becomes one of a few classes that hold equal shares of the data.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from offline_arl.errors import DataError


def quantile_edges(returns: Float[Tensor, " N"], *, bins: int) -> Float[Tensor, " E"]:
    """Lower borders of all classes but the first, such that each class holds about the same number of returns.

    Every border is a return of the data above the smallest one, and each occurs once; so no class is empty, and where
    returns repeat there are fewer classes than `bins` (two for returns of 0 and 1).

    Args:
        returns: Returns-to-go or returns of the data, in any order.
        bins: Largest number of classes, at least 1.

    Returns:
        Increasing borders, at most `bins - 1`, of the dtype of `returns`.

    Raises:
        DataError: There are no returns, or one is NaN or infinite.

    >>> quantile_edges(torch.tensor([4.0, 1.0, 3.0, 2.0]), bins=2).tolist()
    [3.0]
    >>> quantile_edges(torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0]), bins=10).tolist()
    [1.0]
    """
    if len(returns) == 0 or not bool(torch.isfinite(returns).all()):
        raise DataError("returns to divide into classes must be finite, and there must be at least one")
    ordered = returns.detach().sort().values
    first_of_class = [number * len(ordered) // bins for number in range(bins)]
    candidates = ordered[torch.tensor(first_of_class, dtype=torch.long, device=ordered.device)]
    return candidates[1:][candidates[1:] > candidates[:-1]]


def quantize_returns(returns: Float[Tensor, "*shape"], edges: Float[Tensor, " E"]) -> Int[Tensor, "*shape"]:
    """Class of each return: how many borders it reaches.

    Args:
        returns: Any returns; those beyond the data fall into the lowest or highest class. NaN falls into the highest:
            drop it before.
        edges: Of `quantile_edges`.

    Returns:
        Integers between 0 and the number of edges.

    >>> quantize_returns(torch.tensor([-1.0, 2.9, 3.0, 99.0]), torch.tensor([3.0])).tolist()
    [0, 0, 1, 1]
    """
    return torch.bucketize(returns.detach(), edges, right=True)
