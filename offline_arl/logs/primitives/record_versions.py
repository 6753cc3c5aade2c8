"""Several versions of one record, of which the latest holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from offline_arl.logs.adapter import Assembly, Feedback


def feedback_assembly(
    records: Sequence[dict[str, Any]],
    read: Callable[[dict[str, Any]], Sequence[Feedback]],
    changed_at: Callable[[dict[str, Any]], str | None],
    refusal: str,
) -> Assembly:
    """The feedback of the versions of one judgement.

    Args:
        records: The versions, one a piece.
        read: Reads one; nothing where it names nothing that it judges.
        changed_at: When a version was made; of equal ones the last holds.
        refusal: The reason of a refusal where `read` gives nothing.
    """
    latest = max(range(len(records)), key=lambda index: (changed_at(records[index]) or "", index))
    feedback = read(records[latest])
    assembly = Assembly(feedback=list(feedback))
    if not feedback:
        assembly.refused[latest] = refusal
    for index in range(len(records)):
        if index != latest:
            assembly.duplicates[index] = "another version of the same judgement holds"
    return assembly
