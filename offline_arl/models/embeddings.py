"""Embeddings of tokens that a pretrained policy has not met."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def embed_new_tokens(model: Any, token_ids: Sequence[int], *, seed: int) -> None:
    """Give tokens that were added to a tokenizer their rows in a model, in place.

    The matrices grow where they are too small; a model with room to spare (padded to a round size) keeps its size. A
    new input row is the mean of the others and noise of half their spread, so that the tokens differ from the start; a
    new row of an output layer of its own is the mean, so that the model does not say the token more often than others.

    Args:
        model: A Hugging Face causal language model.
        token_ids: Of the new tokens, all behind those that the model knows.
        seed: Of the noise; the caller's random state is left as it was.
    """
    first, needed = min(token_ids), max(token_ids) + 1
    if needed > model.get_input_embeddings().weight.shape[0]:
        with torch.random.fork_rng(devices=[]):
            model.resize_token_embeddings(needed, mean_resizing=False)
    generator = torch.Generator().manual_seed(seed)
    inputs, outputs = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    with torch.no_grad():
        known = inputs[:first].float()
        noise = torch.randn(len(token_ids), known.shape[1], generator=generator).to(known.device)
        rows = torch.tensor(token_ids, device=inputs.device)
        inputs[rows] = (known.mean(0) + 0.5 * known.std(0) * noise).to(inputs.dtype)
        if outputs is not inputs:
            outputs[rows] = outputs[:first].float().mean(0).to(outputs.dtype)
