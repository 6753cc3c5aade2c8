"""OTLP JSON: the envelope in which OpenTelemetry's exporters and collectors write spans and log records.

One record (a line of a file exporter) is one exported batch: `resourceSpans` or `resourceLogs`, within them scopes,
within them spans or log records, whose attributes are lists of keys and tagged values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.primitives.values import as_list, as_object, as_text, json_type
from offline_arl.logs.telemetry.span_attributes import read_attributes, read_value
from offline_arl.logs.telemetry.spans import Span, SpanEvent, dropped_count, read_status, span_identity, time_text

_ENVELOPES = ("resourceSpans", "resource_spans", "resourceLogs", "resource_logs")
_METRICS = ("resourceMetrics", "resource_metrics")


def is_envelope(record: Any) -> bool:
    """Whether a parsed record is an OTLP envelope of spans, log records or metrics."""
    return isinstance(record, dict) and any(isinstance(record.get(key), list) for key in (*_ENVELOPES, *_METRICS))


def holds_metrics_only(record: dict[str, Any]) -> bool:
    """Whether an envelope has metrics and nothing else."""
    return not any(key in record for key in _ENVELOPES)


def read_envelope(record: dict[str, Any]) -> Iterator[Span]:
    """The spans and log records of an envelope, in order.

    Raises:
        RecordRefusedError: A span is not an object.
    """
    for kind, resource_key, scope_key, item_key in (
        ("span", "resourceSpans", "scopeSpans", "spans"),
        ("log", "resourceLogs", "scopeLogs", "logRecords"),
    ):
        for resource_index, resource in enumerate(as_list(_get(record, resource_key))):
            resource = as_object(resource)
            described = _without_sdk(read_attributes(as_object(resource.get("resource")).get("attributes")))
            scopes = as_list(_get(resource, scope_key)) or as_list(resource.get("instrumentationLibrarySpans"))
            for scope_index, scope in enumerate(scopes):
                scope = as_object(scope)
                rest: dict[str, Any] = {"resource": described} if described else {}
                if name := as_text(as_object(scope.get("scope")).get("name")):
                    rest["scope"] = name
                for index, item in enumerate(as_list(_get(scope, item_key))):
                    if not isinstance(item, dict):
                        where = f"{resource_key}[{resource_index}].{scope_key}[{scope_index}].{item_key}[{index}]"
                        raise RecordRefusedError(f"{where}: expected an object, got {json_type(item)}")
                    yield _span(item, rest) if kind == "span" else _log_record(item, rest)


def _span(item: dict[str, Any], rest: dict[str, Any]) -> Span:
    status = as_object(item.get("status"))
    return Span(
        name=as_text(item.get("name")) or "",
        trace_id=span_identity(_get(item, "traceId")),
        span_id=span_identity(_get(item, "spanId")),
        parent_id=span_identity(_get(item, "parentSpanId")),
        started_at=time_text(_get(item, "startTimeUnixNano")),
        ended_at=time_text(_get(item, "endTimeUnixNano")),
        status=read_status(status.get("code")),
        status_text=as_text(status.get("message")) or "",
        attributes=read_attributes(item.get("attributes")),
        events=[
            SpanEvent(
                as_text(event.get("name")) or "",
                time_text(_get(event, "timeUnixNano")),
                read_attributes(event.get("attributes")),
            )
            for event in as_list(item.get("events"))
            if isinstance(event, dict)
        ],
        dropped=dropped_count(_get(item, "droppedAttributesCount")),
        rest=rest | ({"links": item["links"]} if item.get("links") else {}),
    )


def _log_record(item: dict[str, Any], rest: dict[str, Any]) -> Span:
    attributes = read_attributes(item.get("attributes"))
    name = as_text(_get(item, "eventName")) or as_text(attributes.get("event.name")) or ""
    # An instrumentation may leave the time of the event to the SDK, which only notes when it saw it.
    time = time_text(_get(item, "timeUnixNano")) or time_text(_get(item, "observedTimeUnixNano"))
    return Span(
        name=name,
        trace_id=span_identity(_get(item, "traceId")),
        span_id=span_identity(_get(item, "spanId")),
        started_at=time,
        attributes=attributes,
        body=read_value(item.get("body")),
        dropped=dropped_count(_get(item, "droppedAttributesCount")),
        is_log=True,
        rest=rest,
    )


def _without_sdk(resource: dict[str, Any]) -> dict[str, Any]:
    """The resource without what names the exporting library, the same for all spans of all teams."""
    return {key: value for key, value in resource.items() if not key.startswith("telemetry.")}


def _get(item: dict[str, Any], key: str) -> Any:
    """A field by its JSON name, or by its protobuf name, which some writers keep."""
    if key in item:
        return item[key]
    return item.get("".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key))
