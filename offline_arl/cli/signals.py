"""SIGTERM, which is how schedulers and containers end a process, does what Ctrl-C does."""

from __future__ import annotations

import os
import signal
from types import FrameType


class Termination:
    """Turns the first SIGTERM of this process into a `KeyboardInterrupt`; a second one ends it at once.

    Attributes:
        asked: Whether it came.
    """

    def __init__(self) -> None:
        self.asked = False
        self._process = os.getpid()

    def listen(self) -> None:
        """Begin; where SIGTERM is ignored or taken care of already, it stays so."""
        self.asked, self._process = False, os.getpid()
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._interrupt)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if os.getpid() != self._process:  # a forked child, which this is not for
            os.kill(os.getpid(), signal.SIGTERM)
            return
        self.asked = True
        raise KeyboardInterrupt
