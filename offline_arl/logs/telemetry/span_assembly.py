"""From the spans of one group to trajectories, and what became of each record on the way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from offline_arl.logs.adapter import Assembly, Group, RecordRefusedError
from offline_arl.logs.stitching.stitch import ModelCall, stitch
from offline_arl.logs.telemetry.genai_semconv import CallContent
from offline_arl.logs.telemetry.span_calls import agent_of, kind_of, model_call, read_content, session_of, user_of
from offline_arl.logs.telemetry.span_candidates import Candidate, Located, find_candidates, without_repeats
from offline_arl.logs.telemetry.span_evaluations import attach_evaluations
from offline_arl.logs.telemetry.span_fates import NO_CONTENT, REPEATS_SPAN, SURROUNDS, Fates
from offline_arl.logs.telemetry.span_links import add_tool_results, link_trajectories, tool_call_id
from offline_arl.logs.telemetry.spans import Key, Span, ancestors, span_key
from offline_arl.trajectories.schema import Message, Trajectory


class _Placed(NamedTuple):
    """A model call and the span that it was read from."""

    call: ModelCall
    span: Span


def assemble_spans(group: Group, spans: Sequence[Located]) -> Assembly:
    """The trajectories of a group of spans and log records, and the fate of each piece."""
    fates = Fates()
    unique = list(without_repeats(spans, fates))
    by_key = {span_key(span): span for _, span in unique if not span.is_log and span.span_id is not None}
    found = [
        placed
        for candidate in find_candidates(unique, by_key, fates)
        if (placed := _read(candidate, by_key, fates)) is not None
    ]
    calls = _with_callers(_without_outer_repeats(found, by_key, fates), by_key)
    assembly = Assembly(feedback=attach_evaluations(unique, calls, by_key, fates))
    assembly.trajectories = _stitched(calls, group, fates)
    link_trajectories(assembly.trajectories, by_key)
    tools = [(piece, span) for piece, span in unique if not span.is_log and kind_of(span) == "tool"]
    fates.used.update(add_tool_results(assembly.trajectories, tools))
    for piece, span in unique:
        fates.account(piece, span)
    fates.settle(assembly)
    return assembly


def _stitched(calls: Sequence[ModelCall], group: Group, fates: Fates) -> list[Trajectory]:
    stitched = stitch(calls, group)
    for index, call in enumerate(calls):
        if (reason := stitched.set_apart.get(index)) is not None:
            fates.put_apart(call.pieces, reason)
        elif (reason := stitched.duplicates.get(index)) is not None:
            fates.repeat(call.pieces, reason)
        else:
            fates.used.update(call.pieces)
    return stitched.trajectories


def _read(candidate: Candidate, by_key: dict[Key, Span], fates: Fates) -> _Placed | None:
    """The model call of a candidate; None where it holds none, which the fates then say."""
    span = candidate.span
    try:
        content, is_in_events = _content(candidate)
    except RecordRefusedError as error:
        refused, repeated = candidate.pieces, [*candidate.event_pieces, *candidate.repeats]
        if candidate.is_from_logs:
            refused, repeated = candidate.event_pieces, candidate.repeats
        fates.refuse(refused, f"span {span.span_id or span.name}: {error}")
        fates.repeat(repeated, REPEATS_SPAN)
        return None
    if content is None:
        reason = SURROUNDS if kind_of(span) == "agent" else NO_CONTENT
        fates.put_apart([*candidate.pieces, *candidate.event_pieces], reason)
        return None
    fates.repeat([*candidate.repeats, *(() if is_in_events else candidate.event_pieces)], REPEATS_SPAN)
    pieces = [*candidate.pieces, *(candidate.event_pieces if is_in_events else ())]
    return _Placed(_with_surroundings(model_call(span, content, tuple(dict.fromkeys(pieces))), span, by_key), span)


def _content(candidate: Candidate) -> tuple[CallContent | None, bool]:
    """What a candidate says, and whether its log events say it."""
    content = read_content(candidate.span)
    is_in_events = content is None and bool(candidate.events)
    if is_in_events:
        content = read_content(candidate.span, candidate.events)
    if content is not None and content.choices and not content.messages:
        raise RecordRefusedError("the answer is there, the prompt was not recorded")
    return (None if content is None or not content.messages else content), is_in_events


def _with_surroundings(call: ModelCall, span: Span, by_key: dict[Key, Span]) -> ModelCall:
    """A call with what the spans around it say: the session, the user, the agent."""
    around = list(ancestors(span, by_key))
    agent = next((other for other in around if kind_of(other) == "agent"), None)
    return replace(
        call,
        session_id=call.session_id or next(filter(None, map(session_of, around)), None),
        user_id=call.user_id or next(filter(None, map(user_of, around)), None),
        name=call.name if agent is None else agent_of(agent) or agent.name or call.name,
    )


def _without_outer_repeats(found: Sequence[_Placed], by_key: dict[Key, Span], fates: Fates) -> list[_Placed]:
    """Drop calls that repeat one within them: a framework and the provider's client may both be instrumented."""
    inner: dict[Key, list[ModelCall]] = defaultdict(list)
    for placed in found:
        for other in ancestors(placed.span, by_key):
            inner[span_key(other)].append(placed.call)
    kept = []
    for placed in found:
        if any(_says_the_same(placed.call, other) for other in inner.get(span_key(placed.span), ())):
            fates.repeat(placed.call.pieces, "repeats the model call within it")
        else:
            kept.append(placed)
    return kept


def _says_the_same(call: ModelCall, other: ModelCall) -> bool:
    def said(messages: Iterable[Message]) -> list[tuple[str, list[str]]]:
        return [(message.text, [tool.name for tool in message.tool_calls]) for message in messages]

    return said(call.choices) == said(other.choices) and said(call.messages[-1:]) == said(other.messages[-1:])


def _with_callers(found: Sequence[_Placed], by_key: dict[Key, Span]) -> list[ModelCall]:
    """The calls; one that lies in a tool run has the call that asked for the run as its parent."""
    asked = {
        tool.id: placed.call.call_id
        for placed in found
        for choice in placed.call.choices
        for tool in choice.tool_calls
        if tool.id is not None
    }
    calls = []
    for call, span in found:
        runs = [tool_call_id(other) for other in ancestors(span, by_key) if kind_of(other) == "tool"]
        caller = next((asked[call_id] for call_id in runs if call_id in asked), None)
        calls.append(call if caller in (None, call.call_id) else replace(call, parent_id=caller))
    return calls
