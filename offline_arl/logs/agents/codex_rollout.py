"""Session logs of Codex: `rollout-<time>-<session id>.jsonl`, one record an item, event or setting.

The items are those of OpenAI's Responses; events repeat them and are set apart. A compaction ends a trajectory and
begins the next one. A forked session or sub-agent may begin with the history of its parent: it is kept as context,
and its records count as duplicates.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from offline_arl.logs.adapter import Assembly, Fragment, Group, RawRecord, RecordRefusedError, RecordSetApartError
from offline_arl.logs.agents.codex_records import (
    TELLING_EVENTS,
    USER_REJECTED,
    Line,
    classify,
    history_messages,
    is_bare_header,
    item_messages,
    milliseconds,
    read_line,
)
from offline_arl.logs.primitives.copies import with_copied_start
from offline_arl.logs.primitives.values import as_count, as_object, as_text, decode_object
from offline_arl.trajectories.schema import (
    Branch,
    Message,
    Outcome,
    Producer,
    Score,
    Trajectory,
    Usage,
    text_message,
)

_SESSION_ID = re.compile(r"rollout-[^/]*?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.jsonl")
_KINDS = frozenset({"session_meta", "turn_context", "response_item", "event_msg", "compacted"})
# Where no ids tell when a replayed turn ran: a replay is written in one go.
_REPLAY_MILLISECONDS = 1000


class CodexRolloutAdapter:
    """Assembles rollouts, each from its file."""

    name = "codex_rollout"
    title = "Codex rollouts"
    keeps = "compactions, forks, sub-agents, usage a turn, exit codes, rejections and interruptions, settings"
    lacks = (
        "tool schemas are not logged, nor is a reward; operations inside a program of the `exec` tool are not cut out"
    )

    def recognizes(self, record: Any) -> bool:
        """Whether the record has the envelope of a rollout, or is the first line of the layout without one."""
        if not isinstance(record, dict):
            return False
        kind = record.get("type")
        if isinstance(kind, str) and kind in _KINDS:
            return isinstance(record.get("payload"), dict)
        return is_bare_header(record) and isinstance(record["timestamp"], str) and isinstance(record["id"], str)

    def fragments(self, record: RawRecord) -> list[Fragment]:
        """One fragment, for the session that the file's name tells (where it tells none, for the file)."""
        kind, payload, _ = classify(decode_object(record.raw))
        if kind == "event" and (subtype := as_text(payload.get("type"))) not in TELLING_EVENTS:
            raise RecordSetApartError(f"an event that repeats or reports on items ({subtype})")
        if kind == "note":
            raise RecordSetApartError("a note of the harness")
        session = _SESSION_ID.search(record.label)
        return [Fragment(session[1] if session else None, record.raw)]

    def assemble(self, group: Group) -> Assembly:
        """The trajectories of a session, one for each stretch between compactions."""
        assembly = Assembly()
        lines = _lines(group, assembly)
        rollout = _Rollout(group, assembly, lines)
        for position, line in enumerate(lines):
            rollout.read(line, is_replayed=position < rollout.replayed)
        assembly.trajectories = rollout.finish()
        return assembly


@dataclass
class _Stretch:
    """The part of a session that the model sees as one conversation."""

    name: str | int
    messages: list[Message]
    pieces: list[int] = field(default_factory=list)
    copied: int = 0  # messages that were replayed from another session
    continues: _Stretch | None = None
    branch: tuple[_Stretch, int] | None = None
    stop_reason: str | None = None
    is_done: bool = False  # the agent said that it was done, and nothing followed
    failed: bool = False
    scores: list[Score] = field(default_factory=list)


