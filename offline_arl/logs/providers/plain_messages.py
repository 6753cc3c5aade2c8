"""The fast way through chat messages that hold nothing but the standard keys.

Most records of most logs are plain: string contents, tool calls with ids and string arguments. Those are decoded
straight into typed structs, several times faster than key by key. Whatever else a message holds, `decode_plain`
declines the whole list and `openai_messages` takes it apart; both give the same messages.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from offline_arl.trajectories.schema import ContentPart, Message, Producer, TextPart, ToolCall, tool_call


class _Function(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    name: str
    arguments: str


class _Call(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    id: str
    function: _Function
    type: Literal["function"] = "function"


class _PlainMessage(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    name: str | None = None


_decoder = msgspec.json.Decoder(list[_PlainMessage])
_TOOL = Producer("environment")
_UNKNOWN = Producer()


def decode_plain(raw: bytes | msgspec.Raw) -> list[Message] | None:
    """The messages of the JSON text of a list, or None where one of them is not plain or the text is no list.

    A tool result without the id of its call is not plain: it has to be paired.

    >>> [message.text for message in decode_plain(b'[{"role": "user", "content": "hello"}]')]
    ['hello']
    >>> decode_plain(b'[{"role": "user", "content": "hello", "weight": 0}]') is None
    True
    """
    try:
        plain = _decoder.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return None
    messages: list[Message] = []
    for message in plain:
        content, role = message.content, message.role
        parts: list[ContentPart] | None = None if content is None else [TextPart(content)]
        if role == "tool":
            if message.tool_call_id is None or message.tool_calls:
                return None
            messages.append(Message(role, parts, [], message.tool_call_id, message.name, producer=_TOOL))
        elif message.tool_calls:
            calls = [_call(call) for call in message.tool_calls]
            messages.append(Message(role, parts, calls, message.tool_call_id, message.name, producer=_UNKNOWN))
        elif message.tool_call_id is None and message.name is None:
            messages.append(Message(role, parts, producer=_UNKNOWN))
        else:
            messages.append(Message(role, parts, [], message.tool_call_id, message.name, producer=_UNKNOWN))
    return messages or None


def _call(call: _Call) -> ToolCall:
    return tool_call(call.function.name, call.function.arguments, id=call.id)
