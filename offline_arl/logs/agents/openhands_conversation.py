"""Events of OpenHands on their way to conversations; a condensation of the history starts a conversation anew."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

import msgspec

from offline_arl.logs.adapter import Fragment, Group, RawRecord
from offline_arl.trajectories.schema import (
    Branch,
    Context,
    Message,
    Producer,
    Source,
    ToolCall,
    Trajectory,
    text_message,
)

_EVENTS_FOLDER = "events"


@dataclass(frozen=True)
class Entry:
    """A message and the events that it was made of."""

    message: Message
    events: frozenset[str]


@dataclass
class Conversation:
    """The entries of one conversation as the model saw it, and those that a condensation closed before it."""

    entries: list[Entry] = field(default_factory=list)
    closed: list[list[Entry]] = field(default_factory=list)
    tools: str | None = None

    def add(self, message: Message, event: str) -> None:
        """Add the message of an event."""
        self.entries.append(Entry(message, frozenset({event})))

    def join(self, response: str, event: str, call: ToolCall | None = None) -> bool:
        """Add an event, and a further call, to the answer of the response that it is of; False where there is none."""
        for index in range(len(self.entries) - 1, -1, -1):
            entry = self.entries[index]
            if entry.message.role == "assistant" and entry.message.id == response:
                message = entry.message
                if call is not None:
                    message = msgspec.structs.replace(message, tool_calls=[*message.tool_calls, call])
                self.entries[index] = Entry(message, entry.events | {event})
                return True
        return False

    def condense(self, forgotten: Collection[str], summary: str | None, offset: int | None, event: str) -> None:
        """Go on without the forgotten events and with a summary in their place."""
        lost = frozenset(forgotten)
        kept = [Entry(as_copy(entry.message), entry.events) for entry in self.entries if not entry.events <= lost]
        if summary is not None:
            place = len(kept) if offset is None else min(max(offset, 0), len(kept))
            told = text_message("user", summary, kind="summary")
            kept.insert(place, Entry(told, frozenset({f"{event}-summary"})))
        self.closed.append(self.entries)
        self.entries = kept

    @property
    def segments(self) -> list[list[Entry]]:
        """All conversations in order of time."""
        return [segment for segment in (*self.closed, self.entries) if segment]


def as_copy(message: Message) -> Message:
    """The message as history that was repeated: it was an answer in another conversation."""
    if message.role != "assistant":
        return message
    return msgspec.structs.replace(message, producer=Producer("copy", message.producer.name))


def trajectories_of(conversation: Conversation, group: Group, source: Source, prefix: str = "") -> list[Trajectory]:
    """One trajectory for each conversation, linked to the one before it; without what the log says of them.

    Args:
        prefix: Of the names from which ids are made, to tell forks of one log apart.
    """
    found: list[Trajectory] = []
    previous: list[Entry] = []
    for number, segment in enumerate(conversation.segments):
        shared = common_entries(previous, segment)
        made = Trajectory(
            trajectory_id=group.trajectory_id(f"{prefix}{number}"),
            messages=[entry.message for entry in segment],
            source=source,
            contexts=[] if conversation.tools is None else [Context(start=0, tools=conversation.tools)],
        )
        if found:
            found[-1] = msgspec.structs.replace(found[-1], stop_reason="compaction")
            made = msgspec.structs.replace(
                made,
                parent_trajectory_id=found[-1].trajectory_id,
                branch=Branch(found[-1].trajectory_id, shared) if shared else None,
                metadata={"relation": "compaction"},
            )
        found.append(made)
        previous = segment
    return found


def common_entries(left: Sequence[Entry], right: Sequence[Entry]) -> int:
    """How many entries two conversations share at their start."""
    count = 0
    for one, other in zip(left, right, strict=False):
        if one.events != other.events:
            break
        count += 1
    return count


def part_of_folder(record: RawRecord) -> Fragment:
    """An event that has a file of its own, as part of the folder of its conversation."""
    is_deep = PurePath(record.file).parent.name == _EVENTS_FOLDER
    return Fragment("", record.raw, folder_levels=2 if is_deep else 1)
