"""Exchanges with a model's provider: a request and its response, whoever logged them.

Recorded HTTP, proxies and programs that log what they send all have the same two bodies and differ in what stands
around them. Their adapters make an `Exchange` of each record; what the bodies say is read here, by interface.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from offline_arl.logs.adapter import Assembly, Fragment, Group, RecordRefusedError
from offline_arl.logs.primitives.times import iso_time
from offline_arl.logs.primitives.values import as_text, json_text
from offline_arl.logs.providers.interfaces import Interface, call_parts, whole_response
from offline_arl.logs.providers.openai_responses_calls import ResponseHistory, ResponseLink, with_history
from offline_arl.logs.stitching.stitch import ModelCall, assembly_of, conversation_key
from offline_arl.trajectories.schema import Message, MessageError, Producer, Score, Trajectory


class Exchange(msgspec.Struct, frozen=True, omit_defaults=True):
    """One exchange: the bodies, and what the log says besides.

    `response` is the parsed body: an object, the text of a stream, a list of its chunks, or None where there was no
    answer. `is_copy` says that a cache gave the answer: the model did not sample it anew. `cut_marker` is what the
    logger writes into a text of which it left out the middle.
    """

    interface: Interface
    request: dict[str, Any]
    response: Any = None
    status: int | None = None  # of HTTP
    error: MessageError | None = None
    is_copy: bool = False
    cut_marker: str | None = None
    call_id: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    session_id: str | None = None
    trace_id: str | None = None
    user_id: str | None = None
    parent_id: str | None = None
    name: str | None = None
    scores: list[Score] = []
    metadata: dict[str, Any] = {}


@dataclass(frozen=True)
class _Read:
    """An exchange whose response is one object."""

    exchange: Exchange
    response: dict[str, Any]


class _Converted(NamedTuple):
    call: ModelCall
    link: ResponseLink | None


def fragment(exchange: Exchange, *, by_trace: bool = True) -> Fragment:
    """What an exchange contributes to the conversation that it is part of.

    Args:
        exchange: The exchange.
        by_trace: Whether calls of one conversation, if they have no session, have the same trace.

    Raises:
        RecordRefusedError: It cannot be read.
    """
    payload, converted = _checked(exchange)
    return Fragment(_group_key(exchange, converted, by_trace), payload)


def file_fragment(exchange: Exchange) -> Fragment:
    """What an exchange contributes to its file, where a file is one run.

    Raises:
        RecordRefusedError: It cannot be read.
    """
    return Fragment(None, _checked(exchange)[0])


def _checked(exchange: Exchange) -> tuple[bytes, _Converted]:
    payload = json_text(exchange).encode()
    return payload, _convert(_read(msgspec.json.decode(payload, type=Exchange)), ())


def _group_key(exchange: Exchange, converted: _Converted, by_trace: bool) -> str | None:
    """Session, trace or the start of the conversation.

    A response that is stored may be followed by a request that holds nothing but its id, so without other ids the
    calls of a user, or else of a file, have to stay together.
    """
    if exchange.session_id is not None:
        return f"session\0{exchange.session_id}"
    if exchange.trace_id is not None and by_trace:
        return f"trace\0{exchange.trace_id}"
    link = converted.link
    if link is not None and link.conversation_id is not None:
        return f"conversation\0{link.conversation_id}"
    if link is not None and (link.previous_id is not None or exchange.request.get("store") is not False):
        user = as_text(exchange.request.get("safety_identifier")) or as_text(exchange.request.get("user"))
        return None if user is None else f"user\0{user}"
    return conversation_key(converted.call.messages)


def _read(exchange: Exchange) -> _Read:
    return _Read(exchange, whole_response(exchange.interface, exchange.response, exchange.status))


def assemble(group: Group) -> Assembly:
    """The trajectories of a group whose pieces are exchanges (`fragment` made them)."""
    exchanges = [msgspec.json.decode(piece.payload, type=Exchange) for piece in group.pieces]
    return assemble_exchanges([(exchange, (index,)) for index, exchange in enumerate(exchanges)], group)


def assemble_exchanges(exchanges: Sequence[tuple[Exchange, tuple[int, ...]]], group: Group) -> Assembly:
    """The trajectories of some exchanges, each with the pieces of the group that it was made from.

    The bodies of the exchanges are taken apart. Choices of one request, and answers to one prompt that was asked
    again, are one group of attempts.
    """
    refused: dict[int, str] = {}
    history = ResponseHistory()
    read: list[tuple[tuple[int, ...], _Read]] = []
    for exchange, pieces in exchanges:
        try:
            item = _read(exchange)
        except RecordRefusedError as error:
            refused.update(dict.fromkeys(pieces, str(error)))
            continue
        if exchange.interface == "responses":
            history.learn(item.response)
        read.append((pieces, item))
    converted: list[_Converted] = []
    for pieces, item in read:
        if item.exchange.interface == "responses":
            history.resolve(item.exchange.request)
        try:
            converted.append(_convert(item, pieces))
        except RecordRefusedError as error:
            refused.update(dict.fromkeys(pieces, str(error)))
    calls = with_history([item.call for item in converted], [item.link for item in converted])
    assembly = assembly_of(calls, group)
    assembly.trajectories = _grouped(assembly.trajectories)
    assembly.refused.update(refused)
    return assembly


def _grouped(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Give attempts at one prompt the id of the first of them as their group."""
    origins = {
        trajectory.trajectory_id: trajectory.branch.trajectory_id
        for trajectory in trajectories
        if trajectory.branch is not None and trajectory.metadata.get("relation") in ("choice", "regenerated")
    }
    roots: dict[str, str] = {}
    for name in origins:
        root, seen = name, {name}
        while root in origins and origins[root] not in seen:
            root = origins[root]
            seen.add(root)
        roots[name] = roots[root] = root
    return [
        trajectory
        if trajectory.trajectory_id not in roots or trajectory.group_id is not None
        else msgspec.structs.replace(trajectory, group_id=roots[trajectory.trajectory_id])
        for trajectory in trajectories
    ]


