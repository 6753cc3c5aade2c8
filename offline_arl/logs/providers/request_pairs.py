"""Programs' own logs of requests and responses, one call a record, in the spellings that are common.

`{"request": ..., "response": ...}`, OpenPipe's `{"reqPayload", "respPayload"}`, `{"kwargs": ..., "response": ...}`,
dumps of HTTP (`{"request": {"url", "body"}, "response": {"status", "body"}}`), a request with its response beside the
other keys (`{"messages": ..., "response": ...}`), and OpenAI's batch files: the requests in one file, the responses
in another, joined by `custom_id`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import msgspec

from offline_arl.logs.adapter import (
    Assembly,
    Fragment,
    Group,
    RawRecord,
    RecordRefusedError,
    RecordSetApartError,
)
from offline_arl.logs.primitives.scores import make_score
from offline_arl.logs.primitives.times import iso_time
from offline_arl.logs.primitives.values import as_count, as_object, as_text, decode_object
from offline_arl.logs.providers.exchange import Exchange, assemble, assemble_exchanges, fragment, parsed_body
from offline_arl.logs.providers.interfaces import Interface, interface_of, interface_of_response
from offline_arl.trajectories.schema import MessageError, Score

REQUEST_KEYS = ("request", "reqPayload", "request_body", "requestBody", "kwargs")
RESPONSE_KEYS = ("response", "respPayload", "response_body", "responseBody", "completion", "chunks", "result", "output")
_SESSION_KEYS = ("session_id", "sessionId", "conversation_id", "conversationId", "thread_id", "threadId")
_TRACE_KEYS = ("trace_id", "traceId")
_USER_KEYS = ("user_id", "userId", "user")
_START_KEYS = (
    "started_at",
    "startedAt",
    "start_time",
    "startTime",
    "requestedAt",
    "request_time",
    "timestamp",
    "created_at",
)
_END_KEYS = ("ended_at", "endedAt", "end_time", "endTime", "receivedAt", "response_time")
_STATUS_KEYS = ("statusCode", "status_code", "http_status")
_SCORE_KEYS = ("score", "rating", "reward", "feedback", "scores")
_BATCH = "batch"


class _Pair(NamedTuple):
    """The bodies of a record and what stands around them."""

    request: Any
    response: Any
    url: str
    status: int | None
    rest: dict[str, Any]


class RequestPairsAdapter:
    """Reads records that hold a request and its response, and batch files."""

    name = "request_response"
    title = "requests and responses of OpenAI's or Anthropic's interfaces, as programs log them"
    keeps = "streamed answers, all choices, tools, token ids, sessions, users, times, errors, scores beside the bodies"
    lacks = "what another spelling of the keys around the bodies means (kept in the metadata)"

    def recognizes(self, record: Any) -> bool:
        """Whether the record holds a request of a known interface, with a response or an error, or is of a batch."""
        if not isinstance(record, dict):
            return False
        if _is_batch_request(record) or _is_batch_response(record):
            return True
        pair = _pair(record)
        return pair is not None and interface_of(pair.url, pair.request, pair.response) is not None

    def fragments(self, record: RawRecord) -> list[Fragment]:
        """The one call of a record, or its half of a batch's exchange."""
        fields = decode_object(record.raw)
        if _is_batch_request(fields) or _is_batch_response(fields):
            return [Fragment(f"{_BATCH}\0{fields['custom_id']}", record.raw)]
        pair = _pair(fields)
        if pair is None:
            raise RecordRefusedError("expected a request and a response")
        interface = interface_of(pair.url, pair.request, pair.response)
        if interface is None:
            raise RecordSetApartError(f"is no call of a chat model{f': {pair.url}' if pair.url else ''}")
        return [fragment(_exchange(pair, interface))]

    def assemble(self, group: Group) -> Assembly:
        """The conversations of a group, or the exchanges of one custom id."""
        if group.key is not None and group.key.startswith(f"{_BATCH}\0"):
            return _assemble_batch(group)
        return assemble(group)


