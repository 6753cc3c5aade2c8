"""Single records of Codex rollouts, the same for the layout with envelopes and the old one without."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import msgspec

from offline_arl.logs.adapter import Piece, RecordRefusedError
from offline_arl.logs.primitives.values import as_object, as_text, decode_object, json_type
from offline_arl.logs.providers.openai_responses import responses_items_to_messages
from offline_arl.trajectories.schema import Message, MessageError, Producer, TextPart

Kind = Literal["meta", "context", "item", "event", "compacted", "note"]

USER_REJECTED = "user_rejected"
# Events that say what the items do not; all others repeat items or report progress.
TELLING_EVENTS: frozenset[str | None] = frozenset(
    {"token_count", "turn_aborted", "task_started", "task_complete", "error", "stream_error", "thread_rolled_back"}
)
_ENVELOPES: dict[str, Kind] = {
    "session_meta": "meta",
    "turn_context": "context",
    "response_item": "item",
    "event_msg": "event",
    "compacted": "compacted",
}
_SILENT_ITEMS: frozenset[str | None] = frozenset({"ghost_snapshot", "other"})
# What the harness says in the user's name.
_SCRIPTED = (
    "<environment_context>",
    "<user_instructions>",
    "<INSTRUCTIONS>",
    "<permissions instructions>",
    "<collaboration_mode>",
    "<personality_spec>",
    "<model_switch>",
    "<apps_instructions>",
    "<skills_instructions>",
    "<skill>",
    "<turn_aborted>",
    "<subagent_notification>",
    "<user_shell_command>",
    "# AGENTS.md instructions",
)
_REJECTED = re.compile(r"^(?:exec command|command|patch|tool call)? ?rejected by user|^aborted by user")
_EXIT_CODE = re.compile(r"^Exit code: (-?\d+)$|^Process exited with code (-?\d+)$", re.MULTILINE)
_BARE_ITEMS = re.compile(r"message|reasoning|.+_call|.+_call_output|compaction|ghost_snapshot")
_UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)


@dataclass(frozen=True)
class Line:
    """One record of a rollout."""

    index: int  # of its piece
    kind: Kind
    payload: dict[str, Any]
    timestamp: str | None

    @property
    def subtype(self) -> str | None:
        """The type of an item or event."""
        return as_text(self.payload.get("type"))


def read_line(index: int, piece: Piece) -> Line:
    """Read one record.

    Raises:
        RecordRefusedError: It is no record of a rollout, or an item that cannot be read.
    """
    kind, payload, timestamp = classify(decode_object(piece.payload))
    if kind == "item":
        # Read alone first, so that a broken item is refused by itself; the turn is read from all its items.
        responses_items_to_messages([dict(payload)], "payload")
    elif kind == "compacted" and isinstance(history := payload.get("replacement_history"), list):
        history_messages(copy.deepcopy(history), "")
    return Line(index, kind, payload, timestamp)


def classify(record: dict[str, Any]) -> tuple[Kind, dict[str, Any], str | None]:
    """What a record is, its payload and its time.

    Raises:
        RecordRefusedError: It is no record of a rollout.
    """
    kind, payload, timestamp = record.get("type"), record.get("payload"), as_text(record.get("timestamp"))
    if isinstance(kind, str) and kind in _ENVELOPES:
        if not isinstance(payload, dict):
            raise RecordRefusedError(f"payload: expected an object, got {json_type(payload)}")
        known = _ENVELOPES[kind]
        silent = known == "item" and as_text(payload.get("type")) in _SILENT_ITEMS
        return "note" if silent else known, payload, timestamp
    if is_bare_header(record):
        return "meta", record, timestamp
    if isinstance(kind, str) and _BARE_ITEMS.fullmatch(kind) and payload is None:
        return "note" if kind in _SILENT_ITEMS else "item", record, timestamp
    if "record_type" in record or isinstance(kind, str):
        return "note", record, timestamp
    raise RecordRefusedError(f"type: expected a string, got {json_type(kind)}")


def is_bare_header(record: dict[str, Any]) -> bool:
    """Whether a record is the first line of the layout without envelopes."""
    return "type" not in record and {"id", "timestamp", "instructions"} <= record.keys() and "messages" not in record


def item_messages(lines: Sequence[Line], model: str | None) -> list[Message]:
    """The messages of consecutive items."""
    items = [{**line.payload, "timestamp": line.timestamp} for line in lines]
    messages = responses_items_to_messages(items, "payload", assistant=Producer("model", model))
    return [_attributed(message) for message in messages]


def history_messages(items: object, summary: str) -> list[Message]:
    """The messages that a compaction left in the place of the history; all are copies but the summary."""
    found = responses_items_to_messages(items, "payload.replacement_history")
    kept = []
    for message in found:
        is_summary = message.producer.kind == "summary" or (summary and summary in message.text)
        kept.append(msgspec.structs.replace(message, producer=Producer("summary" if is_summary else "copy")))
    return kept


def milliseconds(value: object) -> int | None:
    """The time in a version 7 UUID, or of an ISO timestamp, in milliseconds since 1970; None for anything else."""
    if not isinstance(value, str):
        return None
    if _UUID7.fullmatch(value):
        return int(value.replace("-", "")[:12], 16)
    try:
        return int(datetime.fromisoformat(value).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def _attributed(message: Message) -> Message:
    """Say who wrote a message for the user, and what went wrong with a call."""
    if message.role in ("developer", "system"):
        return msgspec.structs.replace(message, producer=Producer("script"))
    if message.role == "user":
        texts = [part.text.lstrip() for part in message.content or () if isinstance(part, TextPart)]
        is_scripted = bool(texts) and all(text.startswith(_SCRIPTED) for text in texts)
        return msgspec.structs.replace(message, producer=Producer("script" if is_scripted else "human"))
    if message.role != "tool" or message.error is not None:
        return message
    text = message.text
    if _REJECTED.match(text):
        return msgspec.structs.replace(message, error=MessageError(USER_REJECTED))
    code = _exit_code(text)
    if code is None:
        return message
    error = MessageError("exit_code", str(code)) if code != 0 else None
    return msgspec.structs.replace(message, error=error, metadata={**message.metadata, "exit_code": code})


def _exit_code(text: str) -> int | None:
    """The exit code that the output of a command tells, in its JSON or in a line of its own near the start."""
    if text.startswith("{"):
        try:
            value = as_object(as_object(msgspec.json.decode(text)).get("metadata")).get("exit_code")
        except (msgspec.DecodeError, RecursionError):
            return None
        return value if isinstance(value, int) and not isinstance(value, bool) else None
    found = _EXIT_CODE.search(text[:400])
    return int(found[1] or found[2]) if found else None
