"""Asking a person before an action: the episode waits, and what the answer cost is on record."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Thread
from typing import NamedTuple, Protocol

from offline_arl.trajectories.schema import ToolCall


class ApprovalRequest(NamedTuple):
    """What an agent wants to do."""

    task_id: str
    call: ToolCall
    reason: str  # why it needs an answer


@dataclass(frozen=True)
class Approval:
    """An answer. `cost` is what asking costs, in units of reward."""

    granted: bool
    by: str  # who or what answered
    seconds: float = 0.0
    cost: float = 0.0
    note: str = ""


class Approver(Protocol):
    """Answers requests; may block."""

    def ask(self, request: ApprovalRequest) -> Approval:
        """The answer."""
        ...


class Standing:
    """A policy instead of a person: always yes, or always no."""

    def __init__(self, *, granted: bool) -> None:
        self._granted = granted

    def ask(self, request: ApprovalRequest) -> Approval:
        """The standing answer."""
        return Approval(self._granted, by="policy")


class Callback:
    """Asks a function.

    Args:
        function: From a request to yes or no; may block.
        by: Who that is, for the record.
        cost: Of one question.
    """

    def __init__(self, function: Callable[[ApprovalRequest], bool], *, by: str = "callback", cost: float = 0.0) -> None:
        self._function = function
        self._by = by
        self._cost = cost

    def ask(self, request: ApprovalRequest) -> Approval:
        """The function's answer; a function that raises has not agreed."""
        started = time.monotonic()
        try:
            granted, note = bool(self._function(request)), ""
        except Exception as error:
            granted, note = False, f"{type(error).__name__}: {error}"
        return Approval(granted, self._by, time.monotonic() - started, self._cost, note)


def console(*, cost: float = 0.0) -> Callback:
    """Asks on the terminal; anything but `y` or `yes` is a no, and so is a terminal that nobody sits at."""

    def ask(request: ApprovalRequest) -> bool:
        # repr: what an agent wrote must not move the cursor or look like this question.
        shown = f"{request.call.name!r} with {request.call.arguments_raw!r}"
        sys.stderr.write(f"{request.task_id!r}: the agent wants to call {shown} ({request.reason}). Allow? [y/N] ")
        sys.stderr.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    return Callback(ask, by="console", cost=cost)


class WithTimeout:
    """Another approver's answer, or a standing one where none comes in time.

    Args:
        approver: Who is asked.
        seconds: How long the episode waits.
        granted: The answer when nobody gave one.
    """

    def __init__(self, approver: Approver, *, seconds: float, granted: bool = False) -> None:
        self._approver = approver
        self._seconds = seconds
        self._granted = granted

    def ask(self, request: ApprovalRequest) -> Approval:
        """The answer; a later one is dropped."""
        answers: list[Approval] = []
        thread = Thread(target=lambda: answers.append(self._approver.ask(request)), daemon=True, name="approval")
        thread.start()
        thread.join(self._seconds)
        if answers:
            return answers[0]
        return Approval(self._granted, by="timeout", seconds=self._seconds)
