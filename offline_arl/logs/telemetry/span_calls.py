"""What a span stands for (a model call, a tool run, an agent), and the model call that a span holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from offline_arl.logs.platforms.message_shapes import decode_text
from offline_arl.logs.primitives.values import as_count, as_list, as_text
from offline_arl.logs.stitching.stitch import ModelCall
from offline_arl.logs.telemetry import genai_semconv, openinference, openllmetry, vercel_ai
from offline_arl.logs.telemetry.genai_semconv import CallContent
from offline_arl.logs.telemetry.spans import Span, SpanEvent
from offline_arl.trajectories.schema import Message, MessageError, Producer, Usage

SpanKind = Literal["model", "outer", "tool", "agent", "embedding", "other"]

_OPERATIONS: dict[str, SpanKind] = {
    "chat": "model",
    "generate_content": "model",
    "text_completion": "model",
    "completion": "model",
    "responses": "model",
    "execute_tool": "tool",
    "invoke_agent": "agent",
    "create_agent": "agent",
    "invoke_workflow": "other",
    "embeddings": "embedding",
    "retrieval": "other",
}
_KINDS: dict[str, SpanKind] = {
    "LLM": "model",
    "TOOL": "tool",
    "AGENT": "agent",
    "EMBEDDING": "embedding",
    "WORKFLOW": "other",
    "TASK": "other",
    "CHAIN": "other",
    "RETRIEVER": "other",
    "RERANKER": "other",
    "PARSER": "other",
    "GUARDRAIL": "other",
    "EVALUATOR": "other",
    "PROMPT": "other",
    "UNKNOWN": "other",
}
_SESSION_KEYS = (
    "gen_ai.conversation.id",
    "session.id",
    "langfuse.session.id",
    "ai.telemetry.metadata.sessionId",
    "ai.telemetry.metadata.session_id",
    "ai.telemetry.metadata.chatId",
    "traceloop.association.properties.session_id",
    "traceloop.association.properties.thread_id",
)
_USER_KEYS = (
    "user.id",
    "enduser.id",
    "langfuse.user.id",
    "ai.telemetry.metadata.userId",
    "ai.telemetry.metadata.user_id",
    "traceloop.association.properties.user_id",
)
_MODEL_KEYS = (
    "gen_ai.response.model",
    "ai.response.model",
    "llm.model_name",
    "gen_ai.request.model",
    "ai.model.id",
)
_RESPONSE_KEYS = ("gen_ai.response.id", "ai.response.id", "llm.response.id")
_AGENT_KEYS = ("gen_ai.agent.name", "agent.name", "ai.telemetry.functionId", "traceloop.entity.name")
_INPUT_COUNTS = (
    "gen_ai.usage.input_tokens",
    "llm.token_count.prompt",
    "ai.usage.inputTokens",
    "ai.usage.promptTokens",
    "gen_ai.usage.prompt_tokens",
)
_OUTPUT_COUNTS = (
    "gen_ai.usage.output_tokens",
    "llm.token_count.completion",
    "ai.usage.outputTokens",
    "ai.usage.completionTokens",
    "gen_ai.usage.completion_tokens",
)
_CUT_REASONS = frozenset({"length", "max_tokens", "MAX_TOKENS", "max_output_tokens", "model_context_window_exceeded"})
_REASON_KEYS = ("ai.response.finishReason", "llm.finish_reason", "gen_ai.completion.0.finish_reason")
_REASONS_KEY = "gen_ai.response.finish_reasons"
# Attributes that have a field of their own in `ModelCall`.
_PLACED = frozenset(
    {
        *_SESSION_KEYS,
        *_USER_KEYS,
        *_INPUT_COUNTS,
        *_OUTPUT_COUNTS,
        *_REASON_KEYS,
        _REASONS_KEY,
        "openinference.span.kind",
    }
)


def session_of(span: Span) -> str | None:
    """The session or conversation that a span says it belongs to."""
    return span.text(*_SESSION_KEYS)


def user_of(span: Span) -> str | None:
    """The user that a span names."""
    return span.text(*_USER_KEYS)


def agent_of(span: Span) -> str | None:
    """The agent that a span names."""
    return span.text(*_AGENT_KEYS)


def response_of(span: Span) -> str | None:
    """The provider's id of the response."""
    return span.text(*_RESPONSE_KEYS)


