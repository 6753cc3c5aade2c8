r"""MLflow's traces as operations: versions 2 and 3 of the JSON of a trace, and rows of `search_traces`.

Every attribute of a span is JSON text once more (the type of a span is `"\"LLM\""`). Version 3 writes the ids of
spans in base64, and in hexadecimal where assessments refer to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from offline_arl.logs.platforms.message_shapes import decode_text
from offline_arl.logs.platforms.tool_shapes import tools_text
from offline_arl.logs.platforms.trace_operations import Operation, OperationKind, TraceInfo
from offline_arl.logs.primitives.scores import make_score, scorer_kind_of
from offline_arl.logs.primitives.values import as_count, as_list, as_object, as_text
from offline_arl.logs.telemetry.spans import Span, read_flat_span, span_identity
from offline_arl.trajectories.schema import MessageError, Score, Usage

_KINDS: dict[str, OperationKind] = {"LLM": "model", "CHAT_MODEL": "model", "TOOL": "tool"}
_INPUTS, _OUTPUTS, _TYPE = "mlflow.spanInputs", "mlflow.spanOutputs", "mlflow.spanType"
_CHAT_MESSAGES, _CHAT_TOOLS, _USAGE = "mlflow.chat.messages", "mlflow.chat.tools", "mlflow.chat.tokenUsage"
_MODEL_KEYS = ("mlflow.llm.model", "model")
# What repeats the operations or the fields of a trajectory, or names the writing program.
_PLACED = frozenset({_INPUTS, _OUTPUTS, _TYPE, _CHAT_MESSAGES, _CHAT_TOOLS, _USAGE, "tools", "mlflow.traceRequestId"})
_REPEATED = frozenset({"mlflow.traceInputs", "mlflow.traceOutputs", "mlflow.trace.session", "mlflow.trace.user"})
_INFO_KEYS = frozenset(
    {
        "trace_id",
        "request_id",
        "trace_metadata",
        "request_metadata",
        "assessments",
        "request_preview",
        "response_preview",
    }
)


def trace_of(record: Any) -> dict[str, Any] | None:
    """The trace of a record as `{"info", "data"}`; None where it is none.

    A row of `search_traces` has the trace as JSON text in a column, or its parts in several.
    """
    fields = as_object(record)
    if isinstance(whole := decode_text(fields.get("trace")), dict):
        fields = whole
    info, data = as_object(fields.get("info")), as_object(fields.get("data"))
    if isinstance(data.get("spans"), list) and _trace_id(info) is not None:
        return {"info": info, "data": data}
    is_row = any(isinstance(fields.get(key), dict) for key in ("trace_metadata", "request_metadata"))
    if is_row and isinstance(fields.get("spans"), list) and _trace_id(fields) is not None:
        rest = {key: value for key, value in fields.items() if key not in ("spans", "request", "response", "trace")}
        return {"info": rest, "data": {"spans": fields["spans"]}}
    return None


def _trace_id(info: dict[str, Any]) -> str | None:
    return as_text(info.get("trace_id")) or as_text(info.get("request_id"))


def trace_id_of(trace: dict[str, Any]) -> str:
    """The id of a trace that `trace_of` gave."""
    return _trace_id(trace["info"]) or ""


def session_of(trace: dict[str, Any]) -> str | None:
    """The session of a trace."""
    return as_text(_trace_metadata(trace["info"]).get("mlflow.trace.session"))


def version_of(trace: dict[str, Any]) -> tuple[int, str]:
    """What orders several exports of one trace: later ones have more spans, or later assessments."""
    changes = [
        as_text(as_object(item).get("last_update_time")) or "" for item in as_list(trace["info"].get("assessments"))
    ]
    return len(trace["data"]["spans"]), max(changes, default="")


def _trace_metadata(info: dict[str, Any]) -> dict[str, Any]:
    return as_object(info.get("trace_metadata")) or as_object(info.get("request_metadata"))


def read_info(trace: dict[str, Any]) -> TraceInfo:
    """What is known of a trace as a whole, with the assessments that judge all of it."""
    info = trace["info"]
    metadata = {key: value for key, value in info.items() if key not in _INFO_KEYS and value not in (None, {}, [])}
    metadata.update({key: value for key, value in _trace_metadata(info).items() if key not in _REPEATED})
    assessments = [as_object(item) for item in as_list(info.get("assessments"))]
    if overridden := [item for item in assessments if item.get("valid") is False]:
        metadata["overridden_assessments"] = overridden
    return TraceInfo(
        trace_id_of(trace),
        session_id=session_of(trace),
        user_id=as_text(_trace_metadata(info).get("mlflow.trace.user")),
        scores=[_score(item) for item in assessments if item.get("valid") is not False and not item.get("span_id")],
        metadata=metadata,
    )


def read_operations(trace: dict[str, Any], piece: int) -> Iterator[Operation]:
    """The operations of a trace, each with the assessments that judge it."""
    judged: dict[str, list[Score]] = {}
    for item in map(as_object, as_list(trace["info"].get("assessments"))):
        span_id = span_identity(item.get("span_id"))
        if span_id is not None and item.get("valid") is not False:
            judged.setdefault(span_id, []).append(_score(item))
    for number, value in enumerate(trace["data"]["spans"]):
        if isinstance(value, dict):
            span = read_flat_span({"attributes": {}, **value})
            operation = _operation(span, trace, piece, f"{trace_id_of(trace)}:{number}")
            operation.scores.extend(judged.get(operation.operation_id, ()))
            yield operation


def _operation(span: Span, trace: dict[str, Any], piece: int, made_up_id: str) -> Operation:
    attributes = {key: decode_text(value) for key, value in span.attributes.items()}
    kind = as_text(attributes.get(_TYPE)) or ""
    usage = as_object(attributes.get(_USAGE))
    model = next((name for key in _MODEL_KEYS if (name := as_text(attributes.get(key))) is not None), None)
    counts = [as_count(usage.get(key)) for key in ("input_tokens", "output_tokens")]
    prompt, output = attributes.get(_INPUTS), attributes.get(_OUTPUTS)
    if prompt in (None, {}, []):
        prompt, output = _chat(as_list(attributes.get(_CHAT_MESSAGES)), output)
    rest = {key: value for key, value in attributes.items() if key not in _PLACED and key not in _MODEL_KEYS}
    return Operation(
        operation_id=span.span_id or made_up_id,
        kind=_KINDS.get(kind, "other"),
        pieces=(piece,),
        trace_id=trace_id_of(trace),
        parent_id=span.parent_id,
        name=span.name or None,
        started_at=span.started_at,
        ended_at=span.ended_at,
        input=prompt,
        output=output,
        tools=tools_text(attributes.get(_CHAT_TOOLS)),
        model=model,
        usage=None if counts == [None, None] else Usage(*counts),
        error=_error(span),
        agent=span.name if kind == "AGENT" else None,
        session_id=session_of(trace),
        metadata={**rest, **span.rest},
    )


def _chat(messages: list[Any], output: Any) -> tuple[Any, Any]:
    """Prompt and answer from `mlflow.chat.messages`, the whole conversation, where the inputs are not recorded."""
    if not messages or as_object(messages[-1]).get("role") != "assistant":
        return messages or None, output
    return messages[:-1] or None, messages[-1] if output is None else output


def _error(span: Span) -> MessageError | None:
    if span.status != "error":
        return None
    exception = next((event.attributes for event in span.events if event.name == "exception"), {})
    text = as_text(exception.get("exception.message")) or span.status_text
    return MessageError(as_text(exception.get("exception.type")) or "error", text)


def _score(assessment: dict[str, Any]) -> Score:
    """An assessment: feedback is a judgement, an expectation what the answer should have been."""
    rest = dict(assessment)
    feedback, expectation = as_object(rest.pop("feedback", None)), as_object(rest.pop("expectation", None))
    source = as_object(rest.pop("source", None))
    name, comment = rest.pop("assessment_name", rest.pop("name", None)), rest.pop("rationale", None)
    created, changed = rest.pop("create_time", None), rest.pop("last_update_time", None)
    for key in ("trace_id", "span_id", "valid"):
        rest.pop(key, None)
    if feedback.get("error") is not None:
        rest["error"] = feedback["error"]
    expected = expectation.get("value", decode_text(as_object(expectation.get("serialized_value")).get("value")))
    return make_score(
        name,
        feedback.get("value"),
        scorer=source.get("source_id"),
        kind=scorer_kind_of(source.get("source_type")),
        comment=comment,
        correction=expected,
        timestamp=as_text(changed) or as_text(created),
        metadata={key: value for key, value in rest.items() if value not in (None, {})},
    )
