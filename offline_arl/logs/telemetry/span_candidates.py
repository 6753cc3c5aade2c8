"""The spans of a group that may hold a model call, each with the log records that belong to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.platforms.trace_operations import moment
from offline_arl.logs.telemetry.genai_semconv import DETAILS_EVENT, is_choice_event, is_message_event
from offline_arl.logs.telemetry.span_calls import kind_of, read_content
from offline_arl.logs.telemetry.span_fates import REPEATS_SPAN, Fates
from offline_arl.logs.telemetry.spans import Key, Span, SpanEvent, ancestors, span_key

Located = tuple[int, Span]

_OUTER = "an outer span: it repeats the first prompt and the last answer of steps that are not in its trace"
_OUTER_REPEATS = "repeats the calls of its steps"


@dataclass
class Candidate:
    """A span that may hold a model call.

    Attributes:
        pieces: Those of the span, and of log events that hold what it lacks.
        events: Message events in log records, which count where the span has no messages of its own.
        repeats: Pieces of log events that hold again all that the span holds.
    """

    span: Span
    pieces: list[int]
    events: list[SpanEvent] = field(default_factory=list)
    event_pieces: list[int] = field(default_factory=list)
    repeats: list[int] = field(default_factory=list)

    @property
    def is_from_logs(self) -> bool:
        """Whether the span itself is not in the log, only events of it."""
        return not self.pieces


def without_repeats(spans: Sequence[Located], fates: Fates) -> Iterator[Located]:
    """Drop spans and log records that were exported twice; of a span, the export that has its end stays."""
    chosen: dict[Any, Located] = {}
    for piece, span in spans:
        identity: Any = span_key(span)
        if span.is_log:
            identity = msgspec.json.encode(span)
        elif span.span_id is None:
            identity = (piece, id(span))  # without ids, equal calls may well be two
        known = chosen.get(identity)
        if known is not None and (span.ended_at is None or known[1].ended_at is not None):
            if known[0] != piece:
                fates.repeat([piece], "the same span was exported before")
            continue
        if known is not None:
            fates.repeat([known[0]], "the span was exported again when it had ended")
        chosen[identity] = (piece, span)
    yield from chosen.values()


def find_candidates(unique: Sequence[Located], by_key: dict[Key, Span], fates: Fates) -> list[Candidate]:
    """The candidates of a group, in the order of their pieces."""
    found: dict[Any, Candidate] = {}
    steps = [span for _, span in unique if not span.is_log and kind_of(span) == "model"]
    around_steps = {span_key(other) for step in steps for other in ancestors(step, by_key)}
    operations = {_place_of_step(step) for step in steps}
    for piece, span in unique:
        if span.is_log or span.is_reference:
            continue
        kind = kind_of(span)
        if kind == "outer" and not operations.isdisjoint(_places_of_steps(span)):
            fates.repeat([piece], _OUTER_REPEATS)
        elif kind == "outer":
            fates.put_apart([piece], _OUTER)
        elif kind == "model" or (kind == "agent" and span_key(span) not in around_steps):
            # An agent that runs elsewhere is one call: what it was asked and what it answered.
            found[span_key(span) if span.span_id is not None else (piece, id(span))] = Candidate(span, [piece])
    logs = [(piece, record) for piece, record in unique if record.is_log and not record.is_reference]
    for piece, record in logs:
        if record.name == DETAILS_EVENT:
            _add_details(found, piece, record, by_key, fates)
    events = [(piece, record, event_of(record)) for piece, record in logs]
    for piece, record, event in events:
        if is_message_event(event):
            _add_message(found, piece, record, event, by_key, fates)
    return list(found.values())


def event_of(record: Span) -> SpanEvent:
    """The event that a log record is."""
    return SpanEvent(record.name, record.started_at, record.attributes, record.body)


def _place_of_step(step: Span) -> tuple[str | None, str, str | None]:
    """Trace, outer operation ("ai.generateText") and parent of a step of the Vercel AI SDK."""
    operation = (step.text("ai.operationId") or "").rpartition(".")[0]
    return step.trace_id, operation, step.parent_id


def _places_of_steps(outer: Span) -> set[tuple[str | None, str, str | None]]:
    """Where the steps of an outer span may be; some exports drop the ids of parents."""
    operation = outer.text("ai.operationId") or ""
    return {(outer.trace_id, operation, None), (outer.trace_id, operation, outer.span_id)}


def _add_details(found: dict[Any, Candidate], piece: int, record: Span, by_key: dict[Key, Span], fates: Fates) -> None:
    """Take a log event that holds all of a call: what its span lacks, or a repetition of it."""
    key = span_key(record)
    candidate = found.get(key)
    if candidate is None:
        place = by_key.get(key)
        if place is not None and place.is_reference:
            fates.repeat([piece], REPEATS_SPAN)
        else:
            found[key] = Candidate(_span_of_log(record), [piece])
        return
    try:
        is_repeat = read_content(candidate.span) is not None
    except RecordRefusedError:
        is_repeat = False  # cut off in the span, perhaps whole in the event
    if is_repeat:
        candidate.repeats.append(piece)
    else:
        candidate.span.attributes = {**candidate.span.attributes, **record.attributes}
        candidate.pieces.append(piece)


def _add_message(
    found: dict[Any, Candidate], piece: int, record: Span, event: SpanEvent, by_key: dict[Key, Span], fates: Fates
) -> None:
    """Give a message event to the call in whose span it was written."""
    place = by_key.get(span_key(record))
    if place is not None and place.is_reference:
        fates.repeat([piece], REPEATS_SPAN)
        return
    candidate = found.get(span_key(record))
    if candidate is None and place is not None and is_choice_event(event):
        candidate = _waiting_call(found, record)
    if candidate is None:
        candidate = found[span_key(record)] = Candidate(_span_of_log(record), [])
    if candidate.is_from_logs:
        candidate.span.ended_at = record.started_at
    candidate.events.append(event)
    candidate.event_pieces.append(piece)


def _waiting_call(found: dict[Any, Candidate], record: Span) -> Candidate | None:
    """The call whose answer was written after its span had ended, as OpenLLMetry does with streams.

    It then lies in the span around the call. Where several calls wait for an answer, none can be told.
    """
    time = moment(record.started_at)
    waiting = [
        candidate
        for candidate in found.values()
        if candidate.span.trace_id == record.trace_id
        and candidate.span.parent_id == record.span_id
        and candidate.events
        and not any(map(is_choice_event, candidate.events))
        and moment(candidate.span.started_at) <= time
        and candidate.span.status != "error"
    ]
    return waiting[0] if len(waiting) == 1 else None


def _span_of_log(record: Span) -> Span:
    """A span for a log record whose own span is not in the log."""
    is_details = record.name == DETAILS_EVENT
    return Span(
        trace_id=record.trace_id,
        span_id=record.span_id,
        started_at=record.started_at,
        ended_at=record.started_at if is_details else None,
        attributes=dict(record.attributes) if is_details else {},
        rest=record.rest,
    )
