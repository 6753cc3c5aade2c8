"""Targets: returns, advantages and next values, which have no gradient."""

from __future__ import annotations

from collections.abc import Callable

import torch

from conformance.case import B, Case, Inputs, T, chance, randn, row, some_mask
from offline_arl import objectives

DISCOUNT, TRACE_DECAY = 0.5, 0.5
CONSTANT = ("rewards", "values", "bootstrap_values")


def _draw(generator: torch.Generator, dtype: torch.dtype) -> Inputs:
    return {
        "rewards": randn(generator, dtype, B, T),
        "values": randn(generator, dtype, B, T),
        "bootstrap_values": randn(generator, dtype, B, T),
        "terminated": chance(generator, 0.2, B, T),
        "truncated": chance(generator, 0.2, B, T),
        "mask": some_mask(generator),
    }


def _draw_without(*names: str) -> Callable[[torch.Generator, torch.dtype], Inputs]:
    def draw(generator: torch.Generator, dtype: torch.dtype) -> Inputs:
        return {name: value for name, value in _draw(generator, dtype).items() if name not in names}

    return draw


# Two attempts in one row: steps 0 and 2 (an observation between them) up to a terminal step, step 3 cut off.
HAND = {
    "rewards": row(1.0, 99.0, 2.0, 4.0),
    "values": row(2.0, 99.0, 6.0, 8.0),
    "bootstrap_values": row(99.0, 99.0, 99.0, 10.0),
    "terminated": row(False, False, True, False),
    "truncated": row(False, False, False, True),
    "mask": row(True, False, True, True),
}


def _hand(*names: str) -> Inputs:
    return {name: HAND[name] for name in names}


TARGET_CASES = {
    "monte_carlo_returns": Case(
        lambda **inputs: objectives.monte_carlo_returns(**inputs, discount=DISCOUNT),
        _draw_without("values"),
        differentiable=(),
        constant=("rewards", "bootstrap_values"),
        # From the back: 4 + 0.5 * 10 = 9; the end, 2; 1 + 0.5 * 2 = 2.
        hand=(_hand("rewards", "bootstrap_values", "terminated", "truncated", "mask"), [[2.0, 0.0, 2.0, 9.0]]),
    ),
    "td_lambda_returns": Case(
        lambda **inputs: objectives.td_lambda_returns(**inputs, discount=DISCOUNT, trace_decay=TRACE_DECAY),
        _draw,
        differentiable=(),
        constant=CONSTANT,
        # 9 and 2 as above; 1 + 0.5 * (0.5 * 6 + 0.5 * 2) = 3.
        hand=(HAND, [[3.0, 0.0, 2.0, 9.0]]),
    ),
    "generalized_advantages": Case(
        lambda **inputs: objectives.generalized_advantages(**inputs, discount=DISCOUNT, trace_decay=TRACE_DECAY),
        _draw,
        differentiable=(),
        constant=CONSTANT,
        # TD errors 1 + 0.5 * 6 - 2 = 2, 2 - 6 = -4 and 4 + 0.5 * 10 - 8 = 1; the first adds 0.5 * 0.5 * -4 = -1.
        hand=(HAND, [[1.0, 0.0, -4.0, 1.0]]),
    ),
    "next_step_values": Case(
        objectives.next_step_values,
        _draw_without("rewards", "terminated"),
        differentiable=(),
        constant=("values", "bootstrap_values"),
        # The next decision of step 0 is step 2, that of step 2 is step 3 (a target drops it: terminal), then 10.
        hand=(_hand("values", "bootstrap_values", "truncated", "mask"), [[6.0, 0.0, 8.0, 10.0]]),
    ),
}
