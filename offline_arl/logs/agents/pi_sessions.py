"""Sessions of Pi, and Hugging Face's session traces (STS), which have the same envelopes.

Both are JSON Lines of a header and messages. Pi's records name their parents, so a session is a tree (see
`session_tree`); what follows a compaction begins with its summary and the messages that it kept. The messages of
session traces are those of OpenAI chat in camel case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from offline_arl.logs.adapter import Assembly, Fragment, Group, RawRecord, RecordRefusedError, RecordSetApartError
from offline_arl.logs.agents.pi_messages import convert_entry
from offline_arl.logs.agents.session_tree import Entry, Node, Path, abandoned, below, grow, paths
from offline_arl.logs.primitives.copies import with_copied_start
from offline_arl.logs.primitives.values import as_object, as_text, decode_object, json_type
from offline_arl.logs.providers.anthropic_messages import name_results
from offline_arl.trajectories.schema import Branch, Message, Outcome, Producer, Score, Trajectory

_SPEAKING = frozenset({"message", "custom_message", "compaction", "branch_summary"})


class PiSessionsAdapter:
    """Assembles sessions, each from its file."""

    name = "pi_sessions"
    title = "Pi sessions, and session traces of the Hugging Face Hub (STS)"
    keeps = "branches, compactions with what they kept, usage and cost, stop reasons, commands of the user"
    lacks = (
        "system prompt, tool schemas and rewards are not logged; a session forked to another file names its path only"
    )

    def recognizes(self, record: Any) -> bool:
        """Whether the record is the header of a session."""
        if not isinstance(record, dict) or record.get("type") != "session" or not isinstance(record.get("id"), str):
            return False
        return isinstance(record.get("harness"), str) or ("timestamp" in record and "cwd" in record)

    def fragments(self, record: RawRecord) -> list[Fragment]:
        """One fragment, for the file."""
        fields = decode_object(record.raw)
        kind = fields.get("type")
        if not isinstance(kind, str):
            raise RecordRefusedError(f"type: expected a string, got {json_type(kind)}")
        if kind in _SPEAKING:
            convert_entry(fields)
        elif kind != "session" and "id" not in fields:
            raise RecordSetApartError(f"a note of type {kind!r}")
        return [Fragment(None, record.raw)]

    def assemble(self, group: Group) -> Assembly:
        """The trajectories of a session."""
        assembly = Assembly()
        header: dict[str, Any] = {}
        entries: list[Entry] = []
        seen: set[str] = set()
        for index, piece in enumerate(group.pieces):
            record = decode_object(piece.payload)
            if record.get("type") == "session":
                header = header or record
                continue
            entry = _entry(index, piece.label, record)
            if entry.uuid is not None and entry.uuid in seen:
                assembly.duplicates[index] = f"the id {entry.uuid} was recorded before"
                continue
            if entry.uuid is not None:
                seen.add(entry.uuid)
            if not entry.messages:
                assembly.set_apart[index] = f"a note of type {record['type']!r}"
            entries.append(entry)
        roots = grow(entries)
        answered = [root for root in roots if root.first_answer is not None]
        for root in roots:
            if root.first_answer is None:
                _set_apart(assembly, list(below(root)), "the model never answered")
        _set_apart(assembly, list(abandoned(answered)), "led to no answer of the model")
        assembly.trajectories = _Session(group, header, entries).trajectories(answered)
        return assembly


def _entry(index: int, label: str, record: dict[str, Any]) -> Entry:
    messages = convert_entry(record) if record["type"] in _SPEAKING else []
    if record["type"] == "compaction":
        kind: Any = "summary"
    else:
        kind = "other" if not messages else "assistant" if messages[0].role == "assistant" else "user"
    return Entry(index, label, kind, record, as_text(record.get("id")), as_text(record.get("parentId")), messages)


def _set_apart(assembly: Assembly, nodes: Sequence[Node], reason: str) -> None:
    for node in nodes:
        assembly.set_apart.update((entry.index, reason) for entry in node.entries)


class _Session:
    """The trajectories of one session, and how they are linked."""

    def __init__(self, group: Group, header: dict[str, Any], entries: Sequence[Entry]) -> None:
        self._group, self._header = group, header
        self._entries = {entry.uuid: entry for entry in entries if entry.uuid is not None}
        names = [as_text(entry.record.get("name")) for entry in entries if entry.record.get("type") == "session_info"]
        self._title = next((name for name in reversed(names) if name), as_text(header.get("name")))
        self._holder: dict[str, str] = {}  # name of a record to the id of the first trajectory that has it

    def trajectories(self, roots: Sequence[Node]) -> list[Trajectory]:
        """The trajectories of the trees, in order."""
        found = []
        for number, root in enumerate(roots):
            ids: dict[int, str] = {}
            for path in paths(root):
                is_first = number == 0 and path.origin is None
                ids[id(path)] = self._group.trajectory_id(0 if is_first else path.nodes[path.shared].uuid)
                found.append(self._trajectory(path, ids))
                for node in path.nodes[path.shared :]:
                    self._holder.setdefault(node.uuid, ids[id(path)])
        return found

    def _kept(self, root: Node) -> tuple[list[Message], str | None]:
        """What a compaction kept of the messages before it, as copies, and the trajectory that it compacted."""
        record = root.entries[0].record
        first, entry = as_text(record.get("firstKeptEntryId")), self._entries.get(as_text(record.get("parentId")) or "")
        kept: list[Message] = []
        holder: str | None = None
        seen: set[str] = set()
        is_done = first is None
        while entry is not None and entry.uuid is not None and entry.uuid not in seen:
            seen.add(entry.uuid)
            holder = holder or self._holder.get(entry.uuid)
            if not is_done:
                kept[:0] = [msgspec.structs.replace(message, producer=Producer("copy")) for message in entry.messages]
                is_done = entry.uuid == first
            if is_done and holder is not None:
                return kept, holder
            entry = self._entries.get(entry.parent or "")
        return (kept if is_done else []), holder

    def _trajectory(self, path: Path, ids: dict[int, str]) -> Trajectory:
        header, nodes = self._header, path.nodes
        entries = [entry for node in nodes for entry in node.entries]
        shared = sum(len(node.messages) for node in nodes[: path.shared])
        messages = with_copied_start((message for node in nodes for message in node.messages), shared)
        known = ("type", "id", "timestamp", "name")
        metadata = {key: value for key, value in header.items() if key not in known and value is not None}
        parent_id: str | None = None
        if nodes[0].entries[0].kind == "summary":
            kept, parent_id = self._kept(nodes[0])
            messages[1:1] = kept
            shared += len(kept) if path.shared else 0
            metadata["relation"] = "compaction"
        if self._title is not None:
            metadata["title"] = self._title
        messages = name_results(messages)
        last = next((m for m in reversed(messages) if m.role == "assistant"), messages[-1])
        stop_reason = as_text(last.metadata.get("stopReason"))
        times = [message.timestamp for message in messages if message.timestamp is not None]
        origin = path.origin
        failed = stop_reason == "error" and last is messages[-1]
        return Trajectory(
            trajectory_id=ids[id(path)],
            messages=messages,
            source=self._group.source(sorted(entry.index for entry in entries)),
            episode_id=as_text(header.get("id")),
            parent_trajectory_id=parent_id if origin is None else None,
            branch=None if origin is None else Branch(ids[id(origin)], shared),
            agent=as_text(header.get("harness")) or "pi",
            model=next((m.producer.name for m in messages if m.producer.kind == "model" and m.producer.name), None),
            started_at=times[0] if times else as_text(header.get("timestamp")),
            ended_at=times[-1] if times else None,
            truncated=stop_reason == "length",
            stop_reason=stop_reason,
            outcome=Outcome("infrastructure_error") if failed else Outcome(),
            metadata=metadata,
            session_id=as_text(header.get("id")),
            scores=_interruptions(messages),
        )


def _interruptions(messages: Sequence[Message]) -> list[Score]:
    return [
        Score(
            "user_interruption",
            value=1.0,
            scorer="user",
            scorer_kind="human",
            direction="lower_is_better",
            message_index=index,
            timestamp=message.timestamp,
        )
        for index, message in enumerate(messages)
        if message.role == "assistant" and as_object(message.metadata).get("stopReason") == "aborted"
    ]
