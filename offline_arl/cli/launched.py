"""Which of several processes this one is, when `accelerate launch` or `torchrun` started it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from offline_arl.workflows.launch import Launched


def launched() -> Launched:
    """From the variables that launchers set for each process."""
    from offline_arl.workflows.launch import Launched

    try:
        return Launched(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
    except ValueError:
        return Launched()