def _pair(record: dict[str, Any]) -> _Pair | None:
    request_key = next((key for key in REQUEST_KEYS if isinstance(record.get(key), (dict, str))), None)
    response_key = next((key for key in RESPONSE_KEYS if key in record), None)
    if request_key is None:
        return _flat_pair(record, response_key)
    if response_key is None and not _error_fields(record):
        return None
    request = parsed_body(record[request_key])
    if isinstance(request, dict) and "uri" in request:
        return None  # an interaction of a cassette
    response = None if response_key is None else parsed_body(record[response_key])
    rest = {key: value for key, value in record.items() if key not in (request_key, response_key)}
    url, status = as_text(rest.pop("url", None)) or "", _status(rest)
    if isinstance(request, dict) and "messages" not in request and "input" not in request:
        inner = next((key for key in ("body", "json", "kwargs", "payload") if key in request), None)
        if inner is not None:
            url = url or as_text(request.get("url")) or as_text(request.get("path")) or ""
            rest["http_request"] = {
                key: value for key, value in request.items() if key not in (inner, "url", "headers", "method")
            }
            request = parsed_body(request[inner])
    if isinstance(response, dict) and "body" in response and "choices" not in response:
        status = _status(response) if status is None else status
        rest["http_response"] = {key: value for key, value in response.items() if key not in ("body", "headers")}
        response = parsed_body(response["body"])
    return _Pair(request, response, url, status, {key: value for key, value in rest.items() if value != {}})


def _flat_pair(record: dict[str, Any], response_key: str | None) -> _Pair | None:
    """A request whose response stands beside its own keys."""
    if response_key is None or not isinstance(record.get("messages"), list):
        return None
    response = parsed_body(record[response_key])
    if interface_of_response(response) is None:
        return None
    around = {*_SESSION_KEYS, *_TRACE_KEYS, *_START_KEYS, *_END_KEYS, *_STATUS_KEYS, *_SCORE_KEYS, "user_id", "userId"}
    kept = {"id", "metadata", "tags"}
    request = {key: value for key, value in record.items() if key not in around | kept and key != response_key}
    rest = {key: value for key, value in record.items() if key in around | kept and key != response_key}
    return _Pair(request, response, "", _status(rest), rest)


def _exchange(pair: _Pair, interface: Interface) -> Exchange:
    rest = dict(pair.rest)
    extra = as_object(rest.get("metadata")) or as_object(rest.get("tags"))
    return Exchange(
        interface=interface,
        request=pair.request,
        response=pair.response,
        status=pair.status,
        error=_error_fields(rest, take=True),
        call_id=_take(rest, ("request_id", "requestId", "id", "call_id")),
        started_at=iso_time(_take_any(rest, _START_KEYS)),
        ended_at=iso_time(_take_any(rest, _END_KEYS)),
        session_id=_take(rest, _SESSION_KEYS) or _text_of(extra, _SESSION_KEYS) or _request_session(pair.request),
        trace_id=_take(rest, _TRACE_KEYS) or _text_of(extra, _TRACE_KEYS),
        user_id=_take(rest, _USER_KEYS) or _text_of(extra, _USER_KEYS),
        name=_take(rest, ("name", "operation", "agent")),
        scores=_take_scores(rest),
        metadata={**({"url": pair.url} if pair.url else {}), **rest},
    )


def _request_session(request: dict[str, Any]) -> str | None:
    """The session among the metadata that the request itself carries."""
    return _text_of(as_object(request.get("metadata")), _SESSION_KEYS)


def _text_of(fields: dict[str, Any], keys: Sequence[str]) -> str | None:
    for key in keys:
        value = fields.get(key)
        if isinstance(value, (str, int)) and not isinstance(value, bool) and value != "":
            return str(value)
    return None


def _take(fields: dict[str, Any], keys: Sequence[str]) -> str | None:
    """Take the first of some keys that holds text or a whole number."""
    for key in keys:
        found = _text_of(fields, (key,))
        if found is not None:
            del fields[key]
            return found
    return None


def _take_any(fields: dict[str, Any], keys: Sequence[str]) -> Any:
    return next((fields.pop(key) for key in keys if iso_time(fields.get(key)) is not None), None)


def _status(fields: dict[str, Any]) -> int | None:
    for key in (*_STATUS_KEYS, "status"):
        status = as_count(fields.get(key))
        if status is not None and 100 <= status < 600:
            del fields[key]
            return status
    return None


