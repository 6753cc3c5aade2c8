"""From the spans of one group to trajectories, and what became of each record on the way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from offline_arl.logs.adapter import Assembly, Feedback, Group, RecordRefusedError
from offline_arl.logs.genai_semconv import DETAILS_EVENT, EVALUATION_EVENT, is_message_event
from offline_arl.logs.scores import make_score
from offline_arl.logs.span_calls import (
    agent_of,
    kind_of,
    model_call,
    read_content,
    response_of,
    session_of,
    user_of,
)
from offline_arl.logs.span_links import add_tool_results, link_sub_agents
from offline_arl.logs.spans import Span, SpanEvent, ancestors, span_key
from offline_arl.logs.stitch import ModelCall, stitch
from offline_arl.trajectories.schema import Message, Score

Key = tuple[str | None, str | None]

NO_CONTENT = "holds no messages: the instrumentation did not capture them (it has to be told to)"
_REFERENCE = "is read with its session"
_REPEATS_SPAN = "repeats the messages of its span"
_TOOL_RUN = "a tool run: call and result are among the messages of the model calls"
_SURROUNDS = "surrounds model calls and holds no messages of its own"


@dataclass
class Fates:
    """What became of the parts of each piece; a piece has one fate in the end.

    A piece of several spans (an exported batch) counts as used where one of them is; what was refused in it is told
    in the metadata of a trajectory.
    """

    used: set[int] = field(default_factory=set)
    refused: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    set_apart: dict[int, str] = field(default_factory=dict)
    duplicates: dict[int, str] = field(default_factory=dict)

    def settle(self, assembly: Assembly) -> None:
        """Give each piece its fate."""
        assembly.refused = {
            piece: "; ".join(dict.fromkeys(reasons))
            for piece, reasons in self.refused.items()
            if piece not in self.used
        }
        settled = self.used | assembly.refused.keys()
        assembly.set_apart = {piece: reason for piece, reason in self.set_apart.items() if piece not in settled}
        settled |= assembly.set_apart.keys()
        assembly.duplicates = {piece: reason for piece, reason in self.duplicates.items() if piece not in settled}
        hidden = [reason for piece, reasons in self.refused.items() if piece in self.used for reason in reasons]
        if hidden and assembly.trajectories:
            assembly.trajectories[0].metadata["refused_spans"] = hidden


@dataclass
class _Call:
    """A span that may hold a model call, with the pieces that it was read from."""

    span: Span
    pieces: list[int]
    events: list[SpanEvent] = field(default_factory=list)
    event_pieces: list[int] = field(default_factory=list)
    repeats: list[int] = field(default_factory=list)  # pieces of log events that hold all of the call


def assemble_spans(group: Group, spans: Sequence[tuple[int, Span]]) -> Assembly:
    """The trajectories of a group of spans and log records, and the fate of each piece."""
    fates = Fates()
    unique = list(_without_repeats(spans, fates))
    by_key = {span_key(span): span for _, span in unique if not span.is_log}
    calls = _model_calls(unique, by_key, fates)
    assembly = Assembly()
    assembly.feedback = _evaluations(unique, calls, by_key, fates)
    stitched = stitch(calls, group)
    assembly.trajectories = stitched.trajectories
    for index, reason in stitched.set_apart.items():
        fates.set_apart.update(dict.fromkeys(calls[index].pieces, reason))
    for index, call in enumerate(calls):
        if index not in stitched.set_apart:
            fates.used.update(call.pieces)
    link_sub_agents(assembly.trajectories, by_key)
    tools = [(piece, span) for piece, span in unique if not span.is_log and kind_of(span) == "tool"]
    fates.used.update(add_tool_results(assembly.trajectories, tools))
    for piece, span in unique:
        _account(piece, span, fates)
    fates.settle(assembly)
    return assembly


def _account(piece: int, span: Span, fates: Fates) -> None:
    """Give a piece a fate for a span that no step before has taken."""
    if piece in fates.used or piece in fates.refused or piece in fates.set_apart or piece in fates.duplicates:
        return
    if span.is_reference:
        fates.duplicates[piece] = _REFERENCE
    elif span.is_log:
        fates.set_apart[piece] = f"the log record {span.name!r} is no message of a model call"
    else:
        kind = kind_of(span)
        reasons = {"tool": _TOOL_RUN, "embedding": "an embedding, no answer of a language model"}
        fates.set_apart[piece] = reasons.get(kind, _SURROUNDS)


def _without_repeats(spans: Sequence[tuple[int, Span]], fates: Fates) -> Iterator[tuple[int, Span]]:
    """Drop spans and log records that were exported twice; of a span, the export that has its end stays."""
    chosen: dict[Any, tuple[int, Span]] = {}
    for piece, span in spans:
        identity: Any = span_key(span)
        if span.is_log or span.span_id is None:
            identity = msgspec.json.encode(span)
            if span.span_id is None and not span.is_log:
                identity = (piece, identity)  # without ids, equal calls may well be two
        known = chosen.get(identity)
        if known is not None and span.ended_at is not None and known[1].ended_at is None:
            fates.duplicates[known[0]] = "the span was exported again when it had ended"
        elif known is not None:
            if known[0] != piece:
                fates.duplicates[piece] = "the same span was exported before"
            continue
        chosen[identity] = (piece, span)
    yield from chosen.values()


def _model_calls(unique: Sequence[tuple[int, Span]], by_key: dict[Key, Span], fates: Fates) -> list[ModelCall]:
    candidates = _candidates(unique, by_key, fates)
    calls: list[ModelCall] = []
    spans: list[Span] = []
    for candidate in candidates:
        span = candidate.span
        try:
            content = read_content(span, candidate.events)
            if content is not None and content.choices and not content.messages:
                raise RecordRefusedError("the answer is there, the prompt was not recorded")
        except RecordRefusedError as error:
            for piece in candidate.pieces:
                fates.refused[piece].append(f"span {span.span_id or span.name}: {error}")
            fates.duplicates.update(dict.fromkeys([*candidate.event_pieces, *candidate.repeats], _REPEATS_SPAN))
            continue
        if content is None or not content.messages:
            reason = _SURROUNDS if kind_of(span) == "agent" else NO_CONTENT
            fates.set_apart.update(dict.fromkeys([*candidate.pieces, *candidate.event_pieces], reason))
            continue
        is_in_events = bool(candidate.events) and read_content(span) is None
        fates.duplicates.update(
            dict.fromkeys([*candidate.repeats, *(() if is_in_events else candidate.event_pieces)], _REPEATS_SPAN)
        )
        pieces = [*candidate.pieces, *(candidate.event_pieces if is_in_events else ())]
        call = model_call(span, content, tuple(dict.fromkeys(pieces)))
        calls.append(_placed(call, span, by_key))
        spans.append(span)
    return _without_outer_repeats(calls, spans, by_key, fates)


def _placed(call: ModelCall, span: Span, by_key: dict[Key, Span]) -> ModelCall:
    """A call with what the spans around it say: the session, the user, the agent."""
    around = list(ancestors(span, by_key))
    agent = next((other for other in around if kind_of(other) == "agent"), None)
    return replace(
        call,
        session_id=call.session_id or next(filter(None, map(session_of, around)), None),
        user_id=call.user_id or next(filter(None, map(user_of, around)), None),
        name=call.name if agent is None else agent_of(agent) or agent.name or call.name,
    )


def _candidates(unique: Sequence[tuple[int, Span]], by_key: dict[Key, Span], fates: Fates) -> list[_Call]:
    """The spans that may hold a model call, each with the log records that belong to it."""
    found: dict[Any, _Call] = {}
    steps = [span for _, span in unique if not span.is_log and kind_of(span) == "model"]
    within_agents = {span_key(other) for step in steps for other in ancestors(step, by_key)}
    for piece, span in unique:
        if span.is_log or span.is_reference:
            continue
        kind = kind_of(span)
        if kind == "outer" and _has_step(span, steps):
            fates.duplicates[piece] = "repeats the call of its steps"
        elif kind in ("model", "outer") or (kind == "agent" and span_key(span) not in within_agents):
            found[span_key(span) if span.span_id is not None else (piece, id(span))] = _Call(span, [piece])
    for piece, record in unique:
        if not record.is_log or record.is_reference:
            continue
        event = SpanEvent(record.name, record.started_at, record.attributes, record.body)
        if record.name == DETAILS_EVENT:
            _add_details(found, piece, record, by_key)
        elif is_message_event(event):
            place = by_key.get(span_key(record))
            if place is not None and place.is_reference:
                fates.duplicates[piece] = _REPEATS_SPAN
                continue
            call = found.setdefault(span_key(record), _Call(_span_of_log(record), []))
            call.events.append(event)
            call.event_pieces.append(piece)
            if not call.pieces:
                call.span.ended_at = record.started_at
    return list(found.values())


def _add_details(found: dict[Any, _Call], piece: int, record: Span, by_key: dict[Key, Span]) -> None:
    """Take a log event that holds all of a call: what its span lacks, or a repetition of it."""
    key = span_key(record)
    call = found.get(key)
    if call is None:
        place = by_key.get(key)
        if place is None or not place.is_reference:
            found[key] = _Call(_span_of_log(record), [piece])
        return
    try:
        is_repeat = read_content(call.span) is not None
    except RecordRefusedError:
        is_repeat = False  # cut off in the span, perhaps whole in the event
    if is_repeat:
        call.repeats.append(piece)
    else:
        call.span.attributes = {**call.span.attributes, **record.attributes}
        call.pieces.append(piece)


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


def _has_step(outer: Span, steps: Sequence[Span]) -> bool:
    """Whether a step of an outer Vercel AI SDK span is there; some exports drop the ids of parents."""
    operation = f"{outer.text('ai.operationId')}."
    return any(
        step.trace_id == outer.trace_id
        and (step.text("ai.operationId") or "").startswith(operation)
        and step.parent_id in (None, outer.span_id)
        for step in steps
    )


def _without_outer_repeats(
    calls: list[ModelCall], spans: list[Span], by_key: dict[Key, Span], fates: Fates
) -> list[ModelCall]:
    """Drop calls that repeat one within them: a framework and the provider's client may both be instrumented."""
    inner: dict[Key, list[ModelCall]] = defaultdict(list)
    for call, span in zip(calls, spans, strict=True):
        for other in ancestors(span, by_key):
            inner[span_key(other)].append(call)
    kept = []
    for call, span in zip(calls, spans, strict=True):
        if span.span_id is not None and any(_says_the_same(call, other) for other in inner.get(span_key(span), ())):
            fates.duplicates.update(dict.fromkeys(call.pieces, "repeats the model call within it"))
        else:
            kept.append(call)
    return kept


