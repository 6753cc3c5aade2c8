"""Peak memory of token-level values over a vocabulary of 150 k: of the loss alone, and of a whole update."""

from __future__ import annotations

import pytest
from toys.token_step_memory import measure_step
from toys.vocabulary_memory import measure


def test_peak_memory_is_under_a_third_of_the_naive_layout() -> None:
    """4 rows of 1,024 tokens. The naive way takes 12 GB."""
    sizes = {"tokens": 4_096, "vocabulary": 150_000, "width": 64}
    chunked, naive = measure("chunked", **sizes), measure("naive", **sizes)
    for name, one in (("chunked", chunked), ("naive", naive)):
        print(f"\n{name}: {one.mebibytes:,.0f} MiB above inputs and weights, {one.seconds:.1f} s", end="")
    assert chunked.results == pytest.approx(naive.results, rel=1e-4)
    assert chunked.mebibytes < naive.mebibytes / 3


def test_a_whole_update_on_4_by_1024_tokens_takes_under_a_third_of_a_naive_one_on_a_quarter_of_them() -> None:
    """Twin critics with a hidden layer: losses, gradients, the optimizer's state and the targets, all of it.

    The naive update is measured on one row of the four, since on all of them it takes more than 20 GB.
    """
    sizes = {"vocabulary": 150_000, "width": 64}
    small, naive = (measure_step(way, tokens=1_024, **sizes) for way in ("trainer", "naive"))
    whole = measure_step("trainer", tokens=4_096, **sizes)
    measured = (("trainer, 1 x 1024", small), ("naive, 1 x 1024", naive), ("trainer, 4 x 1024", whole))
    for name, one in measured:
        print(f"\n{name}: {one.mebibytes:,.0f} MiB above heads, targets and batch, {one.seconds:.1f} s", end="")
    assert small.results == pytest.approx(naive.results, rel=1e-3)
    assert whole.mebibytes < naive.mebibytes / 3
