"""Rehearsal: rows of another dataset among those that a policy is cloned from, so that it keeps what it could before.

Training on logs alone takes from a model what the logs seldom need: after cloning, a small policy no longer copies the
order number that it could copy before, as two numbers in one message are rare. A share of earlier data in the stream
prevents that (Robins 1995, "Catastrophic Forgetting, Rehearsal and Pseudorehearsal"; for language models Ibrahim et
al. 2024, arXiv:2403.08763, who take 5 % where the data change little and 25 % where they change much).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_arl.datasets.collate import StepWeights
from offline_arl.datasets.segments import SegmentDataset, SegmentRow, steps_of
from offline_arl.errors import DataError

_MARK = "rehearsal\0"  # before the ids of rehearsed attempts, which may be those of the training data themselves


@dataclass(frozen=True)
class Rehearsal:
    """What is rehearsed, and which share of the tokens of a training it gets, above 0 and below 1."""

    dataset: SegmentDataset
    fraction: float

    def __post_init__(self) -> None:
        if not 0 < self.fraction < 1:
            raise ValueError(f"fraction is {self.fraction}; a share above 0 and below 1")


class RehearsedSegments(Sequence[SegmentRow]):
    """The rows of a dataset, and behind them those that are rehearsed.

    Args:
        dataset: What is learned.
        rehearsal: What is rehearsed.

    Raises:
        DataError: The two are of different tokenizers or templates, or there is nothing to rehearse.
    """

    def __init__(self, dataset: SegmentDataset, rehearsal: Rehearsal) -> None:
        if rehearsal.dataset.manifest.fingerprint != dataset.manifest.fingerprint:
            raise DataError(
                "the dataset to rehearse was built for another tokenizer or chat template than the training data; "
                "build it again for this policy"
            )
        if len(rehearsal.dataset) == 0:
            raise DataError("the dataset to rehearse is empty; build another, or leave rehearsal out")
        self._dataset = dataset
        self._rehearsal = rehearsal
        self.lengths: NDArray[np.int64] = np.concatenate([dataset.lengths, rehearsal.dataset.lengths])

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        position = range(len(self))[index] - len(self._dataset)
        if position < 0:
            return self._dataset[position + len(self._dataset)]
        row: SegmentRow = self._rehearsal.dataset[position]
        return replace(row, trajectory_id=_MARK + row.trajectory_id)

    def times(self, learned_tokens: float) -> NDArray[np.float64]:
        """[M] how often a training sees each rehearsed row on average, next to so many tokens of the dataset."""
        fraction, rehearsed = self._rehearsal.fraction, self._rehearsal.dataset
        times = learned_tokens * fraction / (1 - fraction) / float(rehearsed.lengths.sum())
        return np.full(len(rehearsed), times)

    def step_weights(self, of_dataset: StepWeights | None) -> StepWeights | None:
        """Weights of all steps: those of the dataset and 1 for each that is rehearsed. None: 1 for every step."""
        if of_dataset is None:
            return None
        rehearsed = (self[position] for position in range(len(self._dataset), len(self)))
        added = {(row.trajectory_id, int(step)): 1.0 for row in rehearsed for step in steps_of(row)}
        return {**of_dataset, **added}
