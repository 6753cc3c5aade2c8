"""What a command of the command line answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """Exit code and what was written."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """The one object on stdout; fails where anything else stands there."""
        assert self.stdout.count("\n") == 1, self.stdout
        return json.loads(self.stdout)


Command = Callable[..., Answer]
