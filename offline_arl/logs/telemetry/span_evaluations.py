"""Events `gen_ai.evaluation.result`: judgements of model calls, in log records or as events of spans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from offline_arl.logs.adapter import Feedback
from offline_arl.logs.primitives.scores import make_score
from offline_arl.logs.stitching.stitch import ModelCall
from offline_arl.logs.telemetry.genai_semconv import EVALUATION_EVENT
from offline_arl.logs.telemetry.span_calls import kind_of, response_of
from offline_arl.logs.telemetry.span_candidates import Located, event_of
from offline_arl.logs.telemetry.span_fates import Fates
from offline_arl.logs.telemetry.spans import Key, Span, SpanEvent, span_key
from offline_arl.trajectories.schema import Score

_PREFIX = "gen_ai.evaluation."


def attach_evaluations(
    unique: Sequence[Located], calls: Sequence[ModelCall], by_key: dict[Key, Span], fates: Fates
) -> list[Feedback]:
    """Give evaluations to the calls that they judge, as feedback where those are in another group.

    What is judged is the response whose id the event has, else the span in which it was written where that is a
    model call, else the whole trace.
    """
    by_call = {call.call_id: call for call in calls if call.call_id is not None}
    by_response: dict[str, str] = {}
    for span in by_key.values():
        if span.span_id is not None and (response_id := response_of(span)) is not None:
            by_response[response_id] = span.span_id
    feedback: list[Feedback] = []
    for piece, place, event in _evaluation_events(unique):
        score = _score(event)
        response = event.attributes.get("gen_ai.response.id")
        call_id = by_response.get(response, response) if isinstance(response, str) else _call_id(place, by_key)
        judged = by_call.get(call_id) if call_id is not None else None
        if judged is not None:
            judged.scores.append(score)
        elif call_id is not None:
            feedback.append(Feedback("call", call_id, score))
        elif place.trace_id is not None:
            feedback.append(Feedback("trace", place.trace_id, score))
        else:
            fates.put_apart([piece], f"the evaluation {score.name!r} names neither a response nor a trace")
            continue
        fates.used.add(piece)
    return feedback


def _call_id(place: Span, by_key: dict[Key, Span]) -> str | None:
    """The id of the model call in whose span an event was written."""
    span = by_key.get(span_key(place))
    return span.span_id if span is not None and kind_of(span) == "model" else None


def _evaluation_events(unique: Sequence[Located]) -> Iterator[tuple[int, Span, SpanEvent]]:
    for piece, span in unique:
        if span.is_log:
            if span.name == EVALUATION_EVENT:
                yield piece, span, event_of(span)
        elif not span.is_reference:
            for event in span.events:
                if event.name == EVALUATION_EVENT:
                    yield piece, span, event


def _score(event: SpanEvent) -> Score:
    rest = dict(event.attributes)
    name, explanation = rest.pop(_PREFIX + "name", None), rest.pop(_PREFIX + "explanation", None)
    value, label = rest.pop(_PREFIX + "score.value", None), rest.pop(_PREFIX + "score.label", None)
    return make_score(name, value, label=label, comment=explanation, timestamp=event.time, metadata=rest)