def _says_the_same(call: ModelCall, other: ModelCall) -> bool:
    def said(messages: Sequence[Message]) -> list[tuple[str, list[str]]]:
        return [(message.text, [tool.name for tool in message.tool_calls]) for message in messages]

    return said(call.choices) == said(other.choices) and said(call.messages[-1:]) == said(other.messages[-1:])


def _evaluations(
    unique: Sequence[tuple[int, Span]], calls: Sequence[ModelCall], by_key: dict[Key, Span], fates: Fates
) -> list[Feedback]:
    """Give evaluation events to the calls that they judge, as feedback where those are in another group."""
    by_call: dict[str, ModelCall] = {call.call_id: call for call in calls if call.call_id is not None}
    by_response: dict[str, str] = {
        response: span.span_id
        for span in by_key.values()
        if span.span_id and (response := response_of(span)) is not None
    }
    feedback = []
    for piece, place, event in _evaluation_events(unique):
        score = _score(event)
        response = event.attributes.get("gen_ai.response.id")
        call_id = by_response.get(response, response) if isinstance(response, str) else place.span_id
        judged = by_call.get(call_id) if call_id is not None else None
        fates.used.add(piece)
        if judged is not None:
            judged.scores.append(score)
        elif isinstance(response, str) and call_id is not None:
            feedback.append(Feedback("call", call_id, score))
        elif (span := by_key.get(span_key(place))) is not None and kind_of(span) == "model" and span.span_id:
            feedback.append(Feedback("call", span.span_id, score))
        elif place.trace_id is not None:
            feedback.append(Feedback("trace", place.trace_id, score))
        else:
            fates.used.discard(piece)
            fates.set_apart[piece] = f"the evaluation {score.name!r} names neither a response nor a trace"
    return feedback


def _evaluation_events(unique: Sequence[tuple[int, Span]]) -> Iterator[tuple[int, Span, SpanEvent]]:
    for piece, span in unique:
        if span.is_log and span.name == EVALUATION_EVENT:
            yield piece, span, SpanEvent(span.name, span.started_at, span.attributes, span.body)
        elif not span.is_log and not span.is_reference:
            for event in span.events:
                if event.name == EVALUATION_EVENT:
                    yield piece, span, event


def _score(event: SpanEvent) -> Score:
    attributes = dict(event.attributes)
    prefix = "gen_ai.evaluation."
    name = attributes.pop(prefix + "name", None)
    value, label = attributes.pop(prefix + "score.value", None), attributes.pop(prefix + "score.label", None)
    comment = attributes.pop(prefix + "explanation", None)
    return make_score(name, value, label=label, comment=comment, timestamp=event.time, metadata=attributes)