def _error_fields(fields: dict[str, Any], *, take: bool = False) -> MessageError | None:
    """The error that stands beside the bodies: OpenPipe's `errorMessage`, or `error`."""
    for key in ("errorMessage", "error_message", "error"):
        value = fields.get(key)
        if not value or not isinstance(value, (str, dict)):
            continue
        if take:
            del fields[key]
        if isinstance(value, str):
            return MessageError("error", value)
        text = as_text(value.get("message")) or msgspec.json.encode(value).decode()
        return MessageError(str(value.get("type") or value.get("code") or "error"), text)
    return None


def _take_scores(fields: dict[str, Any]) -> list[Score]:
    scores: list[Score] = []
    for key in _SCORE_KEYS:
        value = fields.get(key)
        if key == "scores" and isinstance(value, dict):
            scores.extend(make_score(name, item) for name, item in value.items() if item is not None)
        elif isinstance(value, (bool, int, float, str)):
            scores.append(make_score(key, value))
        else:
            continue
        del fields[key]
    return scores


def _is_batch_request(record: dict[str, Any]) -> bool:
    return (
        isinstance(record.get("custom_id"), str)
        and isinstance(record.get("url"), str)
        and isinstance(record.get("body"), dict)
    )


def _is_batch_response(record: dict[str, Any]) -> bool:
    if not isinstance(record.get("custom_id"), str) or not {"response", "error"} <= record.keys():
        return False
    response = record["response"]
    return response is None or (isinstance(response, dict) and "status_code" in response)


def _assemble_batch(group: Group) -> Assembly:
    """Join the requests and responses of one custom id, which other batches may use too.

    A response belongs to the one request of its folder, or else to the only request there is.
    """
    requests: list[int] = []
    responses: list[int] = []
    records = [msgspec.json.decode(piece.payload, type=dict[str, Any]) for piece in group.pieces]
    for index, record in enumerate(records):
        (requests if _is_batch_request(record) else responses).append(index)
    fates = Assembly()
    exchanges: list[tuple[Exchange, tuple[int, ...]]] = []
    answered: set[int] = set()
    for index in responses:
        found = _requests_of(index, requests, group)
        if len(found) != 1:
            reason = "several batches use it" if found else "the requests of its batch are not among the files"
            fates.refused[index] = f"custom_id {records[index]['custom_id']!r}: {reason}"
            continue
        request = found[0]
        answered.add(request)
        try:
            exchange = _batch_exchange(records[request], records[index])
        except RecordSetApartError as error:
            fates.set_apart.update(dict.fromkeys((request, index), str(error)))
        else:
            exchanges.append((exchange, (request, index)))
    fates.set_apart.update(
        (index, "a request of a batch, without its response") for index in requests if index not in answered
    )
    if not exchanges:
        return fates
    assembly = assemble_exchanges(exchanges, group)
    assembly.refused.update(fates.refused)
    assembly.set_apart.update(fates.set_apart)
    return assembly


def _requests_of(response: int, requests: Sequence[int], group: Group) -> list[int]:
    """The requests that a response may belong to: those of its folder, or else all; the same one twice is one."""

    def folder(index: int) -> str:
        return str(PurePosixPath(group.pieces[index].label).parent)

    near = [index for index in requests if folder(index) == folder(response)] or list(requests)
    by_content = {group.pieces[index].sha256: index for index in reversed(near)}
    return sorted(by_content.values())


def _batch_exchange(request: dict[str, Any], record: dict[str, Any]) -> Exchange:
    """The exchange of a line of each file.

    Raises:
        RecordSetApartError: It is no call of a chat model.
    """
    response, url = as_object(record.get("response")), request["url"]
    body = parsed_body(response.get("body"))
    sent: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(request["body"]))
    interface = interface_of(url, sent, body)
    if interface is None:
        raise RecordSetApartError(f"is no call of a chat model: {url}")
    return Exchange(
        interface=interface,
        request=sent,
        response=body,
        status=as_count(response.get("status_code")),
        error=_error_fields(record),
        call_id=as_text(record.get("id")),
        session_id=_request_session(sent),
        metadata={"url": url, "custom_id": request["custom_id"]},
    )
