"""What the block `safety` of a stage does to the environment that the stage acts in."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from offline_arl.environments.audit import AuditTrail
from offline_arl.environments.protocol import EnvironmentFamily
from offline_arl.environments.safety_config import GuardedFamily, SafetyConfig


@contextmanager
def bounded(
    family: EnvironmentFamily, safety: SafetyConfig | None, folder: Path, *, process: int = 0
) -> Iterator[tuple[EnvironmentFamily, AuditTrail | None]]:
    """The family within the bounds, and the audit trail that is written to the folder meanwhile.

    Args:
        family: The environments.
        safety: The bounds; None: none, and no trail.
        folder: Where the trail goes; one that is there is verified and goes on.
        process: Of several that act, which keep a trail each.

    Raises:
        UsageError: The environment's writes could not be undone.
        DataError: The trail that is there is broken, or cannot be written.
    """
    if safety is None:
        yield family, None
        return
    if safety.audit is None:
        yield GuardedFamily(family, safety), None
        return
    with AuditTrail(folder / trail_name(safety.audit, process)) as trail:
        yield GuardedFamily(family, safety, trail), trail


def trail_name(name: str, process: int) -> str:
    """The file of a process's trail: that of the first has the name as it is."""
    path = Path(name)
    return name if process == 0 else f"{path.stem}.{process}{path.suffix}"


def keep_trails(name: str, source: Path, folder: Path) -> None:
    """Move the trails of all processes from where an interrupted stage goes on to where results are."""
    path = Path(name)
    others = re.compile(rf"{re.escape(path.stem)}\.\d+{re.escape(path.suffix)}")
    for trail in sorted(source.iterdir()):
        if trail.name == name or others.fullmatch(trail.name):
            shutil.move(trail, folder / trail.name)


def trail_notes(trail: AuditTrail | None) -> list[str]:
    """A line for the summary. A trail cannot tell that its end was cut off; its last hash, kept elsewhere, can."""
    if trail is None:
        return []
    return [f"audit trail {trail.path.name}: {trail.entries} entries, last hash {trail.last_hash}"]
