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


def critic_loss(twin_q_values: np.ndarray, targets: np.ndarray, mask: np.ndarray) -> np.ndarray:
    out = np.zeros(targets.shape)
    for index in np.ndindex(*targets.shape):
        if mask[index]:
            out[index] = sum((float(critic[index]) - float(targets[index])) ** 2 for critic in twin_q_values)
    return out


def critic_huber_loss(twin_q_values: np.ndarray, targets: np.ndarray, mask: np.ndarray, delta: float) -> np.ndarray:
    """Huber 1964: e^2 / 2 within delta, delta (|e| - delta / 2) beyond."""
    out = np.zeros(targets.shape)
    for index in np.ndindex(*targets.shape):
        for critic in twin_q_values:
            error = abs(float(critic[index]) - float(targets[index]))
            if mask[index]:
                out[index] += error * error / 2 if error < delta else delta * (error - delta / 2)
    return out


def double_q_values(online: np.ndarray, target: np.ndarray, candidate_mask: np.ndarray) -> np.ndarray:
    """van Hasselt et al. 2016, equation 4, with the smallest of the target critics as the judge."""
    out = np.full(candidate_mask.shape[:-1], math.nan)
    for index in np.ndindex(*out.shape):
        best = None
        for action in range(candidate_mask.shape[-1]):
            mean = sum(float(critic[index][action]) for critic in online) / len(online)
            if candidate_mask[index][action] and (best is None or mean > best[0]):
                best = mean, action
        if best is not None:
            out[index] = min(float(critic[index][best[1]]) for critic in target)
    return out


def soft_maximum(values: list[float], temperature: float) -> float:
    """temperature * log(sum of exp(value / temperature))."""
    highest = max(values)
    return highest + temperature * math.log(sum(math.exp((value - highest) / temperature) for value in values))


def candidate_conservative_loss(
    candidates: np.ndarray, candidate_mask: np.ndarray, chosen: np.ndarray, mask: np.ndarray, temperature: float
) -> np.ndarray:
    """Kumar et al. 2020, equation 4, inner part: soft maximum over the candidates minus Q(s, a), for each critic."""
    out = np.zeros(mask.shape)
    for index in np.ndindex(*mask.shape):
        existing = np.flatnonzero(candidate_mask[index])
        if mask[index] and len(existing):
            for critic, own in zip(candidates, chosen, strict=True):
                values = [float(critic[index][action]) for action in existing]
                out[index] += soft_maximum(values, temperature) - float(own[index])
    return out


def calibrated_q_values(candidates: np.ndarray, returns: np.ndarray, from_policy: np.ndarray) -> np.ndarray:
    """Nakamoto et al. 2023, equation 5.1: max(Q, return) for actions of the policy."""
    out = candidates.copy()
    for critic in range(len(candidates)):
        for index in np.ndindex(*from_policy.shape):
            if from_policy[index]:
                out[critic][index] = max(float(candidates[critic][index]), float(returns[index[:-1]]))
    return out


def token_q_values(
    features: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    input_ids: np.ndarray,
    action_mask: np.ndarray,
    temperature: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Q of the token at t from the features at t - 1, and the soft maximum over the vocabulary."""
    chosen, logsumexp = np.zeros(input_ids.shape), np.zeros(input_ids.shape)
    for b in range(input_ids.shape[0]):
        for t in range(1, input_ids.shape[1]):
            if action_mask[b, t]:
                q_values = [float(features[b, t - 1] @ weight[v] + bias[v]) for v in range(len(weight))]
                chosen[b, t] = q_values[input_ids[b, t]]
                logsumexp[b, t] = soft_maximum(q_values, temperature)
    return chosen, logsumexp
