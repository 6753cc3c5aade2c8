"""Recorded HTTP (cassettes of vcrpy, pytest-recording, Ruby's VCR and betamax), one interaction a record.

The calls of a cassette belong together. What is no call of a chat model (uploads of traces, embeddings, lists of
models) is set apart. `containers.cassette` cuts the files.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import Any
from urllib.parse import urlsplit

from offline_arl.errors import MissingDependencyError
from offline_arl.logs.adapter import (
    Assembly,
    Fragment,
    Group,
    RawRecord,
    RecordRefusedError,
    RecordSetApartError,
)
from offline_arl.logs.primitives.times import http_date, iso_time
from offline_arl.logs.primitives.values import as_count, as_object, as_text, decode_object
from offline_arl.logs.providers.exchange import Exchange, assemble, file_fragment, parsed_body
from offline_arl.logs.providers.interfaces import interface_of
from offline_arl.optional import require

MAX_BODY_BYTES = 64 * 2**20
_GZIP = b"\x1f\x8b"
_ZSTANDARD = b"\x28\xb5\x2f\xfd"
# Headers worth keeping: who answered what; the others are about the connection.
_KEPT_HEADERS = ("x-request-id", "request-id", "openai-organization", "traceparent", "x-stainless-retry-count")


class CassetteAdapter:
    """Reads interactions of recorded HTTP with the interfaces of OpenAI, Anthropic and Gemini."""

    name = "vcr"
    title = "recorded HTTP of model calls (VCR cassettes, YAML or JSON)"
    keeps = "streamed answers, tools, errors with their HTTP status, usage, request ids, sampling parameters"
    lacks = "rewards; recorded headers other than ids"

    def recognizes(self, record: Any) -> bool:
        """Whether the record has a request with method and URI and a response with a status."""
        request, response = as_object(record).get("request"), as_object(record).get("response")
        return (
            isinstance(request, dict)
            and isinstance(request.get("uri"), str)
            and isinstance(request.get("method"), str)
            and isinstance(response, dict)
            and "status" in response
        )

    def fragments(self, record: RawRecord) -> list[Fragment]:
        """The one call of an interaction, in the group of its cassette."""
        fields = decode_object(record.raw)
        request, response = as_object(fields.get("request")), as_object(fields.get("response"))
        url = as_text(request.get("uri"))
        if url is None or "status" not in response:
            raise RecordRefusedError("expected a request with a uri and a response with a status")
        sent = parsed_body(_text(_body(request), request, "request"))
        received = parsed_body(_text(_body(response), response, "response"))
        interface = interface_of(url, sent, received) if _method(request) == "POST" else None
        if interface is None or not isinstance(sent, dict):
            raise RecordSetApartError(f"is no call of a chat model: {_method(request)} {_place(url)}")
        headers = {**_headers(request), **_headers(response)}
        date = http_date(headers.get("date")) or iso_time(fields.get("recorded_at"))
        is_streamed = not isinstance(received, (dict, type(None)))
        return [
            file_fragment(
                Exchange(
                    interface=interface,
                    request=sent,
                    response=received,
                    status=_status(response),
                    # Headers leave when a stream begins, and when any other answer is ready.
                    started_at=date if is_streamed and interface in ("anthropic", "gemini") else None,
                    ended_at=None if is_streamed else date,
                    metadata=_metadata(url, headers),
                )
            )
        ]

    def assemble(self, group: Group) -> Assembly:
        """The conversations of a cassette."""
        return assemble(group)


def _method(request: dict[str, Any]) -> str:
    return (as_text(request.get("method")) or "?").upper()


def _place(url: str) -> str:
    """Host and path of a URL; what follows may hold keys."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "(an invalid URL)"
    return f"{parts.hostname or ''}{parts.path}"


def _metadata(url: str, headers: dict[str, str]) -> dict[str, Any]:
    kept = {name: headers[name] for name in _KEPT_HEADERS if name in headers}
    return {"url": url.split("?")[0], **({"headers": kept} if kept else {})}


def _headers(message: dict[str, Any]) -> dict[str, str]:
    """The first value of each header, by its name in lower case."""
    found = {}
    for name, value in as_object(message.get("headers")).items():
        first = value[0] if isinstance(value, list) and value else value
        if isinstance(first, str):
            found[name.lower()] = first
    return found


def _status(response: dict[str, Any]) -> int | None:
    status = response.get("status")
    return as_count(status.get("code") if isinstance(status, dict) else status)


def _body(message: dict[str, Any]) -> Any:
    """The body of a request or response: text, bytes, or the value where the recorder had parsed it."""
    if "parsed_body" in message:
        return message["parsed_body"]
    body = message.get("body", message.get("content"))
    if not isinstance(body, dict) or not body.keys() & {"string", "base64_string", "encoding"}:
        return body
    if isinstance(body.get("string"), dict):
        body = body["string"]
    encoded = body.get("base64_string")
    if encoded is None:
        return body.get("string")
    try:
        return base64.b64decode(encoded, validate=False)
    except (binascii.Error, TypeError, ValueError) as error:
        raise RecordRefusedError(f"body: is not base64: {error}") from error


def _text(body: Any, message: dict[str, Any], where: str) -> Any:
    """The text of bytes, uncompressed."""
    if not isinstance(body, bytes):
        return body
    encoding = _headers(message).get("content-encoding", "").lower()
    try:
        return _uncompressed(body, encoding).decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise RecordRefusedError(f"{where}.body: cannot be read: {error}") from error
    except MissingDependencyError as error:
        raise RecordRefusedError(f"{where}.body: {error}") from error


def _uncompressed(data: bytes, encoding: str) -> bytes:
    # The bytes tell more than the header, which recorders keep when they have uncompressed the body.
    if data.startswith(_GZIP):
        return _inflate(data, 31)
    if data.startswith(_ZSTANDARD):
        decompressor = require("zstandard", extra="logs").ZstdDecompressor(max_window_size=2**27)
        with decompressor.stream_reader(data) as reader:
            return _limited(reader.read(MAX_BODY_BYTES + 1))
    if encoding in ("deflate", "br") and data[:1] not in (b"{", b"[") and not data.startswith((b"data:", b"event:")):
        return _brotli(data) if encoding == "br" else _inflate(data, 15 if data[:1] == b"\x78" else -15)
    return data


def _inflate(data: bytes, window: int) -> bytes:
    return _limited(zlib.decompressobj(wbits=window).decompress(data, MAX_BODY_BYTES + 1))


def _brotli(data: bytes) -> bytes:
    brotli = require("brotli", extra="logs")
    try:
        return _limited(bytes(brotli.Decompressor().process(data, output_buffer_limit=MAX_BODY_BYTES + 1)))
    except brotli.error as error:
        raise RecordRefusedError(f"the body is not Brotli: {error}") from error


def _limited(data: bytes) -> bytes:
    if len(data) > MAX_BODY_BYTES:
        raise RecordRefusedError(f"a body unpacks to more than {MAX_BODY_BYTES} bytes")
    return data
