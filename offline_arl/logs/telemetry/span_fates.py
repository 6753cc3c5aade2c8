"""Accounting for the pieces of a group of spans: every piece has one fate in the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from offline_arl.logs.adapter import Assembly
from offline_arl.logs.telemetry.span_calls import kind_of
from offline_arl.logs.telemetry.spans import Span

NO_CONTENT = "holds no messages: the instrumentation did not capture them (it has to be told to)"
REPEATS_SPAN = "repeats the messages of its span"
SURROUNDS = "surrounds model calls and holds no messages of its own"
_REFERENCE = "is read with its session"
_TOOL_RUN = "a tool run: call and result are among the messages of the model calls"
_EMBEDDING = "an embedding, no answer of a language model"


@dataclass
class Fates:
    """What became of the parts of each piece.

    A piece of several spans (an exported batch) counts as used where one of them is; what was refused in it is then
    told in the metadata of a trajectory, so that it is not lost.
    """

    used: set[int] = field(default_factory=set)
    refused: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    set_apart: dict[int, str] = field(default_factory=dict)
    duplicates: dict[int, str] = field(default_factory=dict)

    def refuse(self, pieces: Iterable[int], reason: str) -> None:
        """Note that something in some pieces cannot be read."""
        for piece in pieces:
            self.refused[piece].append(reason)

    def put_apart(self, pieces: Iterable[int], reason: str) -> None:
        """Note that something in some pieces is no part of an interaction."""
        self.set_apart.update(dict.fromkeys(pieces, reason))

    def repeat(self, pieces: Iterable[int], reason: str) -> None:
        """Note that something in some pieces says again what another one says."""
        self.duplicates.update(dict.fromkeys(pieces, reason))

    def account(self, piece: int, span: Span) -> None:
        """Give a piece a fate for a span that nothing has taken."""
        if piece in self.used or piece in self.refused or piece in self.set_apart or piece in self.duplicates:
            return
        if span.is_reference:
            self.duplicates[piece] = _REFERENCE
        elif span.is_log:
            self.set_apart[piece] = f"the log record {span.name!r} is no message of a model call"
        else:
            self.set_apart[piece] = {"tool": _TOOL_RUN, "embedding": _EMBEDDING}.get(kind_of(span), SURROUNDS)

    def settle(self, assembly: Assembly) -> None:
        """Write the fates into an assembly: used, refused, set apart, duplicate, in this order of precedence."""
        settled = set(self.used)
        for piece, reasons in self.refused.items():
            if piece not in settled:
                assembly.refused[piece] = "; ".join(dict.fromkeys(reasons))
        settled |= assembly.refused.keys()
        assembly.set_apart = {piece: reason for piece, reason in self.set_apart.items() if piece not in settled}
        settled |= assembly.set_apart.keys()
        assembly.duplicates = {piece: reason for piece, reason in self.duplicates.items() if piece not in settled}
        hidden = [reason for piece, reasons in self.refused.items() if piece in self.used for reason in reasons]
        if hidden and assembly.trajectories:
            assembly.trajectories[0].metadata["refused_spans"] = hidden
