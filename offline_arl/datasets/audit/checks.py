"""Faults of single rows, and of rows that say the same or the opposite."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from offline_arl.datasets.audit.report import AuditConfig, Fault
from offline_arl.datasets.audit.sides import SideView, digest, similarity, views
from offline_arl.datasets.pairs.folder import PreferenceRow
from offline_arl.datasets.pairs.rows import PairRow

# Kinds whose sides are meant to differ in little.
_MEANT_TO_BE_CLOSE = ("negative", "correction")


class RowChecks:
    """Looks at rows one after the other; `found` has the rows of each fault.

    Attributes:
        found: Positions of rows by fault.
        notes: What to say about a row.
    """

    def __init__(self, config: AuditConfig) -> None:
        self._config = config
        self.found: dict[Fault, list[int]] = defaultdict(list)
        self.notes: dict[int, str] = {}
        self._order: dict[tuple[bytes, ...], list[tuple[int, tuple[bytes, ...], bool]]] = defaultdict(list)
        self.prompts: dict[bytes, list[int]] = defaultdict(list)

    def look(self, position: int, row: PreferenceRow) -> list[SideView]:
        """Check a row by itself and remember what others have to be compared with; returns its sides."""
        sides = views(row)
        for prompt in {side.prompt for side in sides}:
            self.prompts[prompt].append(position)
        if any(len(side.action_ids) == 0 for side in sides):
            self._mark(position, "empty_side")
            return sides
        if isinstance(row, PairRow):
            self._look_at_pair(position, row, *sides)
            key = tuple(sorted(digest(side.prompt, side.actions) for side in sides))
            order = tuple(digest(side.prompt, side.actions) for side in sides)
            self._order[key].append((position, order, True))
        else:
            (side,) = sides
            key = (digest(side.prompt, side.actions),)
            self._order[key].append((position, key, row.label))
        return sides

    def compare(self) -> None:
        """Find the rows that repeat or contradict one another, after all were looked at."""
        for rows in self._order.values():
            said = {(order, label) for _, order, label in rows}
            if len(said) > 1:
                for position, _, _ in rows:
                    self._mark(position, "contradiction", f"{len(rows)} rows about the same two sides disagree")
                continue
            for position, _, _ in rows[1:]:
                self._mark(position, "duplicate", f"says the same as row {rows[0][0]}")

    def _look_at_pair(self, position: int, row: PairRow, chosen: SideView, rejected: SideView) -> None:
        if chosen.actions == rejected.actions:
            self._mark(position, "equal_sides")
        elif row.kind in _MEANT_TO_BE_CLOSE:
            pass
        elif chosen.plain() == rejected.plain():
            self._mark(position, "cosmetic_difference")
        else:
            self._look_for_likeness(position, chosen, rejected)
        if row.margin is not None:
            if row.margin < 0:
                self._mark(position, "flipped", f"the rejected side scored {-row.margin:g} more ({row.scorer})")
            elif row.margin == 0:
                self._mark(position, "tie", f"both sides scored {row.chosen_score} ({row.scorer})")

    def _look_for_likeness(self, position: int, chosen: SideView, rejected: SideView) -> None:
        lengths = len(chosen.action_ids), len(rejected.action_ids)
        if max(lengths) < self._config.near_equal_tokens or min(lengths) < self._config.near_equal * max(lengths):
            return  # too short to tell, or not the same amount of text
        alike = similarity(chosen.action_ids, rejected.action_ids, at_least=self._config.near_equal)
        if alike >= self._config.near_equal:
            self._mark(position, "near_equal_sides", f"{alike:.0%} of the tokens are the same")

    def _mark(self, position: int, fault: Fault, note: str = "") -> None:
        self.found[fault].append(position)
        if note:
            self.notes[position] = note


class Leaks:
    """Rows whose prompt, task or trajectory another split has too.

    Args:
        others: Rows of the other split, another dataset.
    """

    def __init__(self, others: Iterable[PreferenceRow]) -> None:
        self._prompts: set[bytes] = set()
        self._tasks: set[str] = set()
        self._trajectories: set[str] = set()
        for row in others:
            self._prompts.update(side.prompt for side in views(row))
            self._trajectories.update(row.trajectory_ids)
            if row.task_id is not None:
                self._tasks.add(row.task_id)

    def reason(self, row: PreferenceRow, sides: Sequence[SideView]) -> str | None:
        """What of the row the other dataset has, or None."""
        if any(side.prompt in self._prompts for side in sides):
            return "the other dataset has the same prompt"
        if row.task_id is not None and row.task_id in self._tasks:
            return f"the other dataset has the task {row.task_id}"
        if not self._trajectories.isdisjoint(row.trajectory_ids):
            return "the other dataset has the trajectory"
        return None


def split_leaks(prompts: dict[bytes, list[int]], splits: Sequence[str | None]) -> dict[int, str]:
    """Rows of a dataset with several splits that leak: both sides of different splits, or a prompt in two splits.

    Of a prompt in several splits, the rows outside of its most frequent split leak into it.
    """
    found = {
        position: f"its sides are of different splits ({split})"
        for position, split in enumerate(splits)
        if split is not None and "+" in split
    }
    for rows in prompts.values():
        names = {splits[row] for row in rows} - {None}
        if len(names) < 2:
            continue
        counts = {name: sum(splits[row] == name for row in rows) for name in names}
        home = max(sorted(counts, key=str), key=lambda name: counts[name])
        for row in rows:
            if splits[row] not in (None, home):
                found.setdefault(row, f"the split {home} has the same prompt")
    return found
