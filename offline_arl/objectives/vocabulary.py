"""Q-values over a vocabulary, without ever holding one number for each position and each token of the vocabulary.

A token-level critic ends in a linear layer from K features to V tokens. At 4,096 positions and a vocabulary of 150 k
its output alone takes 2.5 GB in float32, and its backward pass two or three times that. Losses need two numbers a
position: Q of the token that was taken and the log-sum-exp over all. Both are computed for `chunk_tokens` positions
at a time, and the backward pass computes each chunk again, so the extra memory is `chunk_tokens * V` numbers.

Papers: Snell et al. 2023, "Offline RL for Natural Language Generation with Implicit Language Q Learning", section 4
(the critic over tokens and its conservative term); the recomputation is that of Chen et al. 2016, "Training Deep Nets
with Sublinear Memory Cost".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from offline_arl.objectives.logprobs import scored_mask


class TokenQValues(NamedTuple):
    """Of one critic: Q of each token that was taken, and the soft maximum over the vocabulary at its position."""

    q_values: Float[Tensor, "B T"]
    logsumexp: Float[Tensor, "B T"]


def token_q_values(
    selected_features: Float[Tensor, "N K"],
    weight: Float[Tensor, "V K"],
    bias: Float[Tensor, " V"] | None,
    input_ids: Int[Tensor, "B T"],
    action_mask: Bool[Tensor, "B T"],
    *,
    temperature: float,
    chunk_tokens: int,
) -> TokenQValues:
    """Q of the tokens of `action_mask` and the log-sum-exp over the vocabulary, in bounded memory.

    Args:
        selected_features: Inputs of the last layer, one row for each True of `logprobs.predicting_mask(action_mask)`
            in row-major order, as in `logprobs.selected_token_logprobs`.
        weight: Of the last layer; `Q(s, token) = features @ weight[token] + bias[token]`. Its dtype is that of the
            product.
        bias: Of the last layer, if it has one.
        input_ids: The tokens.
        action_mask: Which tokens are decisions. Index 0 has no prediction and is treated as masked.
        temperature: Of the soft maximum, `temperature * logsumexp(Q / temperature)`; 1 in the paper. Positive.
        chunk_tokens: Positions at a time; extra memory is about `2 * chunk_tokens * V` numbers.

    Returns:
        Two [B, T] tensors aligned to `input_ids`, 0 where masked. Half precision is computed and returned in float32,
        other types are kept. Gradients reach features, weight and bias, once (no second derivatives).

    >>> features, weight = torch.tensor([[1.0]]), torch.tensor([[0.0], [2.0]])  # Q = [0, 2] after the first token
    >>> ids, mask = torch.tensor([[0, 1]]), torch.tensor([[False, True]])
    >>> out = token_q_values(features, weight, None, ids, mask, temperature=1.0, chunk_tokens=8)
    >>> out.q_values.tolist(), round(out.logsumexp[0, 1].item(), 4)  # log(1 + e ** 2)
    ([[0.0, 2.0]], 2.1269)
    """
    targets_mask = scored_mask(action_mask)
    chosen, logsumexp = _ChunkedVocabulary.apply(  # type: ignore[no-untyped-call]
        selected_features.to(weight.dtype), weight, bias, input_ids[targets_mask].long(), temperature, chunk_tokens
    )
    zeros = torch.zeros(input_ids.shape, dtype=chosen.dtype, device=chosen.device)
    return TokenQValues(zeros.masked_scatter(targets_mask, chosen), zeros.masked_scatter(targets_mask, logsumexp))


@torch.no_grad()
def vocabulary_double_q_values(
    online_features: Float[Tensor, "critics N K"],
    online_weights: Float[Tensor, "critics V K"] | Sequence[Float[Tensor, "V K"]],
    online_biases: Float[Tensor, "critics V"] | Sequence[Float[Tensor, " V"]],
    target_features: Float[Tensor, "critics N K"],
    target_weights: Float[Tensor, "critics V K"] | Sequence[Float[Tensor, "V K"]],
    target_biases: Float[Tensor, "critics V"] | Sequence[Float[Tensor, " V"]],
    *,
    chunk_tokens: int,
) -> Float[Tensor, " N"]:
    """`td.double_q_values` over a whole vocabulary: the token is chosen by the online critics' mean, judged by the
    smallest of the target critics.

    Args:
        online_features: Inputs of the last layer of each online critic at N positions.
        online_weights: Last layers of the online critics, stacked or one by one (which copies nothing).
        online_biases: The same, biases.
        target_features: Inputs of the last layer of each target critic.
        target_weights: Last layers of the target critics.
        target_biases: The same, biases.
        chunk_tokens: Positions at a time; extra memory is about `2 * chunk_tokens * V` numbers.

    Returns:
        One value a position, detached; half precision is returned in float32.

    >>> ones = torch.ones(1, 1, 1)
    >>> online, target = torch.tensor([[1.0, 2.0]]), torch.tensor([[7.0, 5.0]])  # online takes the second
    >>> none = torch.zeros(1, 2, 1)
    >>> vocabulary_double_q_values(ones, none, online, ones, none, target, chunk_tokens=4).tolist()
    [5.0]
    """
    best = []
    critics = list(zip(online_weights, online_biases, strict=True))
    for rows in torch.split(online_features, chunk_tokens, dim=1):
        total = _q_rows(rows[0], *critics[0])
        for features, (weight, bias) in zip(rows[1:], critics[1:], strict=True):
            total += _q_rows(features, weight, bias)
        best.append(total.argmax(dim=-1))
    tokens = torch.cat(best)
    judged = [
        _raised((features * weight[tokens]).sum(dim=-1) + bias[tokens])
        for features, weight, bias in zip(target_features, target_weights, target_biases, strict=True)
    ]
    return torch.stack(judged).amin(dim=0)


class _ChunkedVocabulary(torch.autograd.Function):
    """Rows of features -> (Q of the given token, soft maximum of Q), one pass over the vocabulary each way."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        token_ids: Tensor,
        temperature: float,
        chunk_tokens: int,
    ) -> tuple[Tensor, Tensor]:
        rows = len(features)
        chosen = _raised(features.new_zeros(rows))
        logsumexp = torch.zeros_like(chosen)
        with torch.autocast(features.device.type, enabled=False):  # as the backward pass, which runs without it
            for chunk in _chunks(rows, chunk_tokens):
                q_values = _q_rows(features[chunk], weight, bias)
                chosen[chunk] = q_values.gather(1, token_ids[chunk].unsqueeze(1)).squeeze(1)
                logsumexp[chunk] = temperature * torch.logsumexp(q_values.div_(temperature), dim=1)
        ctx.save_for_backward(features, weight, bias, token_ids, logsumexp)
        ctx.temperature, ctx.chunk_tokens = temperature, chunk_tokens
        return chosen, logsumexp

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, chosen_gradient: Tensor, logsumexp_gradient: Tensor) -> tuple[Tensor | None, ...]:
        features, weight, bias, token_ids, logsumexp = ctx.saved_tensors
        needs_features, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        to_features = torch.zeros_like(features) if needs_features else None
        # Sums over chunks are kept in float32 where the weights are not: small terms would vanish.
        to_weight = _raised(torch.zeros_like(weight)) if needs_weight else None
        to_bias = _raised(weight.new_zeros(len(weight))) if needs_bias else None
        for chunk in _chunks(len(features), ctx.chunk_tokens):
            # The gradient of the soft maximum is the softmax, that of the token taken is one at the token.
            gradient = _q_rows(features[chunk], weight, bias)
            gradient.sub_(logsumexp[chunk].unsqueeze(1)).div_(ctx.temperature).exp_()
            gradient.mul_(logsumexp_gradient[chunk].unsqueeze(1))
            gradient.scatter_add_(1, token_ids[chunk].unsqueeze(1), chosen_gradient[chunk].unsqueeze(1))
            if to_bias is not None:
                to_bias += gradient.sum(dim=0)
            gradient = gradient.to(weight.dtype)
            if to_features is not None:
                to_features[chunk] = gradient @ weight
            if to_weight is not None and to_weight.dtype == weight.dtype:
                to_weight.addmm_(gradient.T, features[chunk])
            elif to_weight is not None:
                to_weight += gradient.T @ features[chunk]
        if to_weight is not None:
            to_weight = to_weight.to(weight.dtype)
        if to_bias is not None:
            to_bias = to_bias.to(bias.dtype)
        return to_features, to_weight, to_bias, None, None, None


def _chunks(rows: int, chunk_tokens: int) -> list[slice]:
    return [slice(start, start + chunk_tokens) for start in range(0, rows, chunk_tokens)]


def _q_rows(features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """[n, K] -> [n, V], in float32 where the weights are of less."""
    return _raised(F.linear(features, weight, bias))


def _raised(values: Tensor) -> Tensor:
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
