"""Objectives: pure functions from tensors to unreduced losses. They import torch and nothing else of the package.

Index t of every [B, T] tensor describes `input_ids[:, t]` as the token being predicted, so index 0 is masked. The
shift between a model's outputs and that convention happens in `logprobs.py` alone; the one reduction is
`aggregate.masked_mean`. Every objective takes a mask, returns zeros behind it and lets nothing through it: values
behind a mask may be NaN.
"""

from offline_arl.objectives.aggregate import masked_mean
from offline_arl.objectives.awr import advantage_weights, weighted_nll
from offline_arl.objectives.iql import expectile_loss, td_loss, td_target
from offline_arl.objectives.logprobs import predicting_mask, selected_token_logprobs, token_logprobs

__all__ = [
    "advantage_weights",
    "expectile_loss",
    "masked_mean",
    "predicting_mask",
    "selected_token_logprobs",
    "td_loss",
    "td_target",
    "token_logprobs",
    "weighted_nll",
]
