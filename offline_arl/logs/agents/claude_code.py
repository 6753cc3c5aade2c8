"""Session logs of Claude Code: JSON Lines under `~/.claude/projects`, one record a message or content block.

A session is a tree (see `session_tree`). Every conversation in it becomes a trajectory: forks are branches of
one another, what follows a compaction is linked to what it continues, and sub-agents to their parents. Tool
schemas and the system prompt are not in these logs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from offline_arl.logs.adapter import Assembly, Fragment, Group, RawRecord, RecordRefusedError, RecordSetApartError
from offline_arl.logs.agents.claude_code_records import (
    API_ERROR,
    INTERRUPTED,
    SESSION_KEYS,
    UNNAMED_AGENT,
    USER_REJECTED,
    read_entry,
    turn_messages,
)
from offline_arl.logs.agents.session_tree import Entry, Node, Path, abandoned, below, grow, paths
from offline_arl.logs.primitives.copies import as_copy
from offline_arl.logs.primitives.values import as_object, as_text, decode_object, json_type
from offline_arl.trajectories.schema import Branch, Message, Outcome, Producer, Score, Trajectory

MAIN_THREAD = ""
_MESSAGE_TYPES = frozenset({"user", "assistant"})
# Of records that only link others, no more than this is kept: some hold copies of whole messages.
_LINK_KEYS = ("type", "subtype", "uuid", "parentUuid", "logicalParentUuid", "sessionId", "isSidechain", "agentId")
_TITLE_KEYS = ("customTitle", "aiTitle", "title")
_TOOLS_OF_AGENTS = frozenset({"Task", "Agent"})


class ClaudeCodeAdapter:
    """Assembles sessions by their id."""

    name = "claude_code"
    title = "Claude Code sessions"
    keeps = "forks, sub-agents, compactions, rejections and interruptions by the user, structured tool results"
    lacks = "tool schemas and system prompt are not logged, nor is a reward; a branch made by /branch names no parent"

    def recognizes(self, record: Any) -> bool:
        """Whether the record has the envelope of a session's messages, or is one of its notes."""
        if not isinstance(record, dict):
            return False
        kind = record.get("type")
        if not isinstance(kind, str):
            return False
        if kind in _MESSAGE_TYPES or kind == "system":
            return "uuid" in record and "parentUuid" in record and ("message" in record or "subtype" in record)
        if kind == "summary":
            return "leafUuid" in record
        return kind == "file-history-snapshot" and "messageId" in record

    def fragments(self, record: RawRecord) -> list[Fragment]:
        """One fragment, for the session; notes that belong to no session are set apart."""
        fields = decode_object(record.raw)
        kind, session = fields.get("type"), as_text(fields.get("sessionId"))
        if not isinstance(kind, str):
            raise RecordRefusedError(f"type: expected a string, got {json_type(kind)}")
        is_message = kind in _MESSAGE_TYPES or (kind == "summary" and "message" in fields)
        if is_message:
            return [Fragment(session, record.raw)]
        if session is None or ("uuid" not in fields and not any(key in fields for key in _TITLE_KEYS)):
            raise RecordSetApartError(_note(fields))
        kept = fields if kind == "system" else {key: fields[key] for key in _LINK_KEYS if key in fields}
        kept.update({key: fields[key] for key in _TITLE_KEYS if key in fields})
        return [Fragment(session, msgspec.json.encode(kept))]

    def assemble(self, group: Group) -> Assembly:
        """The trajectories of a session."""
        assembly = Assembly()
        entries = _entries(group, assembly)
        session = _Session(group, assembly, _title(entries))
        threads: dict[str, list[Entry]] = defaultdict(list)
        for entry in entries:
            threads[entry.thread].append(entry)
        trees = {}
        for thread, members in sorted(threads.items()):
            elsewhere = {e.uuid for other, rest in threads.items() if other != thread for e in rest if e.uuid}
            trees[thread] = grow(members, elsewhere, turn_messages)
        main_ids = _answer_ids(trees.get(MAIN_THREAD, ()))
        for thread, roots in trees.items():
            session.add_thread(thread, roots, main_ids if thread != MAIN_THREAD else frozenset())
        session.link_continuations()
        session.link_agents()
        assembly.trajectories = session.trajectories()
        return assembly


@dataclass(eq=False)
class _Draft:
    """A trajectory in the making."""

    name: str | int
    thread: str
    path: Path
    messages: list[Message]
    starts: list[int]  # message index at which each node of the path starts
    origin: _Draft | None = None  # it forks from this one
    parent: _Draft | None = None  # it continues this one, or is a sub-agent of it
    metadata: dict[str, Any] = field(default_factory=dict)
    stop_reason: str | None = None


