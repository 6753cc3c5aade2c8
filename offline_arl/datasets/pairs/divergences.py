"""Where attempts that share a beginning part: the states in which a pair of steps can be compared."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from offline_arl.datasets.pairs.pair import is_trained_step, state_keys
from offline_arl.trajectories.schema import Trajectory


@dataclass(frozen=True)
class Attempt:
    """A trajectory with the keys of its messages."""

    trajectory: Trajectory
    keys: Sequence[Hashable]

    @classmethod
    def of(cls, trajectory: Trajectory) -> Attempt:
        """The attempt of a trajectory."""
        return cls(trajectory, state_keys(trajectory))


@dataclass(frozen=True)
class Divergence:
    """A state, and the different steps that attempts took in it.

    Attributes:
        position: Index of the step's message; the messages before it are the same in all.
        steps: For each different step the attempts that took it, in order.
    """

    position: int
    steps: Sequence[Sequence[Attempt]]


def divergences(attempts: Sequence[Attempt]) -> Iterator[Divergence]:
    """Every state in which attempts with the same beginning took different steps.

    They form a tree: after each step, those that took it go on together, as long as the world answers the same. Where
    the world (or a user) answers differently, there is nothing to compare, and each goes on alone.
    """
    pending = [(0, list(attempts))]
    while pending:
        position, together = pending.pop()
        if len(together) < 2:
            continue
        parted: dict[Hashable, list[Attempt]] = {}
        for attempt in together:
            if position < len(attempt.keys):
                parted.setdefault(attempt.keys[position], []).append(attempt)
        steps = [same for same in parted.values() if is_trained_step(same[0].trajectory.messages[position])]
        if position and len(steps) > 1:
            yield Divergence(position, steps)
        pending.extend((position + 1, same) for same in reversed(parted.values()))
