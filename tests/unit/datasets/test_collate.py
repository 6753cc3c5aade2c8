"""Padding, weights, shared prefixes and batches under a token budget."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from offline_arl.datasets.collate import (
    TokenBudgetSampler,
    collate_segments,
    length_sorted_batches,
    shared_prefix_length,
)
from offline_arl.datasets.segments import SegmentRow
from offline_arl.errors import DataError


def row(name: str, tokens: list[int], steps: list[int]) -> SegmentRow:
    """`steps` has one step number a token, -1 off the actions."""
    step_index = np.array(steps, dtype=np.int32)
    return SegmentRow(name, None, None, None, 0, np.array(tokens, dtype=np.int32), step_index >= 0, step_index)


A = row("a", [5, 6, 7, 8, 9], [-1, -1, 0, -1, 1])
B = row("b", [5, 6, 3], [-1, -1, 0])


def test_rows_are_padded_on_the_right() -> None:
    batch = collate_segments([A, B], pad_token_id=99)
    assert batch.input_ids.tolist() == [[5, 6, 7, 8, 9], [5, 6, 3, 99, 99]]
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    assert batch.action_mask.tolist() == [[False, False, True, False, True], [False, False, True, False, False]]
    assert batch.step_index.tolist() == [[-1, -1, 0, -1, 1], [-1, -1, 0, -1, -1]]
    assert batch.token_weights.tolist() == [[0, 0, 1, 0, 1], [0, 0, 1, 0, 0]]


def test_a_token_has_the_weight_of_its_step_and_weight_zero_masks_it() -> None:
    weights = {("a", 0): 2.5, ("a", 1): 0.0, ("b", 0): 0.5}
    batch = collate_segments([A, B], pad_token_id=0, step_weights=weights)
    assert batch.token_weights.tolist() == [[0, 0, 2.5, 0, 0], [0, 0, 0.5, 0, 0]]
    assert batch.loss_mask.tolist() == [[False, False, True, False, False], [False, False, True, False, False]]


def test_a_step_without_a_weight_is_an_error() -> None:
    with pytest.raises(DataError, match="trajectory a: step 1 has no weight"):
        collate_segments([A], pad_token_id=0, step_weights={("a", 0): 1.0})


def test_the_shared_prefix_ends_before_what_predicts_the_first_action() -> None:
    """Both rows share 5, 6, but the output at 6 predicts the first action token and is needed for each row."""
    assert collate_segments([A, B], pad_token_id=0).shared_prefix == 1


def test_padding_and_the_last_token_of_a_row_are_never_shared() -> None:
    """Without a mask, padding of two rows would look like a common token; the state at a row's end is its own."""
    ids = np.array([[4, 4, 4, 0], [4, 4, 4, 0]])
    attention = np.array([[1, 1, 0, 0], [1, 1, 0, 0]])
    assert shared_prefix_length(ids, attention, np.zeros((2, 4), dtype=bool)) == 1


LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=80).map(lambda values: np.array(values, dtype=np.int64))


@given(lengths=LENGTHS, budget=st.integers(20, 200), seed=st.integers(0, 5), epochs=st.integers(1, 3))
def test_every_epoch_holds_every_row_once_within_the_budget(
    lengths: np.ndarray, budget: int, seed: int, epochs: int
) -> None:
    batches = list(TokenBudgetSampler(lengths, max_tokens=budget, epochs=epochs, seed=seed, pool_batches=2))
    seen = np.bincount([index for batch in batches for index in batch], minlength=len(lengths))
    assert (seen == epochs).all()
    for batch in batches:
        assert len(batch) == 1 or len(batch) * lengths[batch].max() <= budget


def test_batches_depend_on_the_seed_alone() -> None:
    lengths = np.random.default_rng(0).integers(5, 50, size=200)
    state = torch.random.get_rng_state()
    first = TokenBudgetSampler(lengths, max_tokens=200, epochs=2, seed=1).batches
    assert first == TokenBudgetSampler(lengths, max_tokens=200, epochs=2, seed=1).batches
    assert first != TokenBudgetSampler(lengths, max_tokens=200, epochs=2, seed=2).batches
    assert torch.equal(torch.random.get_rng_state(), state)


def test_epochs_differ_and_a_fraction_ends_early() -> None:
    lengths = np.full(100, 10)
    batches = TokenBudgetSampler(lengths, max_tokens=100, epochs=2.5, seed=0).batches
    assert len(batches) == 25
    assert batches[:10] != batches[10:20]


def test_similar_lengths_share_a_batch() -> None:
    """Uniform lengths of 10 to 100 padded in random batches of 20 would waste about 40 %."""
    lengths = np.random.default_rng(0).integers(10, 101, size=2_000)
    batches = TokenBudgetSampler(lengths, max_tokens=2_000, epochs=1, seed=0).batches
    padded = sum(len(batch) * lengths[batch].max() for batch in batches)
    assert 1 - lengths.sum() / padded < 0.05


def test_inference_batches_are_sorted_and_complete() -> None:
    lengths = np.random.default_rng(0).integers(1, 30, size=50)
    batches = length_sorted_batches(lengths, max_tokens=90)
    flat = [index for batch in batches for index in batch]
    assert sorted(flat) == list(range(50))
    assert (np.diff(lengths[flat]) >= 0).all()
