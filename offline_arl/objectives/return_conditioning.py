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

    Every border is a return of the data above the smallest one, so no class is empty. Where there are at most `bins`
    different returns, each is a class. Otherwise the classes are filled from the lowest return on, each with its share
    of what is left, as nearly as whole groups of equal returns allow: a frequent return takes one class and not
    several, and the few good attempts of a bad policy are not lost in the class of its failures.

    Args:
        returns: Returns-to-go or returns of the data, in any order.
        bins: Largest number of classes, at least 1.

    Returns:
        Increasing borders, at most `bins - 1`, of the dtype of `returns`.

    Raises:
        DataError: There are no returns, or one is NaN or infinite.

    >>> quantile_edges(torch.tensor([4.0, 1.0, 3.0, 2.0]), bins=2).tolist()
    [3.0]
    >>> quantile_edges(torch.tensor([0.0] * 97 + [0.5, 1.0, 1.0]), bins=10).tolist()
    [0.5, 1.0]
    """
    if len(returns) == 0 or not bool(torch.isfinite(returns).all()):
        raise DataError("returns to divide into classes must be finite, and there must be at least one")
    values: Tensor
    values, counts = returns.detach().unique(return_counts=True)  # type: ignore[no-untyped-call]  # ascending
    if len(values) <= bins:
        return values[1:]
    reached = counts.cumsum(0)
    edges: list[int] = []
    filled = 0
    for left in range(bins, 1, -1):
        goal = filled * left + len(returns) - filled  # times `left`, to compare whole numbers
        last = int(torch.searchsorted(reached * left, goal))
        before = filled if last == 0 else int(reached[last - 1])
        if before > filled and 2 * goal <= (before + int(reached[last])) * left:
            last -= 1  # the class is nearer to its share without this return
        if last + 1 == len(values):
            break
        edges.append(last + 1)
        filled = int(reached[last])
    return values[torch.tensor(edges, dtype=torch.long, device=values.device)]


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
