"""The errors that offline_arl raises on purpose.

Every message is one line that names the file, line or key at fault and says what to do. The command line
prints the message alone and exits with `exit_code`.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence


class OfflineArlError(Exception):
    """Base class. `exit_code` is the process exit status the command line uses."""

    exit_code = 1


class DataError(OfflineArlError):
    """Input data is unreadable, empty or breaks a promise (exit code 1)."""


class UsageError(OfflineArlError):
    """A command, configuration key or argument is wrong (exit code 2)."""

    exit_code = 2


class MissingDependencyError(UsageError):
    """An optional package is needed and not installed; the message names the pip command."""


class TemplateError(UsageError):
    """A chat template cannot be used for training (no assistant turn, rewritten turns in online training)."""


class GateError(OfflineArlError):
    """A safety or readiness gate refuses to go on; the message says what to do."""


def reason_of(error: BaseException) -> str:
    """What an error says, in one line: of the system's errors the words alone, as messages name the file themselves.

    >>> reason_of(FileNotFoundError(2, "No such file or directory", "x.json"))
    'No such file or directory'
    """
    words = error.strerror if isinstance(error, OSError) else None
    return " ".join((words or str(error)).split())


def either(names: Sequence[str]) -> str:
    """Names of which one will do.

    >>> either(["bc", "filtered_bc", "return_conditioned"])
    'bc, filtered_bc or return_conditioned'
    """
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def alternatives(word: str, known: Sequence[str], *, prefix: str = "") -> str:
    """What the end of a message about an unknown name says: the closest names, or all where none is close.

    Args:
        word: The unknown name.
        known: The names that there are.
        prefix: What has to stand before one of the closest names where it is written.

    >>> alternatives("refund_ordr", ["get_order", "refund_order"])
    'did you mean refund_order or get_order?'
    >>> alternatives("level", ["floor", "levels"], prefix="curriculum.")
    'did you mean curriculum.levels?'
    >>> alternatives("x", ["get_order", "refund_order"])
    'known: get_order, refund_order'
    """
    if not known:
        return "there are none"
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.6)
    if not close:
        return f"known: {', '.join(known)}"
    return f"did you mean {' or '.join(f'{prefix}{name}' for name in close)}?"
