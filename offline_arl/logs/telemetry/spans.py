"""Spans and span events of any telemetry log in one form, and how the flat layouts of them are read.

The same span has many spellings: OTLP JSON (`otlp.py`), the Python SDK's `to_json` (`context.trace_id` with "0x",
`start_time` in ISO 8601), the JavaScript SDK's objects (`spanContext`, times as `[seconds, nanoseconds]`), Phoenix
exports and data frames (columns `context.span_id` and `attributes.llm.input_messages`), and bare attribute objects.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from offline_arl.logs.primitives.times import iso_time
from offline_arl.logs.primitives.values import as_list, as_object, as_text
from offline_arl.logs.telemetry.span_attributes import read_attributes

Status = Literal["ok", "error"]
Key = tuple[str | None, str | None]  # trace id, span id

_MAX_DEPTH = 64  # deeper nesting is no program's; without a bound, a hostile log would take quadratic time
_HEX = frozenset("0123456789abcdef")
# Beginnings of attribute keys that no other kind of record has; a bare object of attributes is known by them.
_ATTRIBUTE_PREFIXES = (
    "gen_ai.",
    "openinference.span.kind",
    "llm.input_messages",
    "llm.output_messages",
    "llm.request.",
    "ai.operationId",
    "traceloop.",
)


class SpanEvent(msgspec.Struct, omit_defaults=True):
    """Something that happened in a span. Log records that belong to a span are read as events of it."""

    name: str
    time: str | None = None
    attributes: dict[str, Any] = {}
    body: Any = None


class Span(msgspec.Struct, omit_defaults=True):
    """One span, or one log record (`is_log`; `body` is its body, `span_id` the span in which it was written).

    `is_reference` marks a span that is read in the group of its session: in the group of its trace it stands only
    for its place in the tree. `dropped` counts the attributes that the SDK's limits removed. `rest` has what has no
    field here (resource, scope, links).
    """

    name: str = ""
    trace_id: str | None = None
    span_id: str | None = None
    parent_id: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    status: Status | None = None
    status_text: str = ""
    attributes: dict[str, Any] = {}
    events: list[SpanEvent] = []
    dropped: int = 0
    is_log: bool = False
    body: Any = None
    is_reference: bool = False
    rest: dict[str, Any] = {}

    def text(self, *keys: str) -> str | None:
        """The first of some attributes that is a string with something in it."""
        for key in keys:
            value = self.attributes.get(key)
            if isinstance(value, str) and value:
                return value
        return None


def is_flat_span(record: Any) -> bool:
    """Whether a parsed record is one span in a flat layout, or the bare attributes of one."""
    if not isinstance(record, dict):
        return False
    if isinstance(record.get("attributes"), (dict, list)) and isinstance(record.get("name"), str):
        context = as_object(record.get("spanContext", record.get("context")))
        return any(
            key in holder for holder in (context, record) for key in ("traceId", "trace_id", "spanId", "span_id")
        )
    if "context.span_id" in record or "context.trace_id" in record:
        return True
    return any(isinstance(key, str) and key.startswith(_ATTRIBUTE_PREFIXES) for key in record)


def read_flat_span(record: dict[str, Any]) -> Span:
    """The span of a record that `is_flat_span` accepts; unknown keys go to `rest`."""
    if not isinstance(record.get("attributes"), (dict, list)) and not any(key[:8] == "context." for key in record):
        return Span(name="", attributes=record)
    fields = dict(record)
    attributes = {}
    for key in [key for key in fields if key.startswith("attributes.")]:
        value = fields.pop(key)
        if value is not None:  # a data frame has every column in every row
            attributes[key.removeprefix("attributes.")] = value
    attributes.update(read_attributes(fields.pop("attributes", None)))
    context = as_object(fields.pop("spanContext", None) or fields.pop("context", None))
    parent = as_object(fields.pop("parentSpanContext", None))
    ids = {
        **context,
        **{key.removeprefix("context."): fields.pop(key) for key in list(fields) if key[:8] == "context."},
    }
    status, status_text = _status(fields)
    events = as_list(fields.pop("events", None))
    span = Span(
        name=as_text(fields.pop("name", None)) or "",
        trace_id=span_identity(_take(ids, "traceId", "trace_id") or _take(fields, "traceId", "trace_id")),
        span_id=span_identity(_take(ids, "spanId", "span_id") or _take(fields, "spanId", "span_id")),
        parent_id=span_identity(
            _take(parent, "spanId", "span_id")
            or _take(fields, "parentSpanId", "parent_id", "parent_span_id", "parentId")
        ),
        started_at=time_text(_take(fields, "startTime", "start_time", "start_time_unix_nano", "startTimeUnixNano")),
        ended_at=time_text(_take(fields, "endTime", "end_time", "end_time_unix_nano", "endTimeUnixNano")),
        status=status,
        status_text=status_text,
        attributes=attributes,
        events=[read_event(event) for event in events if isinstance(event, dict)],
        dropped=dropped_count(_take(fields, "droppedAttributesCount", "dropped_attributes_count")),
    )
    for key in ("span_kind", "openinference.span.kind"):
        kind = fields.pop(key, None)
        if isinstance(kind, str) and kind != "UNKNOWN":
            span.attributes.setdefault("openinference.span.kind", kind)
    span.rest = {key: value for key, value in fields.items() if value not in (None, [], {}, "")}
    return span


def read_event(event: dict[str, Any]) -> SpanEvent:
    """An event of a span in a flat layout."""
    time = _take(dict(event), "time", "timestamp", "time_unix_nano", "timeUnixNano")
    return SpanEvent(as_text(event.get("name")) or "", time_text(time), read_attributes(event.get("attributes")))


def _take(fields: dict[str, Any], *keys: str) -> Any:
    """Take the first of some keys that has a value out of an object, and drop the others."""
    values = [fields.pop(key, None) for key in keys]
    return next((value for value in values if value is not None), None)


def dropped_count(value: object) -> int:
    """How many attributes the SDK says it dropped; 0 where it does not say."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31 else 0


