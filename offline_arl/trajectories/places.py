"""Where something lies that belongs to something else: its path, and its path as seen from that.

What was moved or renamed together is found by the second, what was moved away by the first.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def seen_from(folder: str | Path, path: str | Path) -> str:
    """The relative path from a folder to another one.

    >>> seen_from("runs/a/stages/values", "runs/a/stages/bc/policy")
    '../bc/policy'
    """
    return os.path.relpath(Path(path).absolute(), Path(folder).absolute())


def located(folder: str | Path, path: str | Path, relative: str | None) -> Path | None:
    """Where something lies; None where it is gone.

    Args:
        folder: What remembers the place.
        path: The path when that was made.
        relative: The same path as seen from `folder`; None: not known.
    """
    beside = None if relative is None else Path(os.path.normpath(Path(folder).absolute() / relative))
    return next((place for place in (beside, Path(path)) if place is not None and place.exists()), None)


def object_in(path: Path) -> dict[str, Any]:
    """The JSON object in a file; an empty one where there is no such file, or something else in it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