def kind_of(span: Span) -> SpanKind:
    """What a span stands for. "outer" is a call of the Vercel AI SDK around its steps."""
    operation = span.text("ai.operationId")
    if operation is not None:
        if operation.endswith((".doGenerate", ".doStream")):
            return "model"
        if operation == "ai.toolCall":
            return "tool"
        return "outer" if operation in _OUTER_OPERATIONS else "embedding" if "embed" in operation else "other"
    for key in ("openinference.span.kind", "traceloop.span.kind"):
        kind = span.text(key)
        if kind is not None and (found := _KINDS.get(kind.upper())) is not None:
            return found
    operation = span.text("gen_ai.operation.name")
    if operation is not None:
        return _OPERATIONS.get(operation, "other")
    request = span.text("llm.request.type")
    if request is not None:
        return "embedding" if request == "embedding" else "model" if request in ("chat", "completion") else "other"
    is_call = any(key.startswith(_CONTENT_PREFIXES) for key in span.attributes) or span.text("gen_ai.request.model")
    return "model" if is_call else "other"


_OUTER_OPERATIONS = frozenset({"ai.generateText", "ai.streamText", "ai.generateObject", "ai.streamObject"})
_CONTENT_PREFIXES = (
    "gen_ai.input.messages",
    "gen_ai.output.messages",
    "gen_ai.prompt",
    "gen_ai.completion",
    "llm.input_messages",
    "llm.output_messages",
)


def read_content(span: Span, log_events: Sequence[SpanEvent] = ()) -> CallContent | None:
    """What the messages of a call are, from its attributes, its events or the log events that name it.

    Raises:
        RecordRefusedError: They are there and cannot be read.
    """
    if span.text("ai.operationId") is not None:
        return vercel_ai.read(span)
    message_events = [event for event in (*span.events, *log_events) if genai_semconv.is_message_event(event)]
    for content in (
        genai_semconv.read_attributes(span),
        openllmetry.read(span),
        openinference.read(span),
        genai_semconv.read_events(message_events),
        genai_semconv.read_events_attribute(span),
        genai_semconv.read_deprecated(span),
    ):
        if content is not None:
            return content
    return None


def model_call(span: Span, content: CallContent, pieces: tuple[int, ...]) -> ModelCall:
    """The model call of a span whose content was read."""
    reasons = _finish_reasons(span, content.choices)
    error = error_of(span)
    model = span.text(*_MODEL_KEYS)
    usage = _usage(span)
    choices = [
        msgspec.structs.replace(
            choice,
            producer=Producer("model", model),
            timestamp=span.ended_at or choice.timestamp,
            usage=(usage or choice.usage) if index == 0 else choice.usage,
            metadata=choice.metadata if index >= len(reasons) else {**choice.metadata, "finish_reason": reasons[index]},
        )
        for index, choice in enumerate(content.choices)
    ]
    rest = {
        key: value
        for key, value in span.attributes.items()
        if key not in content.used and key not in _PLACED and not (key in _MODEL_KEYS and value == model)
    }
    return ModelCall(
        messages=content.messages,
        choices=choices,
        pieces=pieces,
        call_id=span.span_id or response_of(span),
        tools=content.tools,
        started_at=span.started_at,
        ended_at=span.ended_at,
        model=model,
        parent_id=span.parent_id,
        name=agent_of(span),
        session_id=session_of(span),
        user_id=user_of(span),
        trace_id=span.trace_id,
        truncated=any(reason in _CUT_REASONS for reason in reasons[:1]),
        stop_reason=next(iter(reasons), None),
        error=error,
        metadata={**({"span": span.name} if span.name else {}), **rest, **content.metadata, **span.rest},
    )


def error_of(span: Span) -> MessageError | None:
    """The error of a span: its status, `error.type`, or an exception among its events."""
    exception: dict[str, Any] = next((event.attributes for event in span.events if event.name == "exception"), {})
    kind = span.text("error.type")
    if span.status != "error" and kind is None:
        return None
    text = as_text(exception.get("exception.message")) or span.status_text or span.text("error.message") or ""
    return MessageError(kind or as_text(exception.get("exception.type")) or "error", text)


def _finish_reasons(span: Span, choices: Sequence[Message]) -> list[str]:
    logged = span.attributes.get(_REASONS_KEY)
    reasons = [reason for reason in as_list(decode_text(logged)) if isinstance(reason, str)]
    own = [as_text(choice.metadata.get("finish_reason")) for choice in choices]
    if not reasons:
        reasons = [reason for reason in own if reason is not None]
    single = span.text(*_REASON_KEYS)
    return reasons or ([] if single is None else [single])


def _usage(span: Span) -> Usage | None:
    counts = [
        next((count for key in keys if (count := _count(span.attributes.get(key))) is not None), None)
        for keys in (_INPUT_COUNTS, _OUTPUT_COUNTS)
    ]
    return None if counts == [None, None] else Usage(*counts)


def _count(value: object) -> int | None:
    """A count; data frames make numbers of a column with gaps into floats."""
    return as_count(int(value) if isinstance(value, float) and value.is_integer() else value)