class _Session:
    """The trajectories of one session, and how they are linked."""

    def __init__(self, group: Group, assembly: Assembly, title: str | None) -> None:
        self._group = group
        self._assembly = assembly
        self._title = title
        self._drafts: list[_Draft] = []
        self._owner: dict[int, _Draft] = {}  # id of a node to the first trajectory that holds it

    def add_thread(self, thread: str, roots: Sequence[Node], main_ids: frozenset[str]) -> None:
        """Add the conversations of a thread; what the main thread has said already is a copy in it."""
        answered = [root for root in roots if root.first_answer is not None]
        for root in roots:
            if root.first_answer is None:
                self._set_apart(below(root), "the model never answered")
        self._set_apart(abandoned(answered), "led to no answer of the model")
        for number, root in enumerate(answered):
            drafts: dict[int, _Draft] = {}
            for path in paths(root):
                is_first = path.origin is None
                name: str | int = path.nodes[path.shared].uuid
                if is_first and number == 0:
                    name = 0 if thread == MAIN_THREAD else f"agent {thread}" if thread != UNNAMED_AGENT else name
                draft = self._draft(name, thread, path, main_ids)
                draft.origin = None if path.origin is None else drafts[id(path.origin)]
                drafts[id(path)] = draft

    def link_continuations(self) -> None:
        """Link what begins after a compaction to the conversation that was compacted."""
        for position, draft in enumerate(self._drafts):
            root = draft.path.nodes[0]
            if draft.origin is not None or not root.is_continuation:
                continue
            boundary = root.boundary.record if root.boundary is not None else {}
            before = self._holder(as_text(boundary.get("logicalParentUuid")))
            if before is None:
                earlier = [other for other in self._drafts[:position] if other.thread == draft.thread]
                before = earlier[-1] if earlier else None
            draft.metadata["relation"] = "compaction"
            draft.metadata["compaction"] = boundary.get("compactMetadata") or {}
            draft.parent = before
            if before is not None:
                before.stop_reason = "compaction"

    def link_agents(self) -> None:
        """Link sub-agents to the trajectory whose call started them."""
        calls = {draft.thread: draft for draft in reversed(self._drafts) if draft.name == 0}
        for draft in self._drafts:
            if draft.thread == MAIN_THREAD or draft.origin is not None or draft.parent is not None:
                continue
            draft.metadata["relation"] = "sub_agent"
            found = self._start_of(draft)
            if found is None:
                draft.parent = calls.get(MAIN_THREAD)
                continue
            draft.parent, call_id, kind = found
            draft.metadata["tool_call_id"] = call_id
            if kind is not None:
                draft.metadata["subagent_type"] = kind

    def trajectories(self) -> list[Trajectory]:
        """The finished trajectories, in order."""
        return [self._trajectory(draft) for draft in self._drafts]

    def _draft(self, name: str | int, thread: str, path: Path, main_ids: frozenset[str]) -> _Draft:
        messages: list[Message] = []
        starts = []
        copied = max((i for i, node in enumerate(path.nodes) if _answer_id(node) in main_ids), default=-1)
        for index, node in enumerate(path.nodes):
            starts.append(len(messages))
            found = node.messages
            if index <= copied:
                found = [msgspec.structs.replace(message, producer=Producer("copy")) for message in found]
            elif thread != MAIN_THREAD and index == copied + 1 and found[0].producer.kind == "human":
                # The task of a sub-agent was written by the agent that started it.
                found = [msgspec.structs.replace(m, producer=Producer("script", "parent_agent")) for m in found]
            elif index < path.shared:
                found = [as_copy(message) for message in found]
            messages.extend(found)
        draft = _Draft(name, thread, path, _with_names(messages), starts)
        self._drafts.append(draft)
        for node in path.nodes[path.shared :]:
            self._owner[id(node)] = draft
        return draft

    def _holder(self, uuid: str | None) -> _Draft | None:
        if uuid is None:
            return None
        for draft in self._drafts:
            for node in draft.path.nodes[draft.path.shared :]:
                if any(entry.uuid == uuid for entry in node.entries):
                    return draft
        return None

    def _start_of(self, draft: _Draft) -> tuple[_Draft, str | None, str | None] | None:
        """The trajectory, call and kind of agent that started a sub-agent, from the call's result or its prompt."""
        prompt = draft.messages[0].text
        by_prompt = None
        for other in self._drafts:
            if other is draft or other.thread == draft.thread != UNNAMED_AGENT:
                continue
            kinds: dict[str | None, str | None] = {}
            for message in other.messages:
                for call in message.tool_calls:
                    if call.name not in _TOOLS_OF_AGENTS or call.arguments is None:
                        continue
                    kinds[call.id] = as_text(call.arguments.get("subagent_type"))
                    if by_prompt is None and prompt and call.arguments.get("prompt") == prompt:
                        by_prompt = (other, call.id, kinds[call.id])
                result = as_object(message.metadata.get("toolUseResult"))
                if message.role == "tool" and result.get("agentId") == draft.thread:
                    return other, message.tool_call_id, kinds.get(message.tool_call_id)
        return by_prompt

    def _trajectory(self, draft: _Draft) -> Trajectory:
        group, messages, nodes = self._group, draft.messages, draft.path.nodes
        entries = [entry for node in nodes for entry in node.entries]
        first, metadata = entries[0].record, dict(draft.metadata)
        for key in SESSION_KEYS:
            value = next((entry.record[key] for entry in entries if entry.record.get(key) is not None), None)
            if value is not None:
                metadata[key] = value
        if self._title is not None:
            metadata["title"] = self._title
        if draft.thread != MAIN_THREAD:
            metadata["agent_id"] = draft.thread
        models = [message.producer.name for message in messages if message.producer.kind == "model"]
        times = [message.timestamp for message in messages if message.timestamp is not None]
        last = messages[-1]
        failed = last.error is not None and last.error.type == API_ERROR
        reasons = [as_text(message.metadata.get("stop_reason")) for message in messages if message.role == "assistant"]
        stop_reason = draft.stop_reason or (API_ERROR if failed else reasons[-1] if reasons else None)
        origin = draft.origin
        return Trajectory(
            trajectory_id=group.trajectory_id(draft.name),
            messages=messages,
            source=group.source(sorted(entry.index for entry in entries)),
            episode_id=group.key,
            parent_trajectory_id=None if draft.parent is None else group.trajectory_id(draft.parent.name),
            branch=None
            if origin is None
            else Branch(group.trajectory_id(origin.name), draft.starts[draft.path.shared]),
            agent=metadata.get("subagent_type", "claude_code"),
            model=next((model for model in models if model is not None), None),
            started_at=times[0] if times else None,
            ended_at=times[-1] if times else None,
            truncated=stop_reason == "max_tokens",
            stop_reason=stop_reason,
            outcome=Outcome("infrastructure_error") if failed else Outcome(),
            metadata=metadata,
            session_id=as_text(first.get("sessionId")),
            scores=_judgements(messages),
        )

    def _set_apart(self, nodes: Iterable[Node], reason: str) -> None:
        for node in nodes:
            self._assembly.set_apart.update((entry.index, reason) for entry in node.entries)


