"""What became of a log record, as the index of a store remembers it.

A record that is a whole interaction is used or refused at once. One that is a piece of something larger is pending
until its group is assembled, and gets a new state whenever the group is assembled again.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

RecordState = Literal["pending", "duplicate", "set_apart", "refused", "used", "deleted"]

# In rising order of what counts for a record whose pieces in several groups had different fates.
STATES: tuple[RecordState, ...] = ("pending", "duplicate", "set_apart", "refused", "used", "deleted")
RANK: dict[str, int] = {state: rank for rank, state in enumerate(STATES)}


class RecordEntry(NamedTuple):
    """State of a record by its rank, and in how many groups it has pieces (2 stands for several)."""

    state: int
    groups: int


USED = RecordEntry(RANK["used"], 0)
DELETED = RecordEntry(RANK["deleted"], 0)
SET_APART = RecordEntry(RANK["set_apart"], 0)
REFUSED = RecordEntry(RANK["refused"], 0)


def after_pieces(known: RecordEntry | None, groups: int) -> RecordEntry:
    """The entry of a record that gets pieces; one that was refused before stays so until it is assembled."""
    return RecordEntry(RANK["pending"] if known is None else known.state, min(groups, 2))


def after_assembly(known: RecordEntry | None, state: RecordState) -> RecordEntry:
    """The entry of a record after one of its groups was assembled."""
    rank = RANK[state]
    if known is None:
        return RecordEntry(rank, 1)
    if known.state == RANK["deleted"]:
        return known
    if known.groups > 1 and known.state != RANK["pending"]:
        rank = max(rank, known.state)
    return RecordEntry(rank, known.groups)