class _Rollout:
    """Reads a session from its first line to its last."""

    def __init__(self, group: Group, assembly: Assembly, lines: Sequence[Line]) -> None:
        self._group, self._assembly = group, assembly
        self._meta = next((line.payload for line in lines if line.kind == "meta"), {})
        self._settings: dict[str, Any] = {}
        self._model: str | None = None
        self._pending: list[Line] = []
        self._total: Any = None  # token usage as last told; told again, it says nothing
        self._stretch = _Stretch(0, self._system())
        self._stretches = [self._stretch]
        self.replayed = _replay_end(lines, self._meta)
        self._is_replaying = self.replayed > 0

    def read(self, line: Line, *, is_replayed: bool) -> None:
        """Read one record."""
        if is_replayed and line.kind != "event" and line.payload is not self._meta:
            self._assembly.duplicates[line.index] = "history replayed from another session"
        elif line.kind != "event":
            if not is_replayed and self._is_replaying:
                self._flush()
                self._is_replaying, self._stretch.copied = False, len(self._stretch.messages)
            self._stretch.pieces.append(line.index)
        match line.kind:
            case "context":
                self._flush()
                self._settings = self._settings or line.payload
                self._model = as_text(line.payload.get("model")) or self._model
            case "item":
                self._pending.append(line)
            case "compacted":
                self._compact(line)
                if is_replayed:
                    self._stretches[-2].copied = len(self._stretches[-2].messages)
            case "event":
                self._assembly.set_apart[line.index] = f"an event of the harness ({line.subtype})"
                if not is_replayed:
                    self._event(line)

    def finish(self) -> list[Trajectory]:
        """The trajectories; stretches without an answer of the model's own are none."""
        self._flush()
        trajectories = []
        for stretch in self._stretches:
            stretch.messages[: stretch.copied] = map(_copy, stretch.messages[: stretch.copied])
            if any(m.role == "assistant" and m.producer.kind == "model" for m in stretch.messages):
                trajectories.append(self._trajectory(stretch))
            else:
                for index in stretch.pieces:
                    self._assembly.set_apart.setdefault(index, "the model never answered")
        return trajectories

    def _system(self) -> list[Message]:
        base = self._meta.get("base_instructions")
        text = as_text(as_object(base).get("text")) or as_text(base)
        return [text_message("system", text, kind="script")] if text else []

    def _flush(self) -> None:
        lines, self._pending = self._pending, []
        messages = item_messages(lines, self._model)
        self._stretch.messages.extend(messages)
        if any(message.producer.kind != "script" for message in messages):
            self._stretch.is_done = self._stretch.failed = False
            self._stretch.stop_reason = None

    def _compact(self, line: Line) -> None:
        self._flush()
        summary, history = as_text(line.payload.get("message")) or "", line.payload.get("replacement_history")
        kept = history_messages(history, summary) if isinstance(history, list) else []
        if summary and not any(message.producer.kind == "summary" for message in kept):
            kept.append(text_message("user", summary, kind="summary"))
        kept = [msgspec.structs.replace(message, timestamp=line.timestamp) for message in kept]
        self._stretch.stop_reason = "compaction"
        name = f"compaction {sum(1 for s in self._stretches if s.continues is not None) + 1}"
        self._begin(_Stretch(name, [*self._system(), *kept], continues=self._stretch))

    def _begin(self, stretch: _Stretch) -> None:
        self._stretch = stretch
        self._stretches.append(stretch)

    def _event(self, line: Line) -> None:
        stretch = self._stretch
        match line.subtype:
            case "token_count":
                info = as_object(line.payload.get("info"))
                total, last = info.get("total_token_usage"), as_object(info.get("last_token_usage"))
                if last and total != self._total:
                    self._total = total
                    self._flush()
                    _set_usage(stretch.messages, last)
            case "turn_aborted":
                self._flush()
                reason = as_text(line.payload.get("reason")) or "interrupted"
                stretch.stop_reason = reason
                place = _last_answer(stretch.messages)
                if reason == "interrupted" and place is not None:
                    stretch.scores.append(_judgement("user_interruption", place, line.timestamp))
            case "task_complete":
                self._flush()
                stretch.is_done, stretch.stop_reason = True, stretch.stop_reason or "task_complete"
            case "error":
                self._flush()
                stretch.failed, stretch.stop_reason = True, "error"
            case "thread_rolled_back":
                self._roll_back(as_count(line.payload.get("num_turns")) or 0)

    def _roll_back(self, turns: int) -> None:
        """The user took back their last turns: what follows is another branch."""
        self._flush()
        stretch = self._stretch
        asked = [i for i, m in enumerate(stretch.messages) if m.role == "user" and m.producer.kind == "human"]
        if not 0 < turns <= len(asked):
            return
        length = asked[-turns]
        stretch.stop_reason = "rolled_back"
        name = f"{stretch.name} rolled back {len(self._stretches)}"
        copied = min(stretch.copied, length)
        kept = with_copied_start(stretch.messages[:length], length)
        self._begin(_Stretch(name, kept, copied=copied, branch=(stretch, length)))

    def _trajectory(self, stretch: _Stretch) -> Trajectory:
        group, meta = self._group, self._meta
        spawn = as_object(as_object(as_object(meta.get("source")).get("subagent")).get("thread_spawn"))
        forked_from = as_text(meta.get("forked_from_id"))
        spawner = as_text(meta.get("parent_thread_id")) or as_text(spawn.get("parent_thread_id"))
        if spawner is None and meta.get("thread_source") == "subagent":
            spawner = forked_from
        identifiers = {"forked_from": forked_from, "parent_thread": spawner}
        parent_id, branch, relation = None, None, None
        if stretch.continues is not None:
            parent_id, relation = group.trajectory_id(stretch.continues.name), "compaction"
        elif spawner is not None:
            relation = "sub_agent"
            if group.key is not None:
                parent_id = Group(group.format, spawner, ()).trajectory_id(0)
        if stretch.branch is not None:
            branch = Branch(group.trajectory_id(stretch.branch[0].name), stretch.branch[1])
        elif stretch.copied and forked_from is not None and spawner is None and group.key is not None:
            # The parent's stretches have the names that the replay of its compactions gives here.
            branch = Branch(Group(group.format, forked_from, ()).trajectory_id(stretch.name), stretch.copied)
            parent_id = None
        known = ("id", "timestamp", "base_instructions", "forked_from_id", "parent_thread_id")
        metadata = {key: value for key, value in meta.items() if key not in known and value is not None}
        if relation is not None:
            metadata["relation"] = relation
        if self._settings:
            metadata["turn_context"] = self._settings
        times = [message.timestamp for message in stretch.messages if message.timestamp is not None]
        models = [message.producer.name for message in stretch.messages if message.producer.kind == "model"]
        return Trajectory(
            trajectory_id=group.trajectory_id(stretch.name),
            messages=_with_names(stretch.messages),
            source=group.source(stretch.pieces or None),
            episode_id=as_text(meta.get("id")),
            parent_trajectory_id=parent_id,
            branch=branch,
            agent=as_text(meta.get("agent_role")) or as_text(spawn.get("agent_role")) or "codex",
            model=next((model for model in models if model is not None), None),
            started_at=times[0] if times else as_text(meta.get("timestamp")),
            ended_at=times[-1] if times else None,
            # In a session without a person, being done ends it; with one, it only ends a turn.
            terminated=stretch.is_done and meta.get("source") == "exec",
            stop_reason=stretch.stop_reason,
            outcome=Outcome("infrastructure_error") if stretch.failed else Outcome(),
            metadata=metadata,
            session_id=as_text(meta.get("id")),
            identifiers={key: value for key, value in identifiers.items() if value is not None},
            scores=[*stretch.scores, *_rejections(stretch.messages)],
        )


