"""Records of Langfuse as operations, traces and scores.

The same things come in two spellings: camelCase from the interface and the public API, snake_case from the export to
blob storage. Input, output and metadata may be JSON values or JSON texts of them.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from offline_arl.logs.adapter import Feedback, FeedbackTarget
from offline_arl.logs.platforms.message_shapes import decode_text
from offline_arl.logs.platforms.tool_shapes import tools_text
from offline_arl.logs.platforms.trace_operations import Operation, OperationKind, TraceInfo
from offline_arl.logs.primitives.scores import make_score, scorer_kind_of
from offline_arl.logs.primitives.values import as_count, as_list, as_object, as_text
from offline_arl.logs.telemetry.span_metadata import (
    attribute_agent,
    attribute_stop_reason,
    attribute_tool_call_id,
    attribute_tools,
    without_repeats,
)
from offline_arl.trajectories.schema import MessageError, Score, Usage

RecordKind = Literal["download", "trace", "observation", "score", "page"]

_TYPES = frozenset(
    "GENERATION SPAN EVENT AGENT TOOL CHAIN RETRIEVER EVALUATOR EMBEDDING GUARDRAIL".split()  # noqa: SIM905
)
_JUDGES = frozenset({"EVALUATOR", "GUARDRAIL"})
_SCORE_TYPES = frozenset({"NUMERIC", "BOOLEAN", "CATEGORICAL", "CORRECTION", "TEXT"})
# Of an observation: what other keys hold already, and figures that Langfuse computes.
_DERIVED = frozenset(
    {
        "createdAt",
        "updatedAt",
        "projectId",
        "latency",
        "timeToFirstToken",
        "inputCost",
        "outputCost",
        "totalCost",
        "inputUsage",
        "outputUsage",
        "totalUsage",
        "internalModel",
        "internalModelId",
        "usagePricingTierId",
        "usagePricingTierName",
        "toolCalls",
        "toolCallNames",
        "bookmarked",
        "public",
        "isRootObservation",
        "modelId",
        "inputPrice",
        "outputPrice",
        "totalPrice",
        # Of the trace.
        "traceName",
        "release",
        "tags",
    }
)
_UNDERSCORE = re.compile(r"_([a-z])")


def camel_case(fields: dict[str, Any]) -> dict[str, Any]:
    """A record with the keys of its top level in camelCase."""
    return {_UNDERSCORE.sub(lambda found: found[1].upper(), key): value for key, value in fields.items()}


def kind_of(record: Any) -> RecordKind | None:
    """What a parsed record of any origin is for Langfuse, None where it is not surely Langfuse's."""
    if not isinstance(record, dict):
        return None
    if "observations" in record and isinstance(trace := record.get("trace"), dict):
        return "download" if isinstance(record["observations"], list) and isinstance(trace.get("id"), str) else None
    if isinstance(data := record.get("data"), list):
        first = data[0] if data else None
        is_page = "meta" in record and isinstance(first, dict) and kind_of(first) not in (None, "page")
        return "page" if is_page else None
    keys = record.keys()
    if as_text(record.get("type")) in _TYPES and (
        {"traceId", "startTime"} <= keys or {"trace_id", "start_time"} <= keys
    ):
        return "observation"
    data_type = record.get("dataType", record.get("data_type"))
    if "name" in keys and as_text(data_type) in _SCORE_TYPES:
        return "score" if {"source", "traceId", "trace_id", "subject"} & keys else None
    if {"id", "timestamp", "tags"} <= keys and (
        {"sessionId", "userId"} <= keys or {"session_id", "user_id", "release"} <= keys
    ):
        return "trace"
    return None


