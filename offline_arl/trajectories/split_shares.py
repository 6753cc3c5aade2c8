"""Which split each family goes to: shares over all and within each task type, or cuts in time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

from offline_arl.errors import UsageError


class Shares:
    """Fills splits with families so that each has its share, over all and of each task type.

    A type that has at least as many families as there are splits is in every split. What the rounding of shares
    leaves over goes to the split that is most behind over all.
    """

    def __init__(self, fractions: Mapping[str, float]) -> None:
        self._fractions = fractions
        self._of_type: Counter[tuple[str, str]] = Counter()  # families, by split and task type
        self._of_split: Counter[str] = Counter()
        self._number: Counter[str] = Counter()  # families of each type, assigned or not
        self._total = 0

    def count(self, types: Sequence[str]) -> None:
        """Count a family that is in a split or will be."""
        self._number.update(types)

    def put(self, types: Sequence[str], split: str) -> None:
        """Say that a family is in a split."""
        self._of_type.update((split, task_type) for task_type in types)
        self._of_split[split] += 1
        self._total += 1

    def fill(self, families: Sequence[Sequence[str]]) -> list[str]:
        """Put families into splits, those of the rarest types first.

        Args:
            families: The task types of each; in random order. They have been counted.

        Returns:
            The split of each.
        """
        chosen = [""] * len(families)
        by_type: dict[str, list[int]] = {}
        for place, types in enumerate(families):
            by_type.setdefault(min(types, key=lambda name: (self._number[name], name)), []).append(place)
        for task_type in sorted(by_type, key=lambda name: (self._number[name], name)):
            quotas = _quotas(self._number[task_type], self._fractions)
            for place in by_type[task_type]:
                chosen[place] = self._next(task_type, quotas)
                self.put(families[place], chosen[place])
        return chosen

    def _next(self, task_type: str, quotas: Mapping[str, int]) -> str:
        missing = {split: quota - self._of_type[split, task_type] for split, quota in quotas.items()}
        most = max(missing.values())
        if most > 0:
            return self._most_behind([split for split, number in missing.items() if number == most])
        number, splits = self._number[task_type], list(self._fractions)
        if number < len(splits):
            return self._most_behind(splits)
        open_splits = [name for name in splits if self._of_type[name, task_type] < self._fractions[name] * number]
        return self._most_behind(open_splits or splits)

    def _most_behind(self, splits: Sequence[str]) -> str:
        return max(splits, key=lambda name: self._fractions[name] * (self._total + 1) - self._of_split[name])


def _quotas(number: int, fractions: Mapping[str, float]) -> dict[str, int]:
    """How many of some families each split has at least.

    >>> _quotas(25, {"train": 0.8, "validation": 0.1, "test": 0.1})
    {'train': 20, 'validation': 2, 'test': 2}
    >>> _quotas(3, {"train": 0.8, "validation": 0.1, "test": 0.1})
    {'train': 1, 'validation': 1, 'test': 1}
    """
    if number < len(fractions):
        return dict.fromkeys(fractions, 0)
    quotas = {name: max(1, math.floor(fraction * number + 1e-9)) for name, fraction in fractions.items()}
    while sum(quotas.values()) > number:
        quotas[max(quotas, key=lambda name: quotas[name])] -= 1
    return quotas


def cuts_in_time(times: Sequence[datetime], fractions: Mapping[str, float]) -> list[datetime]:
    """The times at which each split but the first begins.

    Args:
        times: The last moment of each family, ordered. Families of the same moment are not parted.
        fractions: Share of each split in the families.

    Raises:
        UsageError: There are fewer different times than splits.
    """
    distinct = sorted(set(times))
    if len(distinct) < len(fractions):
        raise UsageError(
            f"splits: by time needs at least {len(fractions)} families with different times, and there are "
            f"{len(distinct)}; split by task, or into fewer"
        )
    cuts: list[datetime] = []
    share = 0.0
    for position, fraction in enumerate(list(fractions.values())[:-1]):
        share += fraction
        wanted = times[min(round(share * len(times)), len(times) - 1)]
        # Every split needs a moment of its own, those that follow as well.
        after = distinct.index(cuts[-1]) + 1 if cuts else 1
        latest = len(distinct) - (len(fractions) - 1 - position)
        cuts.append(distinct[min(max(distinct.index(wanted), after), latest)])
    return cuts
