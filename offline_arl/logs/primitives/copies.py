"""Turns that stand in more than one trajectory: each is a step once, and a copy wherever else it stands."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from offline_arl.trajectories.schema import Message, Producer, is_policy_message


def as_copy(message: Message) -> Message:
    """The message as context; only a turn of the policy changes, into a copy."""
    if not is_policy_message(message):
        return message
    return msgspec.structs.replace(message, producer=Producer("copy", message.producer.name))


def with_copied_start(messages: Iterable[Message], length: int) -> list[Message]:
    """The messages of a branch whose first `length` messages are steps of the trajectory that it forks from."""
    return [as_copy(message) if index < length else message for index, message in enumerate(messages)]