def read_observation(fields: dict[str, Any], piece: int, trace: TraceInfo | None = None) -> Operation | None:
    """An observation as an operation, None where it has no id."""
    fields = camel_case(fields)
    operation_id = as_text(fields.pop("id", None))
    if operation_id is None:
        return None
    metadata = decode_text(fields.pop("metadata", None))
    attributes = as_object(decode_text(as_object(metadata).get("attributes")))
    output, name = fields.pop("output", None), as_text(fields.pop("name", None))
    logged_type = fields.pop("type", None)
    kind, call_id = _kind(logged_type, output, attributes)
    status, level = as_text(fields.pop("statusMessage", None)), fields.pop("level", None)
    models = [as_text(fields.pop(key, None)) for key in ("model", "providedModelName")]
    usage = _usage(fields)
    operation = Operation(
        operation_id,
        kind,
        (piece,),
        trace_id=as_text(fields.pop("traceId", None)) or (trace.trace_id if trace is not None else None),
        parent_id=as_text(fields.pop("parentObservationId", None)),
        name=name,
        started_at=as_text(fields.pop("startTime", None)),
        ended_at=as_text(fields.pop("endTime", None)),
        input=fields.pop("input", None),
        output=output,
        system=attributes.get("gen_ai.system_instructions"),
        tools=tools_text(fields.pop("toolDefinitions", None))
        or attribute_tools(attributes)
        or tools_text(as_object(metadata).get("tools")),
        response_id=as_text(attributes.get("gen_ai.response.id")),
        previous_response_id=as_text(attributes.get("gen_ai.conversation.id")),
        model=next((model for model in models if model), None),
        usage=usage,
        stop_reason=attribute_stop_reason(attributes),
        error=MessageError("error", status or "") if level == "ERROR" else None,
        tool_call_id=call_id,
        agent=attribute_agent(attributes),
        session_id=as_text(fields.pop("sessionId", None)),
        user_id=as_text(fields.pop("userId", None)),
        # What an evaluator or guardrail asks a model is no step of the agent.
        is_utility=True if as_text(logged_type) in _JUDGES or _is_internal(fields.get("environment")) else None,
        metadata=without_repeats(metadata),
    )
    rest = {key: value for key, value in fields.items() if key not in _DERIVED and value not in (None, {}, [], "")}
    if status is not None and operation.error is None:
        rest["statusMessage"] = status
    operation.metadata.update(rest)
    return operation


def _kind(logged: object, output: object, attributes: dict[str, Any]) -> tuple[OperationKind, str | None]:
    """What an observation is; tools that a framework traces as spans are known by what they hold."""
    if logged == "GENERATION":
        return "model", None
    call_id = attribute_tool_call_id(attributes)
    if call_id is None and isinstance(output, (str, dict)):
        message = as_object(decode_text(output))
        call_id = as_text(message.get("tool_call_id")) if message.get("type") == "tool" else None
    if logged == "TOOL" or call_id is not None or "gen_ai.tool.name" in attributes:
        return "tool", call_id
    return "other", None


def _is_internal(environment: object) -> bool:
    """Langfuse traces its own judges in environments of this prefix."""
    return isinstance(environment, str) and environment.startswith("langfuse-")


def _usage(fields: dict[str, Any]) -> Usage | None:
    """Tokens and cost; the details stay where they say more."""
    details = as_object(fields.get("usageDetails")) or as_object(fields.get("usage"))
    cost = as_object(fields.get("costDetails")).get("total", fields.get("calculatedTotalCost"))
    counts = [as_count(details.get(key)) for key in ("input", "output")]
    for position, key in enumerate(("promptTokens", "completionTokens")):
        counts[position] = as_count(fields.get(key)) if counts[position] is None else counts[position]
    price = float(cost) if isinstance(cost, (int, float)) and not isinstance(cost, bool) else None
    if details.keys() <= {"input", "output", "total"}:
        fields.pop("usageDetails", None)
    if counts == [None, None] and not price:
        return None
    return Usage(counts[0], counts[1], price)


