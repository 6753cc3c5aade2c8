"""Sessions of Gemini CLI: one JSON document (older), or JSON Lines of a header, messages and changes.

A message that is written again replaces the earlier one. `$rewindTo` takes a message and all after it back: what
was said until then and what follows are branches of one another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, takewhile
from typing import Any

import msgspec

from offline_arl.logs.adapter import Assembly, Fragment, Group, RawRecord, RecordRefusedError
from offline_arl.logs.primitives.copies import with_copied_start
from offline_arl.logs.primitives.values import (
    as_count,
    as_list,
    as_object,
    as_text,
    decode_object,
    json_text,
    json_type,
)
from offline_arl.logs.providers.gemini_messages import ENVIRONMENT, convert_content, paired, response_text
from offline_arl.trajectories.schema import (
    Branch,
    ContentPart,
    Message,
    MessageError,
    Outcome,
    Producer,
    ReasoningPart,
    Score,
    TextPart,
    ToolCall,
    Trajectory,
    Usage,
    tool_call,
)

_NOTICES = frozenset({"info", "warning", "error"})
_KINDS = frozenset({"user", "gemini"})
_HEADER_KEYS = frozenset({"sessionId", "projectHash"})
_PARENT_SESSION = re.compile(r"chats/([^/]+)/[^/]+\.jsonl?$")


class GeminiSessionsAdapter:
    """Assembles sessions, each from its file."""

    name = "gemini_cli"
    title = "Gemini CLI sessions"
    keeps = "thoughts (summaries), results and status of calls, usage, rewound branches, sub-agents' parents"
    lacks = "system prompt, tool schemas and rewards are not logged; tool output is cut at 50 KB by the program"

    def recognizes(self, record: Any) -> bool:
        """Whether the record is the header of a session, or a whole one."""
        return isinstance(record, dict) and record.keys() >= _HEADER_KEYS and "startTime" in record

    def fragments(self, record: RawRecord) -> list[Fragment]:
        """One fragment, for the file."""
        fields = decode_object(record.raw)
        if "$set" in fields:
            changes = fields["$set"]
            if not isinstance(changes, dict):
                raise RecordRefusedError(f"$set: expected an object, got {json_type(changes)}")
            _check_messages(changes, "$set.messages")
        elif "$rewindTo" in fields:
            if not isinstance(fields["$rewindTo"], str):
                raise RecordRefusedError(f"$rewindTo: expected a string, got {json_type(fields['$rewindTo'])}")
        elif _is_header(fields):
            _check_messages(fields, "messages")
        else:
            _convert(fields, "message")
        return [Fragment(None, record.raw)]

    def assemble(self, group: Group) -> Assembly:
        """The trajectories of a session."""
        assembly = Assembly()
        session = _Session(group, assembly)
        for index, piece in enumerate(group.pieces):
            session.read(decode_object(piece.payload), index)
        assembly.trajectories = session.finish()
        return assembly


@dataclass(frozen=True)
class _Said:
    """A message of the session as it was last written."""

    message_id: str
    kind: str
    messages: list[Message]
    piece: int
    order: int  # in which it was said


@dataclass
class _Path:
    """The messages of a session between two rewinds."""

    name: str | int
    said: list[_Said]
    origin: _Path | None = None  # the path before
    notices: list[_Said] = field(default_factory=list)

    @property
    def messages(self) -> list[Message]:
        return [message for said in self.said for message in said.messages]


class _Session:
    """Reads a session record by record."""

    def __init__(self, group: Group, assembly: Assembly) -> None:
        self._group, self._assembly = group, assembly
        self._fields: dict[str, Any] = {}
        self._path = _Path(0, [])
        self._paths = [self._path]
        self._headers: list[int] = []
        self._order = count()

    def read(self, record: dict[str, Any], index: int) -> None:
        """Read one record."""
        changes = record.get("$set")
        if isinstance(changes, dict):
            self._change(changes, index)
        elif isinstance(record.get("$rewindTo"), str):
            self._rewind(record["$rewindTo"])
        elif _is_header(record):
            self._change(record, index)
        else:
            self._say(record, index)

    def finish(self) -> list[Trajectory]:
        """The trajectories; paths in which the model never answered are none."""
        answered = [path for path in self._paths if any(said.kind == "gemini" for said in path.said)]
        used = {said.piece for path in answered for said in path.said} | set(self._headers)
        for path in self._paths:
            for said in (*path.said, *path.notices):
                if said.piece not in used:
                    reason = f"a notice ({said.kind})" if said.kind in _NOTICES else "led to no answer of the model"
                    self._assembly.set_apart.setdefault(said.piece, reason)
        return [self._trajectory(path) for path in answered]

    def _change(self, changes: dict[str, Any], index: int) -> None:
        changes = dict(changes)
        messages = changes.pop("messages", None)
        self._fields.update(changes)
        self._headers.append(index)
        if isinstance(messages, list) and messages:
            kept = {as_text(as_object(message).get("id")) for message in messages}
            for said in self._path.said:
                reason = "the message is written again" if said.message_id in kept else "the session was written anew"
                self._assembly.duplicates[said.piece] = reason
            self._path.said = []
            for message in messages:
                self._say(message, index)

    def _say(self, record: dict[str, Any], index: int) -> None:
        message_id, kind = as_text(record.get("id")) or f"record {index}", str(record.get("type"))
        said = _Said(message_id, kind, _convert(record, "message"), index, next(self._order))
        if kind in _NOTICES:
            self._path.notices.append(said)
            return
        for place, earlier in enumerate(self._path.said):
            if earlier.message_id == message_id:
                if earlier.piece != index:
                    self._assembly.duplicates[earlier.piece] = "the message is written again"
                self._path.said[place] = said
                return
        self._path.said.append(said)

    def _rewind(self, message_id: str) -> None:
        """Take back a message and all after it; all messages, where it is none of them."""
        said = self._path.said
        length = next((i for i, item in enumerate(said) if item.message_id == message_id), 0)
        self._path = _Path(f"rewind {len(self._paths)}", said[:length], self._path)
        self._paths.append(self._path)

    def _trajectory(self, path: _Path) -> Trajectory:
        group, fields = self._group, self._fields
        branch = self._branch(path)
        messages = with_copied_start(paired(path.messages), 0 if branch is None else branch.message_index)
        known = ("sessionId", "startTime", "lastUpdated", "messages")
        metadata = {key: value for key, value in fields.items() if key not in known and value is not None}
        identifiers = {}
        if fields.get("kind") == "subagent" and (found := _PARENT_SESSION.search(group.pieces[0].label)):
            identifiers["parent_session"] = found[1]
            metadata["relation"] = "sub_agent"
        failures = [said for said in path.notices if said.kind == "error"]
        if failures:
            metadata["errors"] = [message.text for said in failures for message in said.messages]
        failed = path is self._paths[-1] and bool(failures) and failures[-1].order > path.said[-1].order
        times = [message.timestamp for message in messages if message.timestamp is not None]
        is_last = path is self._paths[-1]
        pieces = sorted({said.piece for said in path.said})
        return Trajectory(
            trajectory_id=group.trajectory_id(path.name),
            messages=messages,
            source=group.source(pieces),
            episode_id=as_text(fields.get("sessionId")),
            branch=branch,
            agent="gemini_cli",
            model=next((m.producer.name for m in messages if m.producer.kind == "model" and m.producer.name), None),
            started_at=as_text(fields.get("startTime")) or (times[0] if times else None),
            ended_at=times[-1] if times else None,
            stop_reason="error" if failed else None if is_last else "rewound",
            outcome=Outcome("infrastructure_error") if failed else Outcome(),
            metadata=metadata,
            session_id=as_text(fields.get("sessionId")),
            identifiers=identifiers,
            scores=_cancellations(messages),
        )

    def _branch(self, path: _Path) -> Branch | None:
        """Where a path leaves the one before it; nowhere, where they share nothing (any longer)."""
        if path.origin is None:
            return None
        origin = _answered(path.origin)
        shared = takewhile(lambda pair: pair[0] is pair[1], zip(origin.said, path.said, strict=False))
        length = sum(len(said.messages) for said, _ in shared)
        return Branch(self._group.trajectory_id(origin.name), length) if length else None


def _answered(path: _Path) -> _Path:
    """The path itself, or the one before it in which the model answered."""
    while path.origin is not None and not any(said.kind == "gemini" for said in path.said):
        path = path.origin
    return path


def _is_header(record: dict[str, Any]) -> bool:
    return record.keys() >= _HEADER_KEYS


def _check_messages(fields: dict[str, Any], where: str) -> None:
    for position, message in enumerate(as_list(fields.get("messages"))):
        _convert(message, f"{where}[{position}]")


def _convert(record: object, where: str) -> list[Message]:
    """The messages of one record of a message.

    Raises:
        RecordRefusedError: It is none.
    """
    if not isinstance(record, dict):
        raise RecordRefusedError(f"{where}: expected an object, got {json_type(record)}")
    kind = record.get("type")
    if not isinstance(kind, str) or kind not in _KINDS | _NOTICES:
        raise RecordRefusedError(f"{where}.type: expected one of {', '.join(sorted(_KINDS | _NOTICES))}, got {kind!r}")
    content = record.get("content")
    messages = convert_content(
        "" if content is None else content, f"{where}.content", "model" if kind == "gemini" else "user"
    )
    message_id, timestamp = as_text(record.get("id")), as_text(record.get("timestamp"))
    known = ("id", "timestamp", "type", "content", "sessionId", "thoughts", "tokens", "model", "toolCalls")
    metadata = {key: value for key, value in record.items() if key not in known and value is not None}
    results: list[Message] = []
    producer = Producer("human")
    if kind == "gemini":
        producer = Producer("model", as_text(record.get("model")))
        answer, results = _answer(messages[-1], record, where)
        messages[-1] = answer
    return [
        *(
            msgspec.structs.replace(
                message,
                id=message_id,
                timestamp=timestamp,
                producer=message.producer if message.role == "tool" else producer,
                metadata={**metadata, **message.metadata},
            )
            for message in messages
        ),
        *results,
    ]


def _answer(message: Message, record: dict[str, Any], where: str) -> tuple[Message, list[Message]]:
    """A turn of the model with its thoughts and calls, and the results of these."""
    thoughts = [_thought(as_object(thought)) for thought in as_list(record.get("thoughts"))]
    calls, results = [], []
    for position, logged in enumerate(as_list(record.get("toolCalls"))):
        call, result = _tool_call(as_object(logged), f"{where}.toolCalls[{position}]")
        calls.append(call)
        if result is not None:
            results.append(result)
    content = [part for part in message.content or () if part != TextPart("")]
    usage = dict(as_object(record.get("tokens")))
    counts = Usage(as_count(usage.pop("input", None)), as_count(usage.pop("output", None)))
    metadata = dict(message.metadata)
    if thoughts:
        metadata["reasoning_is_summary"] = True
    if usage:
        metadata["usage"] = usage
    answer = msgspec.structs.replace(
        message,
        content=[*thoughts, *content] if thoughts or content or not calls else None,
        tool_calls=[*message.tool_calls, *calls],
        usage=None if counts == Usage() else counts,
        metadata=metadata,
    )
    return answer, results


def _thought(thought: dict[str, Any]) -> ContentPart:
    subject, description = as_text(thought.get("subject")) or "", as_text(thought.get("description")) or ""
    return ReasoningPart(f"**{subject}**\n{description}" if subject else description)


def _tool_call(logged: dict[str, Any], where: str) -> tuple[ToolCall, Message | None]:
    fields = dict(logged)
    name, arguments, call_id = fields.pop("name", None), fields.pop("args", None), as_text(fields.pop("id", None))
    if not isinstance(name, str):
        raise RecordRefusedError(f"{where}.name: expected a string, got {json_type(name)}")
    if not isinstance(arguments, (str, dict)):
        arguments = {} if arguments is None else json_text(arguments)
    call = tool_call(name, arguments, id=call_id)
    result, status = fields.pop("result", None), as_text(fields.pop("status", None))
    if result is None and status not in ("error", "cancelled"):
        return call, None
    content, metadata = _result_content(result, where)
    error = None
    if status in ("error", "cancelled"):
        error = MessageError("tool_error" if status == "error" else status, as_text(fields.pop("error", None)) or "")
    timestamp = as_text(fields.pop("timestamp", None))
    kept = {key: value for key, value in fields.items() if value is not None}
    return call, Message(
        "tool",
        content,
        tool_call_id=call_id,
        name=name,
        error=error,
        producer=ENVIRONMENT,
        timestamp=timestamp,
        metadata={**kept, **metadata},
    )


def _result_content(result: object, where: str) -> tuple[list[ContentPart] | None, dict[str, Any]]:
    """What the model got back: the function's response, and parts that came beside it (images)."""
    parts: list[ContentPart] = []
    metadata: dict[str, Any] = {}
    others = []
    for part in result if isinstance(result, list) else [] if result is None else [result]:
        response = as_object(part).get("functionResponse")
        if isinstance(response, dict):
            text, said = response_text(response.get("response"))
            metadata.update(said)
            if text is not None:
                parts.append(TextPart(text))
        else:
            others.append(part)
    if others:
        for message in convert_content(others, f"{where}.result"):
            parts.extend(message.content or ())
    return (parts if parts or result is not None else None), metadata


def _cancellations(messages: Sequence[Message]) -> list[Score]:
    made = {call.id: index for index, message in enumerate(messages) for call in message.tool_calls}
    return [
        Score(
            "user_cancellation",
            value=1.0,
            scorer="user",
            scorer_kind="human",
            direction="lower_is_better",
            message_index=made.get(message.tool_call_id),
            timestamp=message.timestamp,
        )
        for message in messages
        if message.error is not None and message.error.type == "cancelled"
    ]
