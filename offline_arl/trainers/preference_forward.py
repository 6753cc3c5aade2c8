"""The forward pass of preference batches: log-probabilities of what the agent wrote, and of nothing else."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from offline_arl.datasets.preference_batches import PairBatch, SequenceBatch
from offline_arl.models.grouped_prefix import grouped_logits
from offline_arl.models.policy import selected_logits
from offline_arl.objectives import predicting_mask, selected_token_logprobs
from offline_arl.objectives.logprobs import scored_mask


def batch_logprobs(model: Any, batch: SequenceBatch, *, share_prefix: bool) -> Float[Tensor, "B T"]:
    """Log-probability of each scored token, 0 elsewhere; the prompt of a pair is encoded once where that works.

    Args:
        model: A Hugging Face causal language model, possibly wrapped.
        batch: On the model's device.
        share_prefix: Whether prompts may be encoded once. Without it, whole sequences are run.
    """
    mask = scored_mask(batch.action_mask)
    inputs = (model, batch.input_ids, batch.attention_mask, predicting_mask(mask))
    shared = batch.shared_prefix if share_prefix else 0
    if share_prefix and isinstance(batch, PairBatch):
        logits = grouped_logits(*inputs, groups=batch.groups, prefix_lengths=batch.prefix_lengths, shared_prefix=shared)
    else:
        logits = selected_logits(*inputs, shared_prefix=shared)
    return selected_token_logprobs(logits, batch.input_ids, mask)
