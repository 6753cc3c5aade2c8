"""All pairs of a family of trajectories: those that share a task, a branch point or a comparison."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from offline_arl.datasets.pairs.branches import kept_pairs, kind_of, rewritten_request_pairs
from offline_arl.datasets.pairs.divergences import Attempt, divergences
from offline_arl.datasets.pairs.judgements import comparison_pairs, correction_pairs
from offline_arl.datasets.pairs.outcomes import QValues, attempt_value, step_pairs, trajectory_pairs, value_pairs
from offline_arl.datasets.pairs.pair import Pair
from offline_arl.rewards.preferences import PairKind, PairsConfig
from offline_arl.trajectories.families import components
from offline_arl.trajectories.schema import Trajectory


def mine(
    family: Sequence[Trajectory],
    config: PairsConfig,
    counts: Counter[str],
    *,
    q_values: QValues | None = None,
) -> list[Pair]:
    """The pairs of one family, by kind, in the order of `config.pair_kinds`.

    A pair of the same two steps is made once: by outcomes where they tell, else by what was gone on with, else by the
    critic. Trajectory pairs are made besides step pairs; leave out the kind that is not wanted.

    Args:
        family: Trajectories that belong together (see `families_of`).
        config: Which pairs.
        counts: Gets how many pairs were not made, by reason; and what was looked at: `shared_states` are states in
            which two attempts at a task took different steps, `mixed_tasks` tasks whose attempts ended differently.
        q_values: Q of steps, for value pairs.
    """
    found: dict[PairKind, list[Pair]] = defaultdict(list)
    attempts = [Attempt.of(trajectory) for trajectory in family]
    for group in _groups(attempts, config):
        for pair in _pairs_of_group(group, config, counts, q_values):
            found[pair.kind].append(pair)
    if "comparison" in config.pair_kinds:
        found["comparison"] += comparison_pairs(attempts, counts)
    if "correction" in config.pair_kinds:
        found["correction"] += [pair for attempt in attempts for pair in correction_pairs(attempt, counts)]
    return [pair for kind in config.pair_kinds for pair in found[kind]]


def families_of(trajectories: Iterable[Trajectory], config: PairsConfig) -> Iterator[list[Trajectory]]:
    """Trajectories that have to be looked at together, in the order of the first of each family.

    All are held in memory; `workflows.build_preferences` reads a store family by family instead.
    """
    members = list(trajectories)
    links = Links()
    for trajectory in members:
        links.add(trajectory.trajectory_id, _links(trajectory, config))
    grouped: dict[int, list[Trajectory]] = defaultdict(list)
    for trajectory, family in zip(members, links.families(), strict=True):
        grouped[family].append(trajectory)
    yield from grouped.values()


class Links:
    """Which trajectories belong together, from the names that they share."""

    def __init__(self) -> None:
        self._names: list[tuple[str, ...]] = []

    def add(self, trajectory_id: str, names: Iterable[str]) -> None:
        """Add a trajectory and what it shares with others."""
        self._names.append((f"trajectory {trajectory_id}", *names))

    def families(self) -> list[int]:
        """For each trajectory, in the order of `add`, the position of the first one of its family."""
        first: dict[str, int] = {}
        left, right = [], []
        for position, names in enumerate(self._names):
            for name in names:
                left.append(position)
                right.append(first.setdefault(name, position))
        edges = (np.array(side, dtype=np.int64) for side in (left, right))
        return [int(family) for family in components(len(self._names), *edges)]


def task_key(task_id: str | None, group_id: str | None, config: PairsConfig) -> str | None:
    """What attempts that are compared with one another share; None where there is nothing."""
    if config.compare_within == "task" and task_id is not None:
        return f"task {task_id}"
    return None if group_id is None else f"group {group_id}"


def _links(trajectory: Trajectory, config: PairsConfig) -> Iterator[str]:
    key = task_key(trajectory.task_id, trajectory.group_id, config)
    if key is not None:
        yield key
    if trajectory.branch is not None:
        yield f"trajectory {trajectory.branch.trajectory_id}"
    for score in trajectory.scores:
        if score.comparison_id is not None:
            yield f"comparison {score.comparison_id}"


def _groups(attempts: Sequence[Attempt], config: PairsConfig) -> Iterator[list[Attempt]]:
    """Attempts that may be compared by their ends: at one task, or branches of one another."""
    links = Links()
    for attempt in attempts:
        trajectory = msgspec.structs.replace(attempt.trajectory, scores=[])
        links.add(trajectory.trajectory_id, _links(trajectory, config))
    grouped: dict[int, list[Attempt]] = defaultdict(list)
    for attempt, group in zip(attempts, links.families(), strict=True):
        grouped[group].append(attempt)
    yield from grouped.values()


def _pairs_of_group(
    group: Sequence[Attempt], config: PairsConfig, counts: Counter[str], q_values: QValues | None
) -> Iterator[Pair]:
    if len(group) < 2:
        return
    values: Mapping[int, float | None] = {id(item): attempt_value(item.trajectory, config) for item in group}
    known = [value for value in values.values() if value is not None]
    counts["compared_groups"] += 1
    counts["mixed_groups"] += len(set(known)) > 1
    if "trajectory" in config.pair_kinds:
        yield from trajectory_pairs(group, lambda attempt: values[id(attempt)], config, counts)
    for divergence in divergences(group):
        counts["shared_states"] += 1
        kind = kind_of(divergence)
        pairs: list[Pair] = []
        if kind in config.pair_kinds:
            pairs = step_pairs(divergence, lambda attempt: values[id(attempt)], config, counts, kind)
        if not pairs:
            pairs = [pair for pair in kept_pairs(divergence, counts) if pair.kind in config.pair_kinds]
        if not pairs and q_values is not None and "value" in config.pair_kinds:
            pairs = value_pairs(divergence, q_values, config, counts)
        yield from pairs
    if "fork" in config.pair_kinds:
        yield from rewritten_request_pairs(group, counts)
