"""Which process works on which rows in each update."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence


class MicroBatchSampler(Sequence[list[int]]):
    """The micro-batches of one process.

    An update is `batches_per_update` batches, however many processes there are: they share it out, so the same
    configuration gives the same updates on one process and on many, up to rounding. Where the batches cannot be
    dealt out evenly, each one is cut into equal parts first. A process that is left without rows gets an empty
    micro-batch, because all of them have to take part in every exchange of gradients.

    Args:
        batches: Row numbers; of each batch, neighbors should be of similar length, so that its parts are too.
        batches_per_update: How many batches make an update; the last update may have fewer.
        process: The number of this process, from 0.
        processes: How many there are.

    >>> batches = [[1, 2, 3, 4], [5, 6]]
    >>> list(MicroBatchSampler(batches, batches_per_update=2))
    [[1, 2, 3, 4], [5, 6]]
    >>> [list(MicroBatchSampler(batches, batches_per_update=2, process=p, processes=2)) for p in (0, 1)]
    [[[1, 2, 3, 4]], [[5, 6]]]
    >>> [list(MicroBatchSampler(batches, batches_per_update=1, process=p, processes=2)) for p in (0, 1)]
    [[[1, 3], [5]], [[2, 4], [6]]]
    """

    def __init__(
        self, batches: Sequence[list[int]], *, batches_per_update: int, process: int = 0, processes: int = 1
    ) -> None:
        common = math.gcd(batches_per_update, processes)
        parts = processes // common
        self.per_update = batches_per_update // common
        self.updates = -(-len(batches) // batches_per_update)
        self._micro_batches: list[list[int]] = []
        for start in range(0, len(batches), batches_per_update):
            update = batches[start : start + batches_per_update]
            pieces = [batch[part::parts] for batch in update for part in range(parts)]
            share = pieces[process::processes]
            rounds = -(-len(pieces) // processes)
            self._micro_batches += share + [[]] * (rounds - len(share))

    def __len__(self) -> int:
        return len(self._micro_batches)

    def __getitem__(self, index: int) -> list[int]:  # type: ignore[override]
        return self._micro_batches[index]

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._micro_batches)
