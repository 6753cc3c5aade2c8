"""Packing: several short segments in one row, told apart by positions that start anew.

A packed row is exact where a model turns positions that restart at 0 into block-diagonal attention
(`models.packing.packs_exactly`). The first token of each segment is never scored: what stands before it in the row
belongs to another segment.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from offline_arl.datasets.collate import SegmentBatch, StepWeights, row_token_weights
from offline_arl.datasets.segments import SegmentRow


def pack(lengths: Sequence[int], width: int) -> list[list[int]]:
    """Bins of at most `width` tokens, first fit by descending length; a longer segment has a bin of its own.

    >>> pack([4, 9, 5, 1], 10)
    [[1, 3], [2, 0]]
    """
    bins: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda position: -lengths[position]):
        for number, free in enumerate(room):
            if lengths[index] <= free:
                bins[number].append(index)
                room[number] -= lengths[index]
                break
        else:
            bins.append([index])
            room.append(width - lengths[index])
    return bins


def collate_packed(
    rows: Sequence[SegmentRow],
    *,
    pad_token_id: int,
    step_weights: StepWeights | None = None,
    single_row: bool = False,
) -> SegmentBatch:
    """Pack rows into as few rows of the longest one's length as first fit finds.

    Args:
        rows: At least one row.
        pad_token_id: Fills what is left of a packed row; padding is a segment of its own.
        step_weights: Weight of each step, not negative; None weighs every step 1.
        single_row: Everything in one row without padding, which attention kernels for sequences of variable length
            take; attention over a mask would cost the square of all tokens.

    Returns:
        A batch with `position_ids`, which restart at 0 with each segment.

    Raises:
        DataError: A step of a row has no weight in `step_weights`.
    """
    lengths = [len(row) for row in rows]
    bins = [list(range(len(rows)))] if single_row else pack(lengths, max(lengths))
    shape = (len(bins), max(sum(lengths[index] for index in members) for members in bins))
    input_ids = np.full(shape, pad_token_id, dtype=np.int64)
    attention_mask = np.zeros(shape, dtype=np.int64)
    action_mask = np.zeros(shape, dtype=np.bool_)
    step_index = np.full(shape, -1, dtype=np.int64)
    token_weights = np.zeros(shape, dtype=np.float32)
    position_ids = np.zeros(shape, dtype=np.int64)
    for place, members in enumerate(bins):
        start = 0
        for index in members:
            row, end = rows[index], start + lengths[index]
            input_ids[place, start:end] = row.token_ids
            attention_mask[place, start:end] = 1
            action_mask[place, start:end] = row.action_mask
            step_index[place, start:end] = row.step_index
            token_weights[place, start:end] = row_token_weights(row, step_weights)
            position_ids[place, start:end] = np.arange(end - start)
            action_mask[place, start], step_index[place, start], token_weights[place, start] = False, -1, 0.0
            start = end
        position_ids[place, start:] = np.arange(shape[1] - start)
    return SegmentBatch(
        input_ids=torch.from_numpy(input_ids),
        attention_mask=torch.from_numpy(attention_mask),
        action_mask=torch.from_numpy(action_mask),
        step_index=torch.from_numpy(step_index),
        token_weights=torch.from_numpy(token_weights),
        shared_prefix=0,
        position_ids=torch.from_numpy(position_ids),
    )
