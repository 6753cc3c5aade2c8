"""Records of LangSmith as operations, traces and feedback."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

from offline_arl.logs.adapter import Feedback, RecordRefusedError
from offline_arl.logs.platforms.message_shapes import decode_text
from offline_arl.logs.platforms.tool_shapes import tools_text
from offline_arl.logs.platforms.trace_operations import Operation, OperationKind, TraceInfo
from offline_arl.logs.primitives.scores import make_score, scorer_kind_of
from offline_arl.logs.primitives.times import iso_time
from offline_arl.logs.primitives.values import as_count, as_list, as_object, as_text
from offline_arl.logs.providers.openai_stream import join_chunks
from offline_arl.trajectories.schema import MessageError, Usage

RecordKind = Literal["run", "batch", "page", "feedback"]

RUN_TYPES = frozenset({"llm", "chain", "tool", "retriever", "embedding", "prompt", "parser"})
_KINDS: dict[str, OperationKind] = {"llm": "model", "tool": "tool"}
_THREAD_KEYS = ("session_id", "thread_id", "conversation_id")
# JSON texts in the rows of a bulk export.
_STRUCTURES = ("inputs", "outputs", "extra", "events", "tags", "serialized", "feedback_stats")
# Of a run: what other keys hold already, what LangSmith computes, and the code's signature.
_DERIVED = frozenset(
    {
        "id",
        "name",
        "run_type",
        "inputs",
        "outputs",
        "extra",
        "events",
        "serialized",
        "trace_id",
        "parent_run_id",
        "parent_run_ids",
        "child_run_ids",
        "direct_child_run_ids",
        "dotted_order",
        "start_time",
        "end_time",
        "error",
        "tags",
        "prompt_tokens",
        "completion_tokens",
        "total_tokens",
        "total_cost",
        "prompt_cost",
        "completion_cost",
        "inputs_preview",
        "outputs_preview",
        "inputs_s3_urls",
        "outputs_s3_urls",
        "app_path",
        "manifest_id",
        "manifest_s3_id",
        "child_runs",
        "execution_order",
        "last_queued_at",
        "in_dataset",
        "share_token",
        "trace_tier",
        "ttl_seconds",
        "trace_upgrade",
        "trace_first_received_at",
        "first_token_time",
        "session_id",
        "tenant_id",
        "is_root",
        "attachments",
    }
)
_ZONE = re.compile(r"[+-]\d\d:?\d\d$")
_ERROR_NAME = re.compile(r"(\w+(?:\.\w+)*)\(")


def kind_of(record: Any) -> RecordKind | None:
    """What a parsed record of any origin is for LangSmith, None where it is not surely LangSmith's."""
    if not isinstance(record, dict):
        return None
    keys = record.keys()
    if keys <= {"post", "patch"} and keys:
        items = [item for key in keys for item in as_list(record[key])]
        return "batch" if items and all("id" in as_object(item) and "trace_id" in item for item in items) else None
    if isinstance(record.get("runs"), list):
        runs = record["runs"]
        return "page" if runs and all(kind_of(run) == "run" for run in runs) else None
    if as_text(record.get("run_type")) in RUN_TYPES and "id" in keys and {"inputs", "start_time"} & keys:
        return "run"
    if {"id", "key", "run_id"} <= keys and {"score", "value", "correction", "comment"} & keys:
        return "feedback"
    return None