def _lines(group: Group, assembly: Assembly) -> list[Line]:
    """The readable records in order; of a session that lies in several copies, those of the longest one."""
    copies: dict[str, list[Line]] = {}
    for index, piece in enumerate(group.pieces):
        try:
            copies.setdefault(piece.label, []).append(read_line(index, piece))
        except RecordRefusedError as error:
            assembly.refused[index] = str(error)
    lines = max(copies.values(), key=len, default=[])
    for copy in copies.values():
        if copy is not lines:
            assembly.duplicates.update((line.index, "another copy of the session") for line in copy)
    return lines


def _replay_end(lines: Sequence[Line], meta: dict[str, Any]) -> int:
    """How many lines at the start repeat the history of another session.

    A replay follows the record of that session. Its turns bear the time at which they ran in their ids (version 7
    UUIDs), so the first turn that is not older than this session ends it.
    """
    own = meta.get("id")
    start = next((i for i, line in enumerate(lines) if line.kind == "meta" and line.payload.get("id") != own), None)
    if start is None:
        return 0
    created = milliseconds(own if milliseconds(own) is not None else meta.get("timestamp"))
    dated = False
    for position in range(start + 1, len(lines)):
        line = lines[position]
        if line.kind == "meta" and line.payload.get("id") == own:
            return position
        if line.kind == "context" or line.subtype == "task_started":
            ran = milliseconds(line.payload.get("turn_id"))
            dated |= ran is not None
            if ran is not None and created is not None and ran >= created:
                return position
    if dated:
        return len(lines)
    written = milliseconds(lines[start].timestamp)
    for position in range(start + 1, len(lines)):
        time = milliseconds(lines[position].timestamp)
        if time is not None and written is not None and time > written + _REPLAY_MILLISECONDS:
            return position
    return len(lines)


def _set_usage(messages: list[Message], usage: dict[str, Any]) -> None:
    place = _last_answer(messages)
    if place is None or messages[place].usage is not None:
        return
    message = messages[place]
    counts = Usage(as_count(usage.get("input_tokens")), as_count(usage.get("output_tokens")))
    rest = {key: value for key, value in usage.items() if key not in ("input_tokens", "output_tokens")}
    messages[place] = msgspec.structs.replace(message, usage=counts, metadata={**message.metadata, "usage": rest})


def _last_answer(messages: Sequence[Message]) -> int | None:
    return next((i for i in range(len(messages) - 1, -1, -1) if messages[i].producer.kind == "model"), None)


def _copy(message: Message) -> Message:
    """A message that another session holds too."""
    if message.role == "system":
        return message
    return msgspec.structs.replace(message, producer=Producer("copy"))


def _with_names(messages: Sequence[Message]) -> list[Message]:
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    return [
        msgspec.structs.replace(message, name=names.get(message.tool_call_id))
        if message.role == "tool" and message.name is None
        else message
        for message in messages
    ]


def _judgement(name: str, place: int | None, timestamp: str | None) -> Score:
    return Score(
        name,
        value=1.0,
        scorer="user",
        scorer_kind="human",
        direction="lower_is_better",
        message_index=place,
        timestamp=timestamp,
    )


def _rejections(messages: Sequence[Message]) -> list[Score]:
    made = {call.id: index for index, message in enumerate(messages) for call in message.tool_calls}
    return [
        _judgement("user_rejection", made.get(message.tool_call_id), message.timestamp)
        for message in messages
        if message.error is not None and message.error.type == USER_REJECTED
    ]