def _status(fields: dict[str, Any]) -> tuple[Status | None, str]:
    status = fields.pop("status", None)
    code, text = fields.pop("status_code", None), fields.pop("status_message", None)
    if isinstance(status, dict):
        code = status.get("code", status.get("status_code", code))
        text = status.get("message", status.get("description", text))
    elif status is not None:
        code = status
    return read_status(code), as_text(text) or ""


def read_status(code: object) -> Status | None:
    """The status of a span from its code: a number, "OK", "STATUS_CODE_ERROR"; None where it was not set."""
    if isinstance(code, bool) or not isinstance(code, (int, str)):
        return None
    name = str(code).rpartition("STATUS_CODE_")[2].upper()
    return "ok" if name in ("1", "OK") else "error" if name in ("2", "ERROR") else None


def span_identity(value: object) -> str | None:
    """A trace or span id as lower-case hexadecimal digits; None for a missing or all-zero one.

    Protobuf's own JSON mapping writes the bytes in base64, the OTLP one in hexadecimal; Python's SDK prints "0x"
    before it. What is none of these (an id that another system made up) stays as it is.

    >>> span_identity("0x8D2AEB6189B7BFF5"), span_identity("jSrrYYm3v/U="), span_identity("0000000000000000")
    ('8d2aeb6189b7bff5', '8d2aeb6189b7bff5', None)
    """
    if not isinstance(value, str):
        return None
    text = value.lower().removeprefix("0x")
    if len(text) in (16, 32) and _HEX.issuperset(text):
        return text if text.strip("0") else None
    if (len(value), value[-2:].count("=")) in ((12, 1), (24, 2)):
        try:
            return base64.b64decode(value, validate=True).hex()
        except binascii.Error:
            pass
    return value or None


def time_text(value: object) -> str | None:
    """A point in time as ISO 8601, from whatever `iso_time` reads or `[seconds, nanoseconds]`.

    >>> time_text("1795981389287752011"), time_text([1770131992, 242000000])
    ('2026-11-29T19:43:09.287752Z', '2026-02-03T15:19:52.242Z')
    """
    if isinstance(value, list):
        if len(value) != 2 or not all(isinstance(part, int) and 0 <= part < 2**53 for part in value):
            return None
        value = value[0] + value[1] / 1e9
    return iso_time(value)


def span_key(span: Span) -> Key:
    """What names a span among those of several traces; for a log record, the span in which it was written."""
    return span.trace_id, span.span_id


def ancestors(span: Span, by_key: dict[Key, Span]) -> Iterator[Span]:
    """The spans around a span, from the inside out; ends where one is missing, at a circle, or `_MAX_DEPTH` out."""
    seen = {span.span_id}
    current: Span | None = span
    while current is not None and current.parent_id not in seen and len(seen) <= _MAX_DEPTH:
        if current.parent_id is None:
            return
        seen.add(current.parent_id)
        current = by_key.get((span.trace_id, current.parent_id))
        if current is not None:
            yield current