def _convert(item: _Read, pieces: tuple[int, ...]) -> _Converted:
    """The model call of an exchange; its bodies are taken apart."""
    exchange = item.exchange
    user_id = exchange.user_id or as_text(exchange.request.get("user"))
    parts, link = call_parts(exchange.interface, exchange.request, item.response)
    error = exchange.error or parts.error
    if error is None and exchange.status is not None and exchange.status >= 400:
        error = MessageError(f"http_{exchange.status}")
    messages, choices = parts.messages, parts.choices
    if exchange.is_copy:
        choices = [msgspec.structs.replace(choice, producer=Producer("copy", parts.model)) for choice in choices]
    if exchange.cut_marker is not None:
        messages = [_marked(message, exchange.cut_marker) for message in messages]
        choices = [_marked(choice, exchange.cut_marker) for choice in choices]
    call = ModelCall(
        messages=messages,
        choices=choices,
        pieces=pieces,
        call_id=exchange.call_id or parts.response_id,
        tools=parts.tools,
        started_at=exchange.started_at or iso_time(parts.created) or exchange.ended_at,
        ended_at=exchange.ended_at,
        model=parts.model,
        parent_id=exchange.parent_id,
        name=exchange.name,
        session_id=exchange.session_id or (None if link is None else link.conversation_id),
        user_id=user_id,
        trace_id=exchange.trace_id,
        truncated=parts.truncated,
        stop_reason=parts.stop_reason,
        error=error,
        scores=list(exchange.scores),
        metadata={**exchange.metadata, **parts.rest, **({"cache_hit": True} if exchange.is_copy else {})},
    )
    return _Converted(call, link)


def _marked(message: Message, cut_marker: str) -> Message:
    """Mark a message of which the logger left out a part: it is not what the model read or wrote."""
    texts = [message.text, message.reasoning, *(call.arguments_raw for call in message.tool_calls)]
    if not any(cut_marker in text for text in texts):
        return message
    return msgspec.structs.replace(
        message,
        trainable=False if message.role == "assistant" else message.trainable,
        metadata={**message.metadata, "cut_by_logger": True},
    )


def parsed_body(body: object) -> Any:
    """The value of a body that was logged as its text, where it is JSON; any other value as it is."""
    if not isinstance(body, str) or body.lstrip()[:1] not in ("{", "["):
        return body
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return body
