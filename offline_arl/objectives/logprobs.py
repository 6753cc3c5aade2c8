"""Log-probabilities of the tokens of a sequence: the one place where outputs and tokens are shifted.

A causal language model's output at position t - 1 predicts the token at position t. Everything else in the package
uses the convention that index t describes `input_ids[:, t]` as the token being predicted.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def predicting_mask(action_mask: Bool[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """Positions whose output predicts a token of `action_mask`: the mask moved one to the left.

    Computing logits at these positions alone saves the product with the vocabulary matrix elsewhere. A mask that is
    True at index 0 has nothing that predicts it; that index is ignored.

    >>> predicting_mask(torch.tensor([[False, False, True, True]])).tolist()
    [[False, True, True, False]]
    """
    return F.pad(action_mask[:, 1:], (0, 1), value=False)


def token_logprobs(
    logits: Float[Tensor, "B T V"],
    input_ids: Int[Tensor, "B T"],
    action_mask: Bool[Tensor, "B T"],
    *,
    chunk_tokens: int | None = None,
) -> Float[Tensor, "B T"]:
    """Log-probability of each token of `action_mask` given what precedes it, in nats.

    Args:
        logits: Outputs of the model; NaN at positions that predict no action token changes nothing.
        input_ids: The tokens.
        action_mask: Which tokens to score. Index 0 has no prediction and is treated as masked.
        chunk_tokens: Work on at most this many positions at a time and recompute them in the backward pass, which
            bounds the extra memory to `chunk_tokens * V` floats. None: all at once.

    Returns:
        [B, T], aligned to `input_ids`; 0 where masked, index 0 included. Half precision is computed and returned in
        float32, other types are kept. Gradients reach the scored positions of `logits` only.

    >>> logits = torch.tensor([[[0.0, 0.0], [9.0, 9.0]]])  # the first row predicts the second token: one half
    >>> token_logprobs(logits, torch.tensor([[0, 1]]), torch.tensor([[False, True]])).exp().tolist()
    [[1.0, 0.5]]
    """
    selected = logits[predicting_mask(action_mask)]
    return selected_token_logprobs(selected, input_ids, action_mask, chunk_tokens=chunk_tokens)


def selected_token_logprobs(
    selected_logits: Float[Tensor, "N V"],
    input_ids: Int[Tensor, "B T"],
    action_mask: Bool[Tensor, "B T"],
    *,
    chunk_tokens: int | None = None,
) -> Float[Tensor, "B T"]:
    """`token_logprobs` for logits that were computed at `predicting_mask(action_mask)` alone, in row-major order.

    Args:
        selected_logits: One row for each True of `predicting_mask(action_mask)`.
        input_ids: The tokens.
        action_mask: Which tokens to score.
        chunk_tokens: As in `token_logprobs`.

    Returns:
        [B, T], aligned to `input_ids`; 0 where masked.

    >>> ids, mask = torch.tensor([[7, 1, 0]]), torch.tensor([[False, False, True]])
    >>> round(selected_token_logprobs(torch.tensor([[1.0986123, 0.0]]), ids, mask).exp()[0, 2].item(), 6)
    0.75
    """
    targets_mask = scored_mask(action_mask)
    targets = input_ids[targets_mask].long()
    if chunk_tokens is None or len(targets) <= chunk_tokens:
        picked = _picked_logprobs(selected_logits, targets)
    else:
        pieces = [
            checkpoint(_picked_logprobs, rows, ids, use_reentrant=False)
            for rows, ids in zip(
                torch.split(selected_logits, chunk_tokens), torch.split(targets, chunk_tokens), strict=True
            )
        ]
        picked = torch.cat(pieces)
    scored = torch.zeros(input_ids.shape, dtype=picked.dtype, device=picked.device)
    return scored.masked_scatter(targets_mask, picked)


def scored_mask(action_mask: Bool[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """`action_mask` without index 0, which nothing predicts: the tokens that get a log-probability.

    >>> scored_mask(torch.tensor([[True, False, True]])).tolist()
    [[False, False, True]]
    """
    return F.pad(action_mask[:, 1:], (1, 0), value=False)


def _picked_logprobs(logits: Tensor, targets: Tensor) -> Tensor:
    """[N, V], [N] -> [N]; reduced precision is raised to float32 first."""
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    return -F.cross_entropy(logits, targets, reduction="none")
