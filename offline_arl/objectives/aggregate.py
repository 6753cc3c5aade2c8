"""The one reduction of the package."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def masked_mean(
    values: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"], *, denominator: int | float | Tensor
) -> Float[Tensor, ""]:
    """Sum `values` where `mask` is True and divide by `denominator`.

    The denominator is explicit so that micro-batches add up: pass the count of the whole (global) batch, and the
    sum of the micro-batches' results is the mean over the whole batch, whatever the split. Averaging the means of
    micro-batches instead would weigh tokens of short micro-batches more.

    Args:
        values: Unreduced values of any shape, for example a loss per token. NaN behind the mask is allowed.
        mask: What counts, same shape.
        denominator: A positive number or scalar tensor, usually `mask.sum()` over the global batch.

    Returns:
        A scalar of the dtype of `values`; 0 where nothing is selected. Gradients reach selected values only.

    >>> values = torch.tensor([1.0, 3.0, float("nan"), 5.0])
    >>> mask = torch.tensor([True, True, False, True])
    >>> masked_mean(values, mask, denominator=3).item()
    3.0
    >>> (masked_mean(values[:2], mask[:2], denominator=3) + masked_mean(values[2:], mask[2:], denominator=3)).item()
    3.0
    """
    total = torch.where(mask, values, torch.zeros((), dtype=values.dtype, device=values.device)).sum()
    return (total / denominator).to(values.dtype)
