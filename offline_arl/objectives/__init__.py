"""Objectives: pure functions from tensors to unreduced losses. They import torch and nothing else of the package.

Index t of every [B, T] tensor describes `input_ids[:, t]` as the token being predicted, so index 0 is masked. The
shift between a model's outputs and that convention happens in `logprobs.py` alone; the one reduction is
`aggregate.masked_mean`. Every objective takes a mask, returns zeros behind it and lets nothing through it: values
behind a mask may be NaN.

An algorithm is a sum of these: implicit Q-learning is `expectile_loss` + `td_loss` and then `weighted_nll` with
`advantage_weights`; conservative Q-learning is `td_loss` on `double_q_values` + `candidate_conservative_loss`; Cal-QL
is that on `calibrated_q_values`; both over tokens start from `token_q_values`; the Decision Transformer is
`weighted_nll` with the classes of `quantize_returns` in the context. Preference losses work on `sequence_logprobs`;
a policy gradient weighs tokens with `group_advantages`, `generalized_advantages` and `mismatch_weights`.
"""

from offline_arl.objectives.aggregate import masked_mean
from offline_arl.objectives.awr import advantage_weights, effective_sample_size, weighted_nll
from offline_arl.objectives.cql import calibrated_q_values, candidate_conservative_loss, conservative_loss
from offline_arl.objectives.iql import expectile_loss
from offline_arl.objectives.logprobs import predicting_mask, selected_token_logprobs, token_logprobs
from offline_arl.objectives.policy_gradient import group_advantages, mismatch_weights
from offline_arl.objectives.preference import (
    dpo_loss,
    ipo_loss,
    kto_loss,
    kto_reference_point,
    sequence_logprobs,
    simpo_loss,
)
from offline_arl.objectives.return_conditioning import quantile_edges, quantize_returns
from offline_arl.objectives.returns import (
    generalized_advantages,
    monte_carlo_returns,
    next_step_values,
    step_discounts,
    td_lambda_returns,
)
from offline_arl.objectives.selection import top_fraction_mask
from offline_arl.objectives.td import critic_huber_loss, critic_loss, double_q_values, td_loss, td_target
from offline_arl.objectives.token_iql import TokenIQLLosses, token_iql_losses, token_transition_losses
from offline_arl.objectives.vocabulary import TokenQValues, token_q_values, vocabulary_double_q_values

__all__ = [
    "TokenIQLLosses",
    "TokenQValues",
    "advantage_weights",
    "calibrated_q_values",
    "candidate_conservative_loss",
    "conservative_loss",
    "critic_huber_loss",
    "critic_loss",
    "double_q_values",
    "dpo_loss",
    "effective_sample_size",
    "expectile_loss",
    "generalized_advantages",
    "group_advantages",
    "ipo_loss",
    "kto_loss",
    "kto_reference_point",
    "masked_mean",
    "mismatch_weights",
    "monte_carlo_returns",
    "next_step_values",
    "predicting_mask",
    "quantile_edges",
    "quantize_returns",
    "selected_token_logprobs",
    "sequence_logprobs",
    "simpo_loss",
    "step_discounts",
    "td_lambda_returns",
    "td_loss",
    "td_target",
    "token_iql_losses",
    "token_logprobs",
    "token_q_values",
    "token_transition_losses",
    "top_fraction_mask",
    "vocabulary_double_q_values",
    "weighted_nll",
]
