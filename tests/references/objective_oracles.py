"""Slow oracles of the objectives: plain loops over NumPy arrays, written from the papers' equations."""

from __future__ import annotations

import math

import numpy as np


def token_logprobs(logits: np.ndarray, input_ids: np.ndarray, action_mask: np.ndarray) -> np.ndarray:
    """log softmax(logits[b, t - 1])[input_ids[b, t]] on action tokens, 0 elsewhere."""
    out = np.zeros(input_ids.shape)
    for b in range(input_ids.shape[0]):
        for t in range(1, input_ids.shape[1]):
            if action_mask[b, t]:
                row = logits[b, t - 1].astype(np.float64)
                highest = row.max()
                log_total = highest + math.log(sum(math.exp(value - highest) for value in row))
                out[b, t] = row[input_ids[b, t]] - log_total
    return out


def masked_mean(values: np.ndarray, mask: np.ndarray, denominator: float) -> float:
    total = 0.0
    for value, selected in zip(values.flat, mask.flat, strict=True):
        if selected:
            total += float(value)
    return total / denominator


def advantage_weights(advantages: np.ndarray, inverse_temperature: float, max_weight: float) -> np.ndarray:
    """Peng et al. 2019: exp(A / temperature), capped."""
    flat = [min(math.exp(min(inverse_temperature * float(value), 700.0)), max_weight) for value in advantages.flat]
    return np.array(flat).reshape(advantages.shape)


def weighted_nll(logprobs: np.ndarray, weights: np.ndarray, mask: np.ndarray) -> np.ndarray:
    out = np.zeros(logprobs.shape)
    for index in np.ndindex(*logprobs.shape):
        if mask[index]:
            out[index] = -float(weights[index]) * float(logprobs[index])
    return out


def expectile_loss(q_values: np.ndarray, values: np.ndarray, mask: np.ndarray, expectile: float) -> np.ndarray:
    """Kostrikov et al. 2021, equation 5: L2^tau(u) = |tau - 1(u < 0)| u^2, u = Q - V."""
    out = np.zeros(values.shape)
    for index in np.ndindex(*values.shape):
        if mask[index]:
            u = float(q_values[index]) - float(values[index])
            out[index] = abs(expectile - (1.0 if u < 0 else 0.0)) * u * u
    return out


def td_loss(
    twin_q_values: np.ndarray,
    rewards: np.ndarray,
    next_values: np.ndarray,
    terminated: np.ndarray,
    mask: np.ndarray,
    discount: float,
) -> np.ndarray:
    """Kostrikov et al. 2021, equation 6, summed over the critics."""
    out = np.zeros(rewards.shape)
    for index in np.ndindex(*rewards.shape):
        if not mask[index]:
            continue
        target = float(rewards[index])
        if not terminated[index]:
            target += discount * float(next_values[index])
        for critic in twin_q_values:
            out[index] += (target - float(critic[index])) ** 2
    return out
