"""Looking after environments: what there is, whether judges judge rightly, whether audit trails are whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from offline_arl import environments
from offline_arl.environments.audit import verify
from offline_arl.environments.checking import CheckReport, check

__all__ = ["CheckReport", "check_environment", "verify_audit_trail"]


def check_environment(name: str, *, tasks: int = 100, seed: int = 0) -> CheckReport:
    """Play the examples of success and failure of an environment's tasks of all splits (see `environments.checking`).

    Args:
        name: Of the environment.
        tasks: How many of each split.
        seed: Of the tasks.

    Raises:
        UsageError: There is no such environment, or it has no examples.
    """
    family = environments.load(name)
    return check(
        family, [task for split in ("train", "validation", "test") for task in family.tasks(split, tasks, seed=seed)]
    )


def verify_audit_trail(path: str | Path, *, last_hash: str | None = None) -> dict[str, Any]:
    """Check the chain of an audit trail.

    Returns:
        `entries` and `last_hash`.

    Raises:
        DataError: An entry was changed, removed, added or moved; the message names the line.
    """
    found = verify(path, last_hash=last_hash)
    return {"entries": found.entries, "last_hash": found.last_hash}