def read_trace(fields: dict[str, Any], piece: int) -> tuple[TraceInfo, Operation] | None:
    """What a trace record says of the trace, and the trace itself as its outermost operation."""
    fields = camel_case(fields)
    trace_id = as_text(fields.get("id"))
    if trace_id is None:
        return None
    info = _info(trace_id, fields, fields.get("name"), without_repeats(fields.get("metadata")))
    outermost = Operation(
        trace_id,
        "other",
        (piece,),
        trace_id=trace_id,
        name=as_text(fields.get("name")),
        started_at=as_text(fields.get("timestamp")),
        input=fields.get("input"),
        output=fields.get("output"),
        is_utility=True if _is_internal(fields.get("environment")) else None,
    )
    return info, outermost


def trace_of_observation(fields: dict[str, Any]) -> TraceInfo | None:
    """What an outermost observation says of its trace; version 2 of the interface has no trace records."""
    fields = camel_case(fields)
    trace_id = as_text(fields.get("traceId"))
    if trace_id is None or fields.get("parentObservationId") is not None or fields.get("traceName") is None:
        return None
    return _info(trace_id, fields, fields["traceName"], {})


def _info(trace_id: str, fields: dict[str, Any], name: object, metadata: dict[str, Any]) -> TraceInfo:
    kept = {
        "name": name,
        "tags": fields.get("tags"),
        "release": fields.get("release"),
        "version": fields.get("version"),
        "environment": fields.get("environment"),
        "metadata": metadata,
    }
    return TraceInfo(
        trace_id,
        as_text(fields.get("sessionId")) or None,
        as_text(fields.get("userId")) or None,
        task_id=as_text(metadata.get("dataset_item_id")),
        metadata={key: value for key, value in kept.items() if value not in (None, {}, [], "")},
    )


def scores_of_trace(fields: dict[str, Any]) -> list[tuple[str | None, Score]]:
    """The scores and corrections in a trace record, each with the id of the observation that it judges, if any."""
    found = []
    for value in (*as_list(fields.get("scores")), *as_list(fields.get("corrections"))):
        if isinstance(value, dict):
            score = camel_case(value)
            found.append((as_text(score.get("observationId")), read_score(score)))
    return found


def read_score(fields: dict[str, Any]) -> Score:
    """A score with its keys in camelCase; a correction becomes a score without a value."""
    data_type, value, text = fields.get("dataType"), fields.get("value"), as_text(fields.get("stringValue"))
    long_text = as_text(fields.get("longStringValue")) or None
    correction: object = None
    if data_type in ("CORRECTION", "TEXT"):
        # The number of such a score is always 0; version 3 of the interface has the text for the value.
        written = long_text or text or as_text(value) or None
        value, correction = (None, decode_text(written)) if data_type == "CORRECTION" else (written, None)
    elif data_type == "CATEGORICAL" and text is not None and fields.get("configId") is None:
        # Without a configuration that numbers the categories the number says nothing.
        value = None
    extra = decode_text(fields.get("metadata"))
    metadata = {"metadata": extra} if extra not in (None, {}) else {}
    for key in ("id", "dataType", "source", "configId", "queueId", "executionTraceId", "environment", "datasetRunId"):
        if fields.get(key) is not None:
            metadata[key] = fields[key]
    source = fields.get("source")
    return make_score(
        fields.get("name"),
        value,
        label=text if data_type == "CATEGORICAL" else None,
        scorer=fields.get("authorUserId"),
        kind=scorer_kind_of(source),
        comment=fields.get("comment"),
        correction=correction,
        timestamp=as_text(fields.get("timestamp")),
        metadata=metadata,
    )


def read_feedback(fields: dict[str, Any]) -> list[Feedback]:
    """A score record of its own; nothing where it names nothing that it judges."""
    fields = camel_case(fields)
    subject = as_object(decode_text(fields.get("subject")))
    if isinstance(kind := subject.get("kind"), str):
        fields[f"{kind}Id"] = subject.get("id")
    targets: tuple[tuple[str, FeedbackTarget], ...] = (
        ("observationId", "call"),
        ("traceId", "trace"),
        ("sessionId", "session"),
    )
    for key, target in targets:
        if target_id := as_text(fields.get(key)):
            return [Feedback(target, target_id, read_score(fields))]
    return []
