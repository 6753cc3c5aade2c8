"""Telemetry spans as trajectories: OTLP JSON, and spans in flat layouts.

The spans of a group become model calls, which `stitch` joins. Spans that only surround or repeat model calls, and
log records that repeat their span, are accounted for and left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from offline_arl.logs.adapter import Assembly, Fragment, Group, RawRecord, RecordSetApartError
from offline_arl.logs.primitives.values import as_object, decode_object
from offline_arl.logs.telemetry.otlp import holds_metrics_only, is_envelope, read_envelope
from offline_arl.logs.telemetry.span_assembly import assemble_spans
from offline_arl.logs.telemetry.span_groups import fragments_of, spans_of
from offline_arl.logs.telemetry.spans import is_flat_span, read_flat_span


class OTLPAdapter:
    """Reads OTLP JSON: traces and logs, as file exporters and collectors write them."""

    name = "otlp"
    title = "OpenTelemetry spans and logs (OTLP JSON)"
    keeps = "sessions, users, sub-agents, tool runs, errors, usage, evaluation events, resource and unknown attributes"
    lacks = "messages that were not captured (capture is off by default) or were cut by attribute limits"

    def recognizes(self, record: Any) -> bool:
        """Whether the record is an OTLP envelope."""
        return is_envelope(record)

    def fragments(self, record: RawRecord) -> list[Fragment]:
        """The spans and log records of one exported batch, by trace and session."""
        fields = decode_object(record.raw)
        if not is_envelope(fields) or holds_metrics_only(fields):
            raise RecordSetApartError(
                "holds metrics, no spans or logs" if is_envelope(fields) else "is no OTLP envelope"
            )
        spans = list(read_envelope(fields))
        if not spans:
            raise RecordSetApartError("the envelope holds no spans and no log records")
        return fragments_of(spans)

    def assemble(self, group: Group) -> Assembly:
        """The trajectories of a session or trace."""
        return assemble_spans(group, spans_of(_payloads(group)))


class FlatSpansAdapter:
    """Reads one span a record, as SDKs print them, Phoenix exports them, and libraries save their attributes."""

    name = "otel_spans"
    title = "Telemetry spans, one a record (OpenTelemetry SDKs, OpenInference, Phoenix, Vercel AI SDK)"
    keeps = "sessions, users, sub-agents, tool runs, errors, usage, unknown attributes"
    lacks = "messages that were not captured or were cut by attribute limits; Phoenix annotations are separate files"

    def recognizes(self, record: Any) -> bool:
        """Whether the record is a span, the attributes of one, or the schema of an attribute."""
        return next(_items(record), None) is not None or _is_schema(record)

    def fragments(self, record: RawRecord) -> list[Fragment]:
        """The span, by trace and session."""
        fields = decode_object(record.raw)
        if _is_schema(fields):
            raise RecordSetApartError(f"is the JSON Schema {fields.get('title')!r}, not a log")
        spans = [read_flat_span(item) for item in _items(fields)]
        if not spans:
            raise RecordSetApartError("is no span: it has neither ids nor attributes of a model call")
        return fragments_of(spans)

    def assemble(self, group: Group) -> Assembly:
        """The trajectories of a session or trace."""
        return assemble_spans(group, spans_of(_payloads(group)))


def _items(record: Any) -> Iterator[dict[str, Any]]:
    """The spans of a record: itself, or those of a page of Phoenix's API (`{"data": [...], "next_cursor": ...}`)."""
    fields = as_object(record)
    items = fields["data"] if isinstance(fields.get("data"), list) and "next_cursor" in fields else [fields]
    for item in items:
        if is_flat_span(item):
            yield item


def _payloads(group: Group) -> Iterable[bytes]:
    return (piece.payload for piece in group.pieces)


def _is_schema(record: Any) -> bool:
    """Whether a record is the published JSON Schema of messages, which lies beside logs in some repositories."""
    definitions = as_object(as_object(record).get("$defs"))
    return "ChatMessage" in definitions or "OutputMessage" in definitions
