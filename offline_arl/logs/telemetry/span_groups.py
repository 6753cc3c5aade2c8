"""Which spans are assembled together: those of a session where they name one, else those of a trace.

A chat of several turns has a trace a turn and one session; its turns repeat one another's messages, so that they
can be joined only within one group. Log records name no session. A span with a session is therefore in two groups:
whole in that of the session, and in that of its trace whole where it has no messages (they may be in log records) or
as a reference where it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from offline_arl.logs.adapter import Fragment, RecordRefusedError, RecordSetApartError
from offline_arl.logs.stitching.stitch import conversation_key
from offline_arl.logs.telemetry.genai_semconv import is_message_event
from offline_arl.logs.telemetry.span_calls import kind_of, read_content, session_of
from offline_arl.logs.telemetry.spans import Span

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(list[Span])

# What a reference keeps: enough to say what the span stands for, and to find it by the id of its response.
_REFERENCE_KEYS = frozenset(
    {
        "ai.operationId",
        "ai.response.id",
        "gen_ai.agent.name",
        "gen_ai.operation.name",
        "gen_ai.response.id",
        "openinference.span.kind",
        "traceloop.span.kind",
    }
)
_CONTENT_PREFIXES = (
    "ai.prompt",
    "ai.response.",
    "events",
    "gen_ai.completion",
    "gen_ai.input.messages",
    "gen_ai.output.messages",
    "gen_ai.prompt",
    "input.value",
    "llm.input_messages",
    "llm.output_messages",
)


def fragments_of(spans: Sequence[Span]) -> list[Fragment]:
    """The fragments of one record: for each group that its spans belong to, those spans.

    Raises:
        RecordRefusedError: A span without ids has messages that cannot be read, or values that JSON cannot hold.
        RecordSetApartError: A span without ids has no messages, so that nothing can be joined to it.
    """
    groups: dict[str, list[Span]] = {}
    sessions = _sessions_by_trace(spans)
    for span in spans:
        session = session_of(span) or sessions.get(span.trace_id)
        if session is not None:
            groups.setdefault(f"session {session}", []).append(span)
        if span.trace_id is not None:
            copy = span if session is None or not _may_have_content(span) else _reference(span)
            groups.setdefault(f"trace {span.trace_id}", []).append(copy)
        elif session is None:
            groups.setdefault(_key_without_ids(span), []).append(span)
    try:
        return [Fragment(key, _encoder.encode(members)) for key, members in groups.items()]
    except (OverflowError, UnicodeEncodeError, RecursionError) as error:
        raise RecordRefusedError(f"a value cannot be written as JSON: {error}") from error


def _sessions_by_trace(spans: Iterable[Span]) -> dict[str | None, str]:
    """The session of each trace for which the spans of a record name one; often not every span of it does."""
    found: dict[str | None, set[str]] = {}
    for span in spans:
        if span.trace_id is not None and (session := session_of(span)) is not None:
            found.setdefault(span.trace_id, set()).add(session)
    return {trace_id: names.pop() for trace_id, names in found.items() if len(names) == 1}


def spans_of(payloads: Iterable[bytes]) -> list[tuple[int, Span]]:
    """The spans of the pieces of a group, each with the index of its piece."""
    return [(index, span) for index, payload in enumerate(payloads) for span in _decoder.decode(payload)]


def _may_have_content(span: Span) -> bool:
    return any(key.startswith(_CONTENT_PREFIXES) for key in span.attributes) or any(map(is_message_event, span.events))


def _reference(span: Span) -> Span:
    kept = {key: value for key, value in span.attributes.items() if key in _REFERENCE_KEYS}
    return Span(
        name=span.name,
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_id=span.parent_id,
        attributes=kept,
        is_log=span.is_log,
        is_reference=True,
    )


def _key_without_ids(span: Span) -> str:
    kind = kind_of(span)
    if span.is_log:
        raise RecordSetApartError(f"the log record {span.name!r} belongs to no span")
    if kind == "tool":
        raise RecordSetApartError("a tool run without a trace id: nothing says which model call asked for it")
    content = read_content(span) if kind != "embedding" else None
    if content is None:
        raise RecordSetApartError(f"a span of kind {kind!r} without messages and without a trace id")
    return f"messages {conversation_key(content.messages)}"
