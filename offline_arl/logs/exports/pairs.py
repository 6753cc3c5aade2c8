"""Finding the two trajectories of a comparison as they come by, in bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from offline_arl.trajectories.schema import Trajectory

_HELD = 256  # trajectories in memory; the others of which a counterpart may come are fetched again


@dataclass
class Pairs:
    """Pairs by the judgement `preference` and its `comparison_id`.

    Attributes:
        fetch: Gives a trajectory by its id.
        unpaired: After the walk: the ids of those without a counterpart.
    """

    fetch: Callable[[str], Trajectory]
    unpaired: set[str] = field(default_factory=set)

    def of(self, trajectories: Iterable[Trajectory]) -> Iterator[tuple[Trajectory, Trajectory]]:
        """Yield the chosen and the rejected one of each comparison, when the second of them comes by."""
        waiting: dict[str, tuple[float, str]] = {}
        held: OrderedDict[str, Trajectory] = OrderedDict()
        paired: set[str] = set()
        for trajectory in trajectories:
            for comparison, value in _preferences(trajectory):
                earlier = waiting.get(comparison)
                if earlier is None or earlier[0] == value:
                    waiting.setdefault(comparison, (value, trajectory.trajectory_id))
                    held[trajectory.trajectory_id] = trajectory
                    if len(held) > _HELD:
                        held.popitem(last=False)
                    continue
                del waiting[comparison]
                other = held.pop(earlier[1], None) or self.fetch(earlier[1])
                paired.update((trajectory.trajectory_id, other.trajectory_id))
                yield (trajectory, other) if value > earlier[0] else (other, trajectory)
            if trajectory.trajectory_id not in paired:
                self.unpaired.add(trajectory.trajectory_id)
        self.unpaired -= paired


def _preferences(trajectory: Trajectory) -> Iterator[tuple[str, float]]:
    for score in trajectory.scores:
        if score.name == "preference" and score.comparison_id is not None and score.value is not None:
            sign = -1.0 if score.direction == "lower_is_better" else 1.0
            yield score.comparison_id, sign * score.value
