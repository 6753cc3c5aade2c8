"""The chunked vocabulary needs less memory than the naive one (full size: `tests/benchmarks`)."""

from __future__ import annotations

import sys

import pytest
from toys.vocabulary_memory import measure


@pytest.mark.skipif(sys.platform != "linux", reason="reads the high-water mark from /proc")
def test_peak_memory_is_under_a_third_of_the_naive_layout() -> None:
    """512 tokens by 20,000: a [B, T, V] float32 is 39 MiB, and the naive way holds several."""
    sizes = {"tokens": 512, "vocabulary": 20_000, "width": 16}
    chunked, naive = measure("chunked", **sizes), measure("naive", **sizes)
    assert chunked.results == pytest.approx(naive.results, rel=1e-4)
    assert naive.mebibytes > 2 * 512 * 20_000 * 4 / 2**20
    assert chunked.mebibytes < naive.mebibytes / 3
