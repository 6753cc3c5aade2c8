"""Slow oracles of the preference objectives: plain loops over NumPy arrays, written from the papers' equations."""

from __future__ import annotations

import math

import numpy as np


def log_sigmoid(value: float) -> float:
    return -math.log1p(math.exp(-value)) if value >= 0 else value - math.log1p(math.exp(value))


def sequence_logprobs(logprobs: np.ndarray, mask: np.ndarray, average: bool) -> np.ndarray:
    out = np.zeros(len(logprobs))
    for number, (row, selected) in enumerate(zip(logprobs, mask, strict=True)):
        values = [float(value) for value, counts in zip(row, selected, strict=True) if counts]
        out[number] = sum(values) / max(len(values), 1) if average else sum(values)
    return out


def margin(chosen: float, rejected: float, reference_chosen: float, reference_rejected: float) -> float:
    """log(pi(w) / ref(w)) - log(pi(l) / ref(l))."""
    return (chosen - reference_chosen) - (rejected - reference_rejected)


def dpo_loss(logprobs: list[np.ndarray], mask: np.ndarray, beta: float, smoothing: float) -> np.ndarray:
    """Mitchell 2023, equation 3; Rafailov et al. 2023, equation 7 where `smoothing` is 0."""
    out = np.zeros(mask.shape)
    for index in np.ndindex(*mask.shape):
        if mask[index]:
            h = beta * margin(*(float(values[index]) for values in logprobs))
            out[index] = -(1 - smoothing) * log_sigmoid(h) - smoothing * log_sigmoid(-h)
    return out


def ipo_loss(logprobs: list[np.ndarray], mask: np.ndarray, tau: float) -> np.ndarray:
    """Azar et al. 2024, equation 17."""
    out = np.zeros(mask.shape)
    for index in np.ndindex(*mask.shape):
        if mask[index]:
            out[index] = (margin(*(float(values[index]) for values in logprobs)) - 1 / (2 * tau)) ** 2
    return out


def simpo_loss(chosen: np.ndarray, rejected: np.ndarray, mask: np.ndarray, beta: float, gamma: float) -> np.ndarray:
    """Meng et al. 2024, equation 6, on means."""
    out = np.zeros(mask.shape)
    for index in np.ndindex(*mask.shape):
        if mask[index]:
            out[index] = -log_sigmoid(beta * float(chosen[index]) - beta * float(rejected[index]) - gamma)
    return out


def kto_loss(
    logprobs: np.ndarray,
    reference: np.ndarray,
    desirable: np.ndarray,
    mask: np.ndarray,
    z0: float,
    beta: float,
    weights: tuple[float, float],
) -> np.ndarray:
    """Ethayarajh et al. 2024, equation 8: lambda - v(x, y)."""
    out = np.zeros(mask.shape)
    for index in np.ndindex(*mask.shape):
        if not mask[index]:
            continue
        ratio = float(logprobs[index]) - float(reference[index])
        if desirable[index]:
            out[index] = weights[0] - weights[0] * math.exp(log_sigmoid(beta * (ratio - z0)))
        else:
            out[index] = weights[1] - weights[1] * math.exp(log_sigmoid(beta * (z0 - ratio)))
    return out


def kto_reference_point(policy: np.ndarray, reference: np.ndarray, mask: np.ndarray, denominator: float) -> float:
    total = sum(float(p) - float(r) for p, r, counts in zip(policy, reference, mask, strict=True) if counts)
    return max(0.0, total / denominator)
