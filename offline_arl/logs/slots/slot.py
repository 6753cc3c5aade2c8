"""The slot itself: its shape in JSON, and finding it in a record."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, TypeGuard

import msgspec

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.trajectories.schema import Message

KEY = "offline_arl"
VERSION = 1


class SlotContext(msgspec.Struct, frozen=True, omit_defaults=True):
    """A context. Its tools are names of tools in the record, or definitions; `text` where these do not spell them."""

    start: int
    tools: list[str | dict[str, Any]] | None = None
    text: str | None = None
    tools_id: str | None = None
    system_id: str | None = None


class Slot(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a record does not say of a trajectory.

    Attributes:
        version: Of this shape.
        digest: Of the record's own messages (`digest_of`): where another tool changed them, what is said of them here
            does not hold any more.
        trajectory: Fields of the trajectory, in place of what the adapter makes of the record.
        contexts: Its contexts, likewise.
        arguments: How arguments are spelled that the record holds as objects (see `arguments.STYLES`).
        layout: For each message of the trajectory, the message of the record that holds it; None where none does.
            Missing: the same messages in the same order.
        roles: Fields of all messages of a role.
        messages: Fields of single messages, by their index in the trajectory; these have the last word.
    """

    version: int = VERSION
    digest: str = ""
    trajectory: dict[str, Any] = {}
    contexts: list[SlotContext] | None = None
    arguments: str | None = None
    layout: list[int | None] | None = None
    roles: dict[str, dict[str, Any]] = {}
    messages: dict[str, dict[str, Any]] = {}


def digest_of(messages: Sequence[Message]) -> str:
    """What tells whether messages are still those of an export: roles, texts and calls, nothing around them."""
    seen = [
        (
            message.role,
            message.text,
            message.reasoning,
            [(call.name, call.arguments_raw) for call in message.tool_calls],
        )
        for message in messages
    ]
    return hashlib.blake2b(msgspec.json.encode(seen), digest_size=8).hexdigest()


def take_slots(fields: dict[str, Any]) -> list[Slot]:
    """Take the slot out of a record, or the slots where it holds several trajectories; none where it has none.

    Another program's key of the same name stays where it is.

    Raises:
        RecordRefusedError: It is a slot, and cannot be read.
    """
    value = fields.get(KEY)
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError) as error:
            raise RecordRefusedError(f"{KEY}: the text is not JSON: {error}") from error
    values = [item for item in (value if isinstance(value, list) else [value]) if _is_slot(item)]
    if not values or (isinstance(value, list) and len(values) != len(value)):
        return []
    del fields[KEY]
    return [_slot(item) for item in values]


def take_slot(fields: dict[str, Any]) -> Slot | None:
    """Take the slot out of a record that holds one trajectory; None where there is none.

    Raises:
        RecordRefusedError: It cannot be read, or there are several.
    """
    found = take_slots(fields)
    if len(found) > 1:
        raise RecordRefusedError(f"{KEY}: expected one slot, got {len(found)}")
    return found[0] if found else None


def _is_slot(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict) and type(value.get("version")) is int


def _slot(value: dict[str, Any]) -> Slot:
    if value["version"] != VERSION:
        raise RecordRefusedError(f"{KEY}.version: {value['version']} is of a newer version of this program; update it")
    try:
        return msgspec.convert(value, Slot)
    except (msgspec.ValidationError, RecursionError) as error:
        raise RecordRefusedError(f"{KEY}: {error}") from error