def _entries(group: Group, assembly: Assembly) -> list[Entry]:
    """The readable records, each once; all others get their fate."""
    entries = []
    seen: set[str] = set()
    for index, piece in enumerate(group.pieces):
        try:
            entry = read_entry(index, piece)
        except RecordRefusedError as error:
            assembly.refused[index] = str(error)
            continue
        if entry.uuid is not None and entry.uuid in seen:
            assembly.duplicates[index] = f"the uuid {entry.uuid} was recorded before"
            continue
        if entry.uuid is not None:
            seen.add(entry.uuid)
        if not entry.messages and entry.kind != "boundary":
            assembly.set_apart[index] = _note(entry.record)
        entries.append(entry)
    return entries


def _note(record: dict[str, Any]) -> str:
    kind = record.get("type")
    subtype = as_text(record.get("subtype"))
    return f"a note of type {kind!r}" + (f" ({subtype})" if subtype else "")


def _title(entries: Sequence[Entry]) -> str | None:
    titles = [as_text(entry.record.get(key)) for entry in entries for key in _TITLE_KEYS]
    return next((title for title in reversed(titles) if title), None)


def _answer_id(node: Node) -> str | None:
    return node.messages[0].id if node.is_turn else None


def _answer_ids(roots: Sequence[Node]) -> frozenset[str]:
    found = set()
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        waiting.extend(node.children)
        if (answer := _answer_id(node)) is not None and node.entries[0].turn is not None:
            found.add(answer)
    return frozenset(found)


def _with_names(messages: list[Message]) -> list[Message]:
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    return [
        msgspec.structs.replace(message, name=names.get(message.tool_call_id)) if message.role == "tool" else message
        for message in messages
    ]


def _judgements(messages: Sequence[Message]) -> list[Score]:
    """What the user did about the agent's steps: calls that were not allowed, turns that were stopped."""
    made = {call.id: index for index, message in enumerate(messages) for call in message.tool_calls}
    scores = []
    latest: int | None = None
    for index, message in enumerate(messages):
        if message.role == "assistant":
            latest = index
        name, place, comment = "", latest, None
        if message.error is not None and message.error.type == USER_REJECTED:
            name, place, comment = "user_rejection", made.get(message.tool_call_id), message.error.text or None
        elif message.metadata.get(INTERRUPTED) is True:
            name = "user_interruption"
        if name:
            scores.append(
                Score(
                    name,
                    value=1.0,
                    scorer="user",
                    scorer_kind="human",
                    direction="lower_is_better",
                    message_index=place,
                    comment=comment,
                    timestamp=message.timestamp,
                )
            )
    return scores
