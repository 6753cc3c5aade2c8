"""Event streams of Anthropic's managed agents: one event a record, or `[method of the client, what it got or sent]`.

Between the start and the end of a model request lies one turn of the model. What a client sends comes back in the
stream with an id, so the sent one is a duplicate. Evaluations of an outcome are scores, the last one the outcome.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from offline_arl.logs.adapter import Assembly, Fragment, Group, RawRecord, RecordRefusedError
from offline_arl.logs.agents.managed_agents_session import Session, check
from offline_arl.logs.primitives.json_values import decode_json
from offline_arl.logs.primitives.values import as_list, as_object, json_type

_DOMAINS = ("agent.", "user.", "session.", "span.", "system.")
_SENT = "client.beta.sessions.events.send"


class ManagedAgentsAdapter:
    """Assembles the events of a file, which is one session."""

    name = "anthropic_managed_agents"
    title = "Event streams of Anthropic's managed agents"
    keeps = "system prompt and tools, usage a turn, evaluations of the outcome, denials and interruptions by the user"
    lacks = (
        "the text of thinking is not in the stream, nor what a compaction left; threads of sub-agents are other files"
    )

    def recognizes(self, record: Any) -> bool:
        """Whether the record is an event with an id of such a session, or a call of the sessions' client."""
        if isinstance(record, list):
            return len(record) == 2 and isinstance(record[0], str) and "beta.sessions." in record[0]
        if not isinstance(record, dict):
            return False
        kind, event_id = record.get("type"), record.get("id")
        return isinstance(kind, str) and kind.startswith(_DOMAINS) and str(event_id).startswith("sevt_")

    def fragments(self, record: RawRecord) -> list[Fragment]:
        """One fragment, for the file."""
        value = _decode(record.raw)
        check(_events(value), _created(value))
        return [Fragment(None, record.raw)]

    def assemble(self, group: Group) -> Assembly:
        """The trajectory of the session, or several where its context was compacted."""
        assembly = Assembly()
        session = Session(group)
        records = [_decode(piece.payload) for piece in group.pieces]
        echoes = Counter(_content(e) for record in records if not _is_sent(record) for e in _events(record))
        for index, record in enumerate(records):
            if (created := _created(record)) is not None:
                session.begin(created)
                continue
            used = repeated = False
            reason = "holds no event"
            for event in _events(record):
                if _is_sent(record) and echoes[_content(event)] > 0:
                    echoes[_content(event)] -= 1
                    repeated = True
                    continue
                told = session.add(event, index)
                used, reason = used or told is None, told or reason
            if repeated and not used:
                assembly.duplicates[index] = "the event comes back in the stream"
            elif not used:
                assembly.set_apart[index] = reason
        assembly.trajectories = session.finish()
        if not assembly.trajectories:
            for index in range(len(records)):
                if index not in assembly.duplicates:
                    assembly.set_apart[index] = "the model never answered"
        return assembly


def _decode(raw: bytes) -> Any:
    value = decode_json(raw)
    if isinstance(value, list) and len(value) == 2 and isinstance(value[0], str):
        return value
    if isinstance(value, dict) and isinstance(value.get("type"), str):
        return value
    raise RecordRefusedError(f"expected an event or a pair of method and value, got {json_type(value)}")


def _is_sent(record: Any) -> bool:
    return isinstance(record, list) and record[0] == _SENT


def _created(record: Any) -> dict[str, Any] | None:
    """The session, where the record is the answer to its creation or retrieval."""
    value = as_object(record[1]) if isinstance(record, list) else record
    return value if value.get("type") == "session" else None


def _events(record: Any) -> Iterator[dict[str, Any]]:
    """The events of a record.

    Raises:
        RecordRefusedError: One of them is no object with a type.
    """
    if isinstance(record, dict):
        yield record
        return
    value = record[1]
    if isinstance(value, list):  # the arguments of a call: session id, then the rest
        value = next((item for item in value if isinstance(item, dict)), {})
    fields = as_object(value)
    events = as_list(fields.get("events") or fields.get("data")) or ([fields] if "type" in fields else [])
    for position, event in enumerate(events):
        if not isinstance(event, dict) or not isinstance(event.get("type"), str):
            raise RecordRefusedError(f"[1].events[{position}]: expected an event, got {json_type(event)}")
        yield event


def _content(event: dict[str, Any]) -> bytes:
    """What an event says, without what the server adds to it."""
    added = ("id", "processed_at", "session_thread_id")
    kept = {key: value for key, value in event.items() if key not in added and value not in (None, False)}
    return msgspec.json.encode(kept, order="sorted")
