"""The fast way through chat messages that hold nothing but the standard keys.

Most records of most logs are plain: string contents, tool calls with ids and string arguments. Those are decoded
straight into typed structs, several times faster than key by key. Whatever else a message holds, `decode_plain`
declines the whole list and `openai_messages` takes it apart; both give the same messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from offline_arl.trajectories.schema import UNKNOWN_PRODUCER, ContentPart, Message, Producer, TextPart, tool_call


class _Function(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    name: str
    arguments: str


class _Call(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    id: str
    function: _Function
    type: Literal["function"] = "function"


class PlainMessage(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A chat message with nothing but the standard keys."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    name: str | None = None


_decoder = msgspec.json.Decoder(list[PlainMessage])
_TOOL = Producer("environment")


def decode_plain(raw: bytes | msgspec.Raw) -> list[Message] | None:
    """The messages of the JSON text of a list, or None where one of them is not plain or the text is no list.

    >>> [message.text for message in decode_plain(b'[{"role": "user", "content": "hello"}]')]
    ['hello']
    >>> decode_plain(b'[{"role": "user", "content": "hello", "weight": 0}]') is None
    True
    """
    try:
        plain = _decoder.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return plain_messages(plain)


def plain_messages(plain: Sequence[PlainMessage]) -> list[Message] | None:
    """The messages, or None where there are none or one of them is not plain.

    A tool result without the id of its call is not plain: it has to be paired.
    """
    messages: list[Message] = []
    for message in plain:
        content, role, calls, call_id = message.content, message.role, message.tool_calls, message.tool_call_id
        parts: list[ContentPart] | None = None if content is None else [TextPart(content)]
        if role == "tool":
            if call_id is None or calls:
                return None
            messages.append(Message(role, parts, [], call_id, message.name, None, _TOOL))
        elif calls:
            converted = [tool_call(call.function.name, call.function.arguments, id=call.id) for call in calls]
            messages.append(Message(role, parts, converted, call_id, message.name, None, UNKNOWN_PRODUCER))
        else:
            messages.append(Message(role, parts, [], call_id, message.name, None, UNKNOWN_PRODUCER))
    return messages or None
