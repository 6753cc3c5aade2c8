"""When two logged messages are the same message.

A log repeats a message many times, and rarely in the same words: the answer of one call comes back in the next
prompt without its reasoning, with arguments that another JSON library wrote, with other ids, as a list of parts.
A key keeps what all those versions share, so equal keys mean "the same message again".
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from offline_arl.logs.stitching.system_prompts import without_volatile
from offline_arl.trajectories.schema import FilePart, ImagePart, Message, TextPart, ToolCall

# (role, text), and where there are any, attachments and tool calls. Compared by value, so there are no collisions.
MessageKey = tuple[str, str] | tuple[str, str, tuple[str, ...], tuple[str, ...]]

_WHOLE_FLOAT = re.compile(rb"(?<=\d)\.0+(?=[,}\]])")


class MessageKeys:
    """Computes keys; remembers the arguments that it has brought into canonical form."""

    def __init__(self) -> None:
        self._arguments: dict[str, str] = {}

    def of(self, message: Message) -> MessageKey:
        """The key of a message.

        Left out are reasoning, ids, metadata, white space around the text, and whether content is null, empty, a
        string or a list of parts. Roles "developer" and "system" are one.
        """
        content, role = message.content, message.role
        if role == "developer":
            role = "system"
        text = ""
        attachments: tuple[str, ...] = ()
        if content:
            if len(content) == 1 and type(part := content[0]) is TextPart:
                text = part.text
            else:
                text = message.text
                attachments = _attachments(message)
        elif message.metadata:
            attachments = _attachments(message)
        if "\r" in text:
            text = text.replace("\r\n", "\n")
        if role == "assistant" and "</think>" in text:
            text = text.rpartition("</think>")[2]
        text = text.strip()
        if not message.tool_calls:
            return (role, text, attachments, ()) if attachments else (role, text)
        calls = tuple([f"{call.name}\0{self._canonical(call)}" for call in message.tool_calls])
        return (role, text, attachments, calls)

    def _canonical(self, call: ToolCall) -> str:
        raw = call.arguments_raw
        known = self._arguments.get(raw)
        if known is None:
            known = self._arguments[raw] = canonical_arguments(call)
        return known


def canonical_arguments(call: ToolCall) -> str:
    r"""The arguments of a call in one form: keys sorted, no spaces, whole numbers without a fraction.

    >>> from offline_arl.trajectories.schema import tool_call
    >>> canonical_arguments(tool_call("f", '{"b": 1.0, "a": "\u00e9"}'))
    '{"a":"é","b":1}'
    """
    if call.arguments is None:
        return call.arguments_raw.strip()
    try:
        encoded = msgspec.json.encode(call.arguments, order="deterministic")
    except (ValueError, OverflowError, TypeError, RecursionError):  # lone surrogates, numbers beyond 64 bits
        return call.arguments_raw.strip()
    return (_WHOLE_FLOAT.sub(b"", encoded) if b".0" in encoded else encoded).decode()


def _attachments(message: Message) -> tuple[str, ...]:
    """What a message holds beside text, reasoning and calls; parts of unknown kinds by their JSON."""
    found = [part.uri for part in message.content or () if isinstance(part, (ImagePart, FilePart))]
    others = message.metadata.get("other_parts")
    if others is not None:
        found.append(_json(others))
    return tuple(found)


def _json(value: Any) -> str:
    try:
        return msgspec.json.encode(value, order="deterministic").decode()
    except (ValueError, OverflowError, TypeError):
        return repr(value)
    except RecursionError:
        return "nested too deeply"


def conversation_digest(messages: Sequence[Message]) -> str:
    """A digest of the messages up to and including the first of the user, volatile parts of prompts left out.

    Without a message of the user it covers what comes before the first answer, and at least one message.
    """
    digest = hashlib.blake2b(digest_size=16)
    keys = MessageKeys()
    for index, message in enumerate(messages):
        if message.role == "assistant" and index and not any(item.role == "user" for item in messages[index:]):
            break
        key = keys.of(message)
        if key[0] == "system":
            key = ("system", without_volatile(key[1]))
        update_digest(digest, key)
        if message.role == "user":
            break
    return digest.hexdigest()


def update_digest(digest: hashlib.blake2b, key: MessageKey) -> None:
    """Add a key to a digest so that no two sequences of keys give the same bytes."""
    for text in _texts(key):
        raw = text.encode(errors="surrogatepass")
        digest.update(len(raw).to_bytes(8, "little"))
        digest.update(raw)
    digest.update(b"\xff" * 8)


def _texts(key: MessageKey) -> Iterable[str]:
    yield key[0]
    yield key[1]
    if len(key) == 4:
        yield from key[2]
        yield "\0calls"
        yield from key[3]