def runs_of(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The runs in a record, those nested in others too."""
    kind = kind_of(record)
    pending = [record]
    if kind == "batch":
        pending = [run for key in ("post", "patch") for run in as_list(record.get(key))]
    elif kind == "page":
        pending = list(record["runs"])
    while pending:
        run = as_object(pending.pop(0))
        if isinstance(run.get("id"), str) and run["id"]:
            yield run
            pending.extend(as_list(run.get("child_runs")))


def trace_of(run: dict[str, Any]) -> str | None:
    """The id of a run's trace: recorded, the first of its dotted order, or its own where it has no parent."""
    trace_id = as_text(run.get("trace_id"))
    if trace_id is None and (path := _path(run)):
        trace_id = path[0]
    return trace_id or (as_text(run.get("id")) if run.get("parent_run_id") is None else None)


def thread_of(run: dict[str, Any]) -> str | None:
    """The conversation that a run says it is of, in its metadata."""
    metadata = as_object(as_object(decode_text(run.get("extra"))).get("metadata"))
    return next((found for key in _THREAD_KEYS if (found := as_text(metadata.get(key)))), None)


def _path(run: dict[str, Any]) -> list[str]:
    """The ids of the runs from the outermost to this one, in the dotted order."""
    order = as_text(run.get("dotted_order")) or ""
    return [part.partition("Z")[2] for part in order.split(".") if "Z" in part]


def merge_runs(known: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    """A run with what a later record of it adds: the wire sends a start and an end."""
    return {**known, **{key: value for key, value in later.items() if value not in (None, {}, [], "")}}


def read_run(run: dict[str, Any], pieces: tuple[int, ...]) -> list[Operation]:
    """A run as operations: one, or one for each prompt where a call of LangChain had several."""
    run = {key: decode_text(value) if key in _STRUCTURES else value for key, value in run.items()}
    extra, path = as_object(run.get("extra")), _path(run)
    metadata, parameters = as_object(extra.get("metadata")), as_object(extra.get("invocation_params"))
    outputs = _outputs(run)
    model = next(
        (found for key in ("ls_model_name", "model", "model_name")
         for holder in (metadata, parameters) if (found := as_text(holder.get(key)))),
        None,
    )  # fmt: skip
    operation = Operation(
        run["id"],
        _KINDS.get(str(run.get("run_type")), "other"),
        pieces,
        trace_id=trace_of(run),
        parent_id=as_text(run.get("parent_run_id")) or (path[-2] if len(path) > 1 else None),
        name=as_text(run.get("name")),
        started_at=_time(run.get("start_time")),
        ended_at=_time(run.get("end_time")),
        input=run.get("inputs"),
        output=outputs,
        system=parameters.get("system", as_object(metadata.get("ls_invocation_params")).get("system")),
        tools=tools_text(parameters.get("tools"))
        or tools_text(parameters.get("functions"))
        or tools_text(as_object(metadata.get("ls_invocation_params")).get("tools")),
        model=model,
        usage=_usage(run),
        error=_error(run.get("error")),
        tool_call_id=as_text(extra.get("tool_call_id"))
        or as_text(as_object(as_object(outputs).get("output")).get("tool_call_id")),
        agent=as_text(metadata.get("lc_agent_name")),
        session_id=thread_of(run),
        user_id=as_text(metadata.get("user_id")),
        metadata=_metadata(run, extra),
    )
    return _split_batch(operation)


def _metadata(run: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in run.items() if key not in _DERIVED}
    kept["tags"] = run.get("tags")
    kept.update({key: value for key, value in extra.items() if key not in ("runtime", "tool_call_id")})
    if isinstance(parameters := kept.get("invocation_params"), dict):
        kept["invocation_params"] = {key: value for key, value in parameters.items() if key not in ("tools", "_type")}
    if isinstance(metadata := kept.get("metadata"), dict):
        # The SDK copies its environment and the usage into the metadata.
        kept["metadata"] = {
            key: value
            for key, value in metadata.items()
            if not key.startswith(("LANGSMITH_", "LANGCHAIN_")) and key != "usage_metadata"
        }
    return {key: value for key, value in kept.items() if value not in (None, {}, [], "")}


def _outputs(run: dict[str, Any]) -> object:
    """The outputs, or what the events of a streamed run hold where it ended without any."""
    outputs = run.get("outputs")
    if isinstance(outputs, dict) and any(value is not None for value in outputs.values()):
        return outputs
    tokens = [
        as_object(event.get("kwargs")).get("token")
        for event in map(as_object, as_list(run.get("events")))
        if event.get("name") == "new_token"
    ]
    chunks = [token for token in tokens if isinstance(token, dict) and "choices" in token]
    if chunks and len(chunks) == len(tokens):
        try:
            return join_chunks(chunks)
        except RecordRefusedError:
            return outputs
    texts = [token for token in tokens if isinstance(token, str)]
    return {"output": "".join(texts)} if texts else outputs


def _split_batch(operation: Operation) -> list[Operation]:
    """One operation for each prompt of a batch that one run holds."""
    inputs, outputs = as_object(operation.input), as_object(operation.output)
    key = "prompts" if isinstance(inputs.get("prompts"), list) else "messages"
    prompts = as_list(inputs.get(key))
    if operation.kind != "model" or len(prompts) < 2 or (key == "messages" and not isinstance(prompts[0], list)):
        return [operation]
    generations = as_list(outputs.get("generations"))
    return [
        replace(
            operation,
            operation_id=operation.operation_id if not index else f"{operation.operation_id}#{index}",
            input={**inputs, key: [prompt]},
            output={**outputs, "generations": generations[index : index + 1]} if generations else None,
        )
        for index, prompt in enumerate(prompts)
    ]


def _time(value: object) -> str | None:
    """A time in UTC; LangSmith's interface leaves the zone out."""
    text = iso_time(value)
    if text is None or text.endswith("Z") or _ZONE.search(text):
        return text
    return f"{text.replace(' ', 'T', 1)}Z"


def _usage(run: dict[str, Any]) -> Usage | None:
    counts = as_count(run.get("prompt_tokens")), as_count(run.get("completion_tokens"))
    cost = run.get("total_cost")
    try:
        price = float(cost) if isinstance(cost, (str, int, float)) and not isinstance(cost, bool) else None
    except ValueError:
        price = None
    return Usage(*counts, price) if any(counts) or price else None


def _error(value: object) -> MessageError | None:
    """The error of a run: the text of a Python exception and its traceback."""
    if not isinstance(value, str) or not value:
        return None
    name = _ERROR_NAME.match(value)
    return MessageError(name[1] if name is not None else "error", value)


def read_info(run: dict[str, Any]) -> TraceInfo | None:
    """What the outermost run of a trace says of the trace; None for any other run."""
    trace_id = trace_of(run)
    if trace_id is None or trace_id != run.get("id"):
        return None
    extra = as_object(decode_text(run.get("extra")))
    metadata = as_object(extra.get("metadata"))
    example_id = as_text(run.get("reference_example_id"))
    kept = {
        "name": run.get("name"),
        "tags": decode_text(run.get("tags")),
        "project": run.get("session_name", run.get("session_id")),
        "feedback_stats": decode_text(run.get("feedback_stats")),
    }
    return TraceInfo(
        trace_id,
        session_id=thread_of(run),
        user_id=as_text(metadata.get("user_id")),
        task_id=example_id,
        metadata={key: value for key, value in kept.items() if value not in (None, {}, [], "")},
    )


def read_feedback(fields: dict[str, Any]) -> list[Feedback]:
    """A feedback record; nothing where it names no run, because it is of a whole project."""
    run_id, trace_id = as_text(fields.get("run_id")), as_text(fields.get("trace_id"))
    if run_id is None and trace_id is None:
        return []
    source = as_object(decode_text(fields.get("feedback_source")))
    value = decode_text(fields.get("value"))
    number = fields.get("score")
    held = {
        "id", "key", "run_id", "trace_id", "score", "value", "comment", "correction", "created_at", "modified_at",
        "feedback_source", "feedback_group_id", "extend_trace_retention", "session_id", "start_time",
    }  # fmt: skip
    metadata = {key: item for key, item in fields.items() if key not in held and item not in (None, {}, [])}
    if number is not None and value is not None and not isinstance(value, str):
        metadata["value"] = value
    if source:
        metadata["feedback_source"] = source
    score = make_score(
        fields.get("key"),
        value if number is None else number,
        label=value if number is not None and isinstance(value, str) else None,
        scorer=source.get("user_name", source.get("user_id")),
        kind=scorer_kind_of(source.get("type")),
        comment=fields.get("comment"),
        correction=decode_text(fields.get("correction")),
        comparison_id=fields.get("feedback_group_id") or fields.get("comparative_experiment_id"),
        timestamp=_time(fields.get("modified_at") or fields.get("created_at")),
        metadata=metadata,
    )
    if run_id is None or run_id == trace_id:
        return [Feedback("trace", trace_id or run_id or "", score)]
    return [Feedback("call", run_id, score)]
