"""Making a slot: the least that has to be said for the way back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from offline_arl.logs.slots.arguments import STYLES
from offline_arl.logs.slots.contexts import write_contexts
from offline_arl.logs.slots.reading import flat_text
from offline_arl.logs.slots.slot import Slot, digest_of
from offline_arl.trajectories.schema import Message, ReasoningPart, TextPart, ToolCall, Trajectory, tool_call

Layout = Sequence[int | None]

_encoder = msgspec.json.Encoder(order="deterministic")
# The place of a shorter text takes as much room as the text.
_MIN_SLICE = 16
_TRAJECTORY_FIELDS = [
    name
    for name in Trajectory.__struct_fields__
    if name not in ("messages", "contexts", "source", "schema_version")  # provenance is that of the file that is read
]
_MESSAGE_FIELDS = [name for name in Message.__struct_fields__ if name not in ("content", "tool_calls")]
_SHARED_FIELDS = ("producer", "trainable", "metadata", "name")


def make_slot(read: Trajectory, trajectory: Trajectory, layout: Layout | None = None) -> Slot:
    """The slot with which `reading.apply_slot` makes `trajectory` of `read`.

    Args:
        read: What the adapter makes of the record without its slot.
        trajectory: What was exported.
        layout: For each message of `trajectory`, the message of `read` that holds it, None where none does. None: as
            many messages in the same order; what `read` has more is left out.
    """
    places: list[int | None] = list(range(len(read.messages)))
    if layout is not None:
        places = list(layout)
    elif len(places) != len(trajectory.messages):
        places = [index if index < len(places) else None for index in range(len(trajectory.messages))]
    bases = [Message("user") if place is None else read.messages[place] for place in places]
    tools = msgspec.json.decode(read.contexts[0].tools) if read.contexts and read.contexts[0].tools else []
    style = _style(bases, trajectory.messages)
    roles = _roles(bases, trajectory.messages)
    messages = {}
    for index, (base, message) in enumerate(zip(bases, trajectory.messages, strict=True)):
        if fields := _message_fields(base, message, roles.get(message.role, {}), style):
            messages[str(index)] = fields
    return Slot(
        digest=digest_of(read.messages),
        trajectory=_differences(read, trajectory, _TRAJECTORY_FIELDS),
        contexts=None if _same(read.contexts, trajectory.contexts) else write_contexts(trajectory.contexts, tools),
        arguments=style,
        layout=None if places == list(range(len(read.messages))) else places,
        roles=msgspec.to_builtins(roles),
        messages=messages,
    )


def slot_value(slot: Slot) -> dict[str, Any]:
    """A slot as a JSON value."""
    value: dict[str, Any] = msgspec.to_builtins(slot)
    return {"version": slot.version, **value}


def slot_text(slots: Sequence[Slot]) -> str:
    """Slots as JSON text, for columns of tables: an object for one, a list for several."""
    values = [slot_value(slot) for slot in slots]
    return msgspec.json.encode(values[0] if len(values) == 1 else values).decode()


def _same(one: object, other: object) -> bool:
    """Equal as JSON: 1 is not 1.0 and not true; the order of keys does not count."""
    if one is other:
        return True
    if type(one) is not type(other) or one != other:
        return False
    # What is equal to Python may still hold 1 here and 1.0 there, 0.0 here and -0.0 there.
    is_plain = isinstance(one, (str, bool)) or (isinstance(one, (list, dict)) and not one)
    return is_plain or _encoder.encode(one) == _encoder.encode(other)


def _differences(read: object, wanted: object, fields: Sequence[str]) -> dict[str, Any]:
    found = {}
    for name in fields:
        value = getattr(wanted, name)
        if not _same(getattr(read, name), value):
            found[name] = msgspec.to_builtins(value)
    return found


def _roles(bases: Sequence[Message], messages: Sequence[Message]) -> dict[str, dict[str, Any]]:
    """What most messages of a role need to be told, so that it is said once."""
    found: dict[str, dict[str, Any]] = {}
    for name in _SHARED_FIELDS:
        pairs = zip(bases, messages, strict=True)
        told = [_same(getattr(base, name), getattr(message, name)) for base, message in pairs]
        if told.count(False) < 2:
            continue
        counts: Counter[tuple[str, bytes]] = Counter()
        values: dict[bytes, Any] = {}
        for is_told, message in zip(told, messages, strict=True):
            value = getattr(message, name)
            key = _encoder.encode(value)
            values[key] = value
            counts[message.role, key] += -1 if is_told else 1
        for (role, key), count in counts.most_common():
            if count > 1 and name not in found.get(role, {}):
                found.setdefault(role, {})[name] = values[key]
    return found


def _message_fields(base: Message, message: Message, shared: dict[str, Any], style: str | None) -> dict[str, Any]:
    fields = {}
    for name in _MESSAGE_FIELDS:
        value = getattr(message, name)
        if not _same(shared[name] if name in shared else getattr(base, name), value):
            fields[name] = msgspec.to_builtins(value)
    if not _same(base.content, message.content):
        fields["content"] = None if message.content is None else _content(base, message)
    if base.tool_calls or message.tool_calls:
        calls = _calls(base.tool_calls, message.tool_calls, style)
        if calls is not None:
            fields["tool_calls"] = calls
    return fields


def _content(base: Message, message: Message) -> list[dict[str, Any]]:
    text, after = flat_text(base), 0
    parts = []
    for part in message.content or ():
        value: dict[str, Any] = msgspec.to_builtins(part)
        if isinstance(part, (TextPart, ReasoningPart)) and len(part.text) >= _MIN_SLICE:
            start = text.find(part.text, after)
            start = text.find(part.text) if start < 0 else start
            if start >= 0:
                after = start + len(part.text)
                del value["text"]
                value["slice"] = [start, after]
        parts.append(value)
    return parts


def _style(bases: Sequence[Message], messages: Sequence[Message]) -> str | None:
    """The spelling of arguments that spares most calls a text of their own; None where none spares any."""
    counts: Counter[str] = Counter()
    for base, message in zip(bases, messages, strict=True):
        for known, call in zip(base.tool_calls, message.tool_calls, strict=False):
            arguments = known.arguments
            if arguments is None or not _same(arguments, call.arguments):
                continue
            is_told = known.arguments_raw == call.arguments_raw
            for name, spell in STYLES.items():
                fits = spell(arguments) == call.arguments_raw
                counts[name] += int(fits) - int(is_told)
    best = max(counts, key=lambda name: counts[name], default=None)
    return best if best is not None and counts[best] > 0 else None


def _calls(base: list[ToolCall], calls: list[ToolCall], style: str | None) -> dict[str, Any] | list[Any] | None:
    """What the calls of a record have to be told, by index; whole calls where their number differs; None: nothing."""
    if len(base) != len(calls):
        return [_call(ToolCall("", ""), call, None) for call in calls]
    found = {str(index): _call(known, call, style) for index, (known, call) in enumerate(zip(base, calls, strict=True))}
    found = {index: fields for index, fields in found.items() if fields}
    return found or None


def _call(base: ToolCall, call: ToolCall, style: str | None) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if style is not None and base.arguments is not None:
        base = msgspec.structs.replace(base, arguments_raw=STYLES[style](base.arguments))
    if base.arguments_raw != call.arguments_raw:
        fields["arguments_raw"] = call.arguments_raw
        base = tool_call(base.name, call.arguments_raw, id=base.id)
    return {**fields, **_differences(base, call, ToolCall.__struct_fields__)}
