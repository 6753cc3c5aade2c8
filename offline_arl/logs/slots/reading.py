"""Applying a slot: what the adapter made of a record, and what the record does not say, are the trajectory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.slots.arguments import STYLES
from offline_arl.logs.slots.contexts import read_contexts
from offline_arl.logs.slots.slot import KEY, Slot, digest_of
from offline_arl.trajectories.schema import (
    UNKNOWN_PRODUCER,
    ContentPart,
    Message,
    ReasoningPart,
    TextPart,
    ToolCall,
    Trajectory,
    tool_call,
)

_TRAJECTORY_TYPES: dict[str, Any] = {
    field.name: field.type
    for field in msgspec.structs.fields(Trajectory)
    if field.name not in ("messages", "contexts", "source", "schema_version")
}
_MESSAGE_TYPES: dict[str, Any] = {field.name: field.type for field in msgspec.structs.fields(Message)}
_CALL_TYPES: dict[str, Any] = {field.name: field.type for field in msgspec.structs.fields(ToolCall)}
# What still holds for a trajectory whose messages another tool changed: whose it is, not what it was worth.
_LASTING = (
    "task_id", "group_id", "episode_id", "session_id", "user_id", "task_type", "agent", "model", "started_at",
    "ended_at", "metadata", "identifiers",
)  # fmt: skip


def apply_slot(read: Trajectory, slot: Slot | None, own_id: str) -> Trajectory:
    """The trajectory that was exported.

    Args:
        read: What the adapter makes of the record without its slot.
        slot: None: the record is no export of this library, and `read` is the trajectory.
        own_id: The id that the trajectory has by its place and content. It gets it where the messages are not those
            that were exported: another tool changed them, and what is in the store under the old id may not change.

    Raises:
        RecordRefusedError: The slot does not fit the record.
    """
    if slot is None:
        return read
    is_same = slot.digest == digest_of(read.messages)
    values = {
        name: _converted(value, _TRAJECTORY_TYPES, name, "trajectory")
        for name, value in slot.trajectory.items()
        if is_same or name in _LASTING
    }
    if slot.contexts is not None and is_same:
        tools = msgspec.json.decode(read.contexts[0].tools) if read.contexts and read.contexts[0].tools else []
        values["contexts"] = read_contexts(slot.contexts, tools, f"{KEY}.contexts")
    if not is_same:
        former = slot.trajectory.get("trajectory_id", read.trajectory_id)
        metadata = {**values.get("metadata", read.metadata), "edited_trajectory_id": former}
        return msgspec.structs.replace(
            read, **{**values, "trajectory_id": own_id, "branch": None, "scores": [], "metadata": metadata}
        )
    return msgspec.structs.replace(read, messages=_messages(read.messages, slot), **values)


def _messages(read: Sequence[Message], slot: Slot) -> list[Message]:
    places = list(range(len(read))) if slot.layout is None else slot.layout
    messages = []
    for index, place in enumerate(places):
        if place is not None and not 0 <= place < len(read):
            raise RecordRefusedError(f"{KEY}.layout[{index}]: the record has no message {place}")
        base = Message("user") if place is None else read[place]
        given = slot.messages.get(str(index), {})
        role = given.get("role", base.role)
        shared = slot.roles.get(role, {}) if isinstance(role, str) else {}
        if given or shared or (slot.arguments is not None and base.tool_calls):
            base = _message(base, {**shared, **given}, slot.arguments, f"messages[{index}]")
        messages.append(base)
    return messages


def _message(base: Message, given: dict[str, Any], style: str | None, where: str) -> Message:
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name == "content" and isinstance(value, list):
            values[name] = _content(base, value, f"{where}.content")
        elif name != "tool_calls":
            values[name] = _converted(value, _MESSAGE_TYPES, name, where)
    if values.get("producer") == UNKNOWN_PRODUCER:
        values["producer"] = UNKNOWN_PRODUCER  # copies are told by their bytes
    if base.tool_calls or "tool_calls" in given:
        values["tool_calls"] = _calls(base.tool_calls, given.get("tool_calls", {}), style, where)
    return msgspec.structs.replace(base, **values)


def _content(base: Message, values: list[Any], where: str) -> list[ContentPart]:
    text = flat_text(base)
    parts = []
    for index, value in enumerate(values):
        place = value.get("slice") if isinstance(value, dict) else None
        if place is not None:
            start, end = _place(place, len(text), f"{where}[{index}].slice")
            value = {**{key: item for key, item in value.items() if key != "slice"}, "text": text[start:end]}
        try:
            part: ContentPart = msgspec.convert(value, ContentPart)
        except msgspec.ValidationError as error:
            raise RecordRefusedError(f"{KEY}.{where}[{index}]: {error}") from error
        parts.append(part)
    return parts


def flat_text(message: Message) -> str:
    """The texts of a message in order, reasoning included: what a slice is a slice of."""
    return "".join(part.text for part in message.content or () if isinstance(part, (TextPart, ReasoningPart)))


def _place(value: object, length: int, where: str) -> tuple[int, int]:
    if isinstance(value, list) and len(value) == 2 and all(type(item) is int for item in value):
        start, end = value
        if 0 <= start <= end <= length:
            return start, end
    raise RecordRefusedError(f"{KEY}.{where}: expected two positions in the text")


def _calls(base: list[ToolCall], given: object, style: str | None, where: str) -> list[ToolCall]:
    """The calls: whole ones where a list is given, else those of the record with some fields replaced, by index."""
    if isinstance(given, list):
        return [_call(ToolCall("", ""), value, None, f"{where}.tool_calls") for value in given]
    if not isinstance(given, dict):
        raise RecordRefusedError(f"{KEY}.{where}.tool_calls: expected an object or a list")
    return [_call(call, given.get(str(index), {}), style, f"{where}.tool_calls") for index, call in enumerate(base)]


def _call(base: ToolCall, given: object, style: str | None, where: str) -> ToolCall:
    if not isinstance(given, dict):
        raise RecordRefusedError(f"{KEY}.{where}: expected an object")
    values = {name: _converted(value, _CALL_TYPES, name, where) for name, value in given.items()}
    if "arguments_raw" in values:
        base = tool_call(base.name, values["arguments_raw"], id=base.id)
    elif style is not None and style in STYLES and base.arguments is not None:
        base = msgspec.structs.replace(base, arguments_raw=STYLES[style](base.arguments))
    return msgspec.structs.replace(base, **values)


def _converted(value: object, types: dict[str, Any], name: str, where: str) -> Any:
    if name not in types:
        raise RecordRefusedError(f"{KEY}.{where}: there is no field {name!r}")
    try:
        return msgspec.convert(value, types[name])
    except msgspec.ValidationError as error:
        raise RecordRefusedError(f"{KEY}.{where}.{name}: {error}") from error
