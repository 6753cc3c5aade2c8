"""Slow oracles of returns, advantages, selections and classes: by their definitions, without recursions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np


def attempts(terminated: np.ndarray, truncated: np.ndarray, mask: np.ndarray) -> list[list[int]]:
    """Positions of the decisions of one row, attempt by attempt."""
    found: list[list[int]] = [[]]
    for position in range(len(mask)):
        if mask[position]:
            found[-1].append(position)
            if terminated[position] or truncated[position]:
                found.append([])
    return [attempt for attempt in found if attempt]


def _value_after(attempt: list[int], index: int, row: dict[str, np.ndarray]) -> float:
    """V of the state that decision `index` of an attempt led to."""
    if index + 1 < len(attempt):
        return float(row["values"][attempt[index + 1]])
    position = attempt[index]
    return 0.0 if row["terminated"][position] else float(row["bootstrap_values"][position])


def _n_step_return(attempt: list[int], start: int, steps: int, row: dict[str, np.ndarray], discount: float) -> float:
    """Rewards of `steps` decisions, then V."""
    total = sum(discount**k * float(row["rewards"][attempt[start + k]]) for k in range(steps))
    return total + discount**steps * _value_after(attempt, start + steps - 1, row)


def td_lambda_returns(inputs: dict[str, np.ndarray], discount: float, trace_decay: float) -> np.ndarray:
    """Forward view: (1 - lambda) sum of lambda^(n - 1) G^(n), and the rest of the weight on the longest G."""
    out = np.zeros(inputs["rewards"].shape)
    for b in range(len(out)):
        row = {name: value[b] for name, value in inputs.items()}
        for attempt in attempts(row["terminated"], row["truncated"], row["mask"]):
            for start, position in enumerate(attempt):
                left = len(attempt) - start
                returns = [_n_step_return(attempt, start, n, row, discount) for n in range(1, left + 1)]
                weights = [(1 - trace_decay) * trace_decay ** (n - 1) for n in range(1, left)]
                weights.append(trace_decay ** (left - 1))
                out[b, position] = sum(w * g for w, g in zip(weights, returns, strict=True))
    return out


def monte_carlo_returns(inputs: dict[str, np.ndarray], discount: float) -> np.ndarray:
    """Discounted sum of what was earned up to the end or the cut, then V of what follows the cut."""
    out = np.zeros(inputs["rewards"].shape)
    for b in range(len(out)):
        row = {name: value[b] for name, value in inputs.items()}
        for attempt in attempts(row["terminated"], row["truncated"], row["mask"]):
            for start, position in enumerate(attempt):
                out[b, position] = _n_step_return(attempt, start, len(attempt) - start, row, discount)
    return out


def generalized_advantages(inputs: dict[str, np.ndarray], discount: float, trace_decay: float) -> np.ndarray:
    """Schulman et al. 2016, equation 16: sum over k of (gamma lambda)^k delta of the k-th decision to come."""
    out = np.zeros(inputs["rewards"].shape)
    for b in range(len(out)):
        row = {name: value[b] for name, value in inputs.items()}
        for attempt in attempts(row["terminated"], row["truncated"], row["mask"]):
            errors = [
                float(row["rewards"][position])
                + discount * _value_after(attempt, index, row)
                - float(row["values"][position])
                for index, position in enumerate(attempt)
            ]
            for start, position in enumerate(attempt):
                later = enumerate(errors[start:])
                out[b, position] = sum((discount * trace_decay) ** k * error for k, error in later)
    return out


def next_step_values(inputs: dict[str, np.ndarray]) -> np.ndarray:
    """V of the next decision of the row; the bootstrap value at a cut and at the last decision."""
    out = np.zeros(inputs["values"].shape)
    for b in range(len(out)):
        row = {name: value[b] for name, value in inputs.items()}
        positions = [position for position in range(len(row["mask"])) if row["mask"][position]]
        for index, position in enumerate(positions):
            cut_off = row["truncated"][position] or index + 1 == len(positions)
            found = row["bootstrap_values"][position] if cut_off else row["values"][positions[index + 1]]
            out[b, position] = float(found)
    return out


def step_discounts(step_index: np.ndarray, action_mask: np.ndarray, discount: float) -> np.ndarray:
    """`discount` at an action token whose next action token, if any, is of another step."""
    out = np.ones(step_index.shape)
    for b in range(len(out)):
        positions = np.flatnonzero(action_mask[b]).tolist()
        for index, position in enumerate(positions):
            last = index + 1 == len(positions)
            if last or step_index[b, positions[index + 1]] != step_index[b, position]:
                out[b, position] = discount
    return out


def effective_sample_size(weights: np.ndarray, mask: np.ndarray) -> float:
    selected = [float(weight) for weight, counts in zip(weights.flat, mask.flat, strict=True) if counts]
    squares = sum(weight**2 for weight in selected)
    return sum(selected) ** 2 / squares if squares > 0 else 0.0


def top_fraction_mask(returns: np.ndarray, mask: np.ndarray, fraction: float) -> np.ndarray:
    """An attempt is in unless enough attempts to fill the fraction are strictly better."""
    available = [float(value) for value, counts in zip(returns, mask, strict=True) if counts]
    out = np.zeros(len(returns), dtype=bool)
    for index, value in enumerate(returns):
        better = sum(other > value for other in available)
        out[index] = bool(mask[index]) and (better == 0 or better < fraction * len(available) - 1e-9)
    return out


def quantize_returns(returns: np.ndarray, edges: np.ndarray) -> np.ndarray:
    return np.array([sum(value >= edge for edge in edges) for value in returns.flat]).reshape(returns.shape)


def quantile_edges(returns: np.ndarray, bins: int) -> list[float]:
    """Each value a class where there are few; else class after class takes the values that bring it nearest to its
    share of what is left (of two equally near, the smaller class), at least one value.
    """
    values = [float(value) for value in returns]
    different = sorted(set(values))
    if len(different) <= bins:
        return different[1:]
    edges = []
    for left in range(bins, 1, -1):
        share = Fraction(len(values), left)
        sizes = {value: sum(other <= value for other in values) for value in different}
        last = min(different, key=lambda value: (abs(sizes[value] - share), sizes[value]))
        different = [value for value in different if value > last]
        values = [value for value in values if value > last]
        if not different:
            break
        edges.append(different[0])
    return edges
