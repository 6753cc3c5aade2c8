"""How writes are taken back: by a kept state where an environment has one, else one by one (sagas, Garcia-Molina 1987).

A state that is restored is exact. A compensation is a call of its own, which can fail; then the others run all the
same, and the failure is told.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol

from offline_arl.environments.protocol import Compensating, Environment, Reversible
from offline_arl.errors import UsageError
from offline_arl.trajectories.schema import ToolCall

Record = Callable[..., None]  # (kind, **details): an entry of the audit trail


class Undoing(Protocol):
    """A way to take writes back."""

    def writes(self, call: ToolCall) -> bool:
        """Whether a call may change something, as far as the environment says."""
        ...

    def check(self, tools: Collection[str]) -> None:
        """Raise a `UsageError` if one of these tools writes what cannot be taken back."""
        ...

    def mark(self) -> Any:
        """The state as it is now, to come back to."""
        ...

    def undo(self, mark: Any, counts: Callable[[ToolCall], bool], record: Record) -> list[str]:
        """Come back to a mark.

        Args:
            mark: As `mark` gave it.
            counts: Whether a call changed anything; the others need no way back.
            record: Writes an entry of the audit trail.

        Returns:
            The tools whose calls could not be taken back.
        """
        ...


class Snapshots:
    """Restores kept states."""

    def __init__(self, environment: Reversible) -> None:
        self._environment = environment

    def writes(self, call: ToolCall) -> bool:
        """Any tool may."""
        return True

    def check(self, tools: Collection[str]) -> None:
        """A state brings back whatever was done."""

    def mark(self) -> bytes:
        """The whole state."""
        return self._environment.snapshot()

    def undo(self, mark: bytes, counts: Callable[[ToolCall], bool], record: Record) -> list[str]:
        """Restore it."""
        self._environment.restore(mark)
        return []


class Compensations:
    """Takes calls back, the newest first."""

    def __init__(self, environment: Compensating) -> None:
        self._environment = environment

    def writes(self, call: ToolCall) -> bool:
        """The tools that say so."""
        return call.name in self._environment.write_tools()

    def check(self, tools: Collection[str]) -> None:
        """Every tool that writes needs a way back."""
        for name, can_be_undone in self._environment.write_tools().items():
            if name in tools and not can_be_undone:
                raise UsageError(
                    f"the tool {name!r} writes and cannot be taken back: give it an undo, leave it out of the allowed "
                    "tools, or, if it only reads, out of the writes"
                )

    def mark(self) -> int:
        """How many calls were made."""
        return self._environment.written()

    def undo(self, mark: int, counts: Callable[[ToolCall], bool], record: Record) -> list[str]:
        """Take back the calls since; each is on record before it runs, and so is how it ended."""
        failed = []
        for compensation in self._environment.compensations(mark):
            call = compensation.call
            if not counts(call):
                continue
            record("compensation", tool=call.name, arguments=call.arguments_raw, id=call.id)
            problem = compensation.run()
            if problem is None:
                record("compensated", tool=call.name, id=call.id)
            else:
                failed.append(call.name)
                record("compensation_failed", tool=call.name, arguments=call.arguments_raw, id=call.id, error=problem)
        return failed


def undoing_of(environment: Environment) -> Undoing | None:
    """The way back that an environment has; None: none."""
    if isinstance(environment, Reversible):
        return Snapshots(environment)
    return Compensations(environment) if isinstance(environment, Compensating) else None
