"""What the suite has to know of an objective, and how inputs are drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Inputs = dict[str, Tensor]

B, T, V, A, C = 3, 5, 4, 3, 2


@dataclass(frozen=True)
class Case:
    """An objective with a way to draw its inputs, all of shape [B, T, ...] on the axes that rows and padding use."""

    function: Callable[..., Tensor]  # takes the tensors of `draw` as they are named
    draw: Callable[[torch.Generator, torch.dtype], Inputs]
    differentiable: tuple[str, ...]  # empty for targets, which have no gradient at all
    constant: tuple[str, ...]
    hand: tuple[Inputs, list[list[float]]]  # inputs and the value worked out by hand
    leading: tuple[str, ...] = ()  # tensors with one more axis in front of [B, T]
    shared: tuple[str, ...] = ()  # tensors without the axes [B, T], such as weights
    # Differentiable ones that enter a target too, where the gradient stops: finite differences see that path as well.
    bootstrapped: tuple[str, ...] = ()
    shifted: tuple[str, ...] = ()  # tensors whose position t - 1 belongs to the token at t


def randn(generator: torch.Generator, dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def chance(generator: torch.Generator, probability: float, *shape: int) -> Tensor:
    return torch.rand(shape, generator=generator) < probability


def some_mask(generator: torch.Generator) -> Tensor:
    """[B, T] with index 0 masked, and a masked and an unmasked position in the first row."""
    mask = chance(generator, 0.6, B, T)
    mask[:, 0], mask[0, 1], mask[0, 2] = False, True, False
    return mask


def row(*values: float | bool) -> Tensor:
    """[1, T]."""
    return torch.tensor([values])
