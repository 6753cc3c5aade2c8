"""Batches of preference rows: shared prompts, mismatched answers, batches that keep together."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from toys.preferences import toy_answers, toy_pairs

from offline_arl.datasets.preference_batches import (
    collate_pairs,
    mismatched_partners,
    mismatched_side,
    pair_costs,
    steady_batches,
)
from offline_arl.errors import DataError


def test_a_batch_holds_both_sides_with_their_masks_and_the_prompt_up_to_what_predicts() -> None:
    rows = toy_pairs(4)
    batch = collate_pairs(rows, pad_token_id=0)
    assert batch.groups.tolist() == [0, 1, 2, 3] * 2
    assert batch.weights.tolist() == [row.weight for row in rows]
    # Any token of a prompt but the last, whose output predicts the first sampled token.
    assert batch.prefix_lengths.tolist() == [row.prompt_length - 1 for row in rows]
    for place, row in enumerate(rows):
        for side, (tokens, mask) in (
            (place, (row.chosen_token_ids, row.chosen_action_mask)),
            (place + 4, (row.rejected_token_ids, row.rejected_action_mask)),
        ):
            length = len(tokens)
            assert batch.input_ids[side, :length].tolist() == tokens.tolist()
            assert batch.action_mask[side, :length].tolist() == mask.tolist()
            assert batch.attention_mask[side].tolist() == [1] * length + [0] * (batch.input_ids.shape[1] - length)
            assert not batch.action_mask[side, length:].any()
    assert batch.shared_prefix == 12
    assert batch.shared_prefix <= batch.prefix_lengths.min()


def test_a_prompt_that_goes_on_differently_is_shared_as_far_as_it_goes() -> None:
    """Users may speak differently to two attempts at a task: then the first action stands further back."""
    (row,) = toy_pairs(1)
    own = dataclasses.replace(row, prompt_length=9, same_prompt=False)
    assert collate_pairs([own], pad_token_id=0).prefix_lengths.tolist() == [9]
    nothing = dataclasses.replace(row, prompt_length=0, same_prompt=False)
    assert collate_pairs([nothing], pad_token_id=0).prefix_lengths.tolist() == [0]


@pytest.mark.parametrize("broken", ["tokens", "action"])
def test_sides_that_do_not_share_what_they_say_are_an_error(broken: str) -> None:
    (row,) = toy_pairs(1)
    if broken == "tokens":
        ids = row.rejected_token_ids.copy()
        ids[3] += 1
        row = dataclasses.replace(row, rejected_token_ids=ids)
    else:
        mask = row.chosen_action_mask.copy()
        mask[2] = True
        row = dataclasses.replace(row, chosen_action_mask=mask)
    with pytest.raises(DataError, match="build the pairs again"):
        collate_pairs([row], pad_token_id=0)


def test_a_pair_costs_its_prompt_once_where_prompts_are_shared() -> None:
    rows = toy_pairs(3)
    longest = [max(len(row.chosen_token_ids), len(row.rejected_token_ids)) for row in rows]
    assert pair_costs(rows, share_prefix=False).tolist() == [2 * length for length in longest]
    expected = [2 * length - row.prompt_length + 1 for length, row in zip(longest, rows, strict=True)]
    assert pair_costs(rows, share_prefix=True).tolist() == expected


def test_mismatched_answers_are_the_batchs_own_behind_other_prompts_with_their_masks() -> None:
    rows = toy_answers(7)
    batches = [[3, 0, 5], [1, 2, 4, 6]]
    partners = mismatched_partners(rows, batches)
    for batch in batches:
        assert sorted(partners[batch]) == sorted(batch)
        assert all(partners[index] != index for index in batch)
    side = mismatched_side(rows[3], rows[partners[3]])
    other = rows[partners[3]]
    assert side.token_ids.tolist() == [
        *rows[3].token_ids[: rows[3].prompt_length], *other.token_ids[other.prompt_length :],
    ]  # fmt: skip
    assert not side.action_mask[: rows[3].prompt_length].any()
    assert side.action_mask[rows[3].prompt_length :].tolist() == other.action_mask[other.prompt_length :].tolist()
    assert side.action_mask.sum() < len(other) - other.prompt_length or other.action_mask[other.prompt_length :].all()


def test_attempts_at_the_same_task_are_not_put_behind_their_own_prompt() -> None:
    """Four attempts at two tasks, neighbors alike: a shift of one would put two answers behind their own prompt."""
    first, second = toy_answers(2)
    rows = [first, first, second, second]
    partners = mismatched_partners(rows, [[0, 1, 2, 3]])
    assert partners.tolist() == [2, 3, 0, 1]
    assert mismatched_partners(rows, [[0], [1], [2], [3]]).tolist() == [0, 1, 2, 3]


def test_steady_batches_keep_together_and_change_their_order() -> None:
    lengths = np.random.default_rng(0).integers(5, 30, size=40)
    steady = steady_batches(lengths, max_tokens=100, epochs=2.5, seed=0)
    assert sorted(index for batch in steady.batches for index in batch) == list(range(40))
    count = len(steady.batches)
    epochs = [steady.schedule[:count], steady.schedule[count : 2 * count], steady.schedule[2 * count :]]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(steady.batches)
    assert epochs[0] != epochs[1]
    assert len(epochs[2]) == round(count / 2)
    assert steady == steady_batches(lengths, max_tokens=100, epochs=2.5, seed=0)
