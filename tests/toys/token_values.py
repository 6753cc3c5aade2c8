"""Token-level value heads with random weights that steer clearly."""

from __future__ import annotations

import torch

from offline_arl.models.token_heads import TokenHead, TokenHeadShape, TokenValueHeads


def random_token_heads(
    *,
    states: int,
    vocabulary: int,
    seed: int = 0,
    hidden_layers: int = 0,
    critics: int = 2,
    bias: float = 1.0,
) -> TokenValueHeads:
    """Values of a few units; the biases of the outputs have the standard deviation `bias`."""
    shape = TokenHeadShape(states, vocabulary, critics, hidden_layers, 48 if hidden_layers else 0)
    heads = TokenValueHeads(shape, generator=torch.Generator().manual_seed(seed))
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for head in (*heads.critics, heads.value):
            assert isinstance(head, TokenHead)
            head.output.weight.mul_(10.0)
            head.output.bias.normal_(std=bias, generator=generator) if bias else head.output.bias.zero_()
    return heads.eval().requires_grad_(False)
