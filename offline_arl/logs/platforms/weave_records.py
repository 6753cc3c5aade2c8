"""Records of Weave as operations, traces and scores."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from offline_arl.logs.platforms.message_shapes import decode_text
from offline_arl.logs.platforms.trace_operations import Operation, OperationKind, TraceInfo
from offline_arl.logs.primitives.scores import make_score
from offline_arl.logs.primitives.times import iso_time
from offline_arl.logs.primitives.values import as_count, as_list, as_object, as_text
from offline_arl.trajectories.schema import Direction, MessageError, Score, ScorerKind, Usage

_REF = "weave:///"
_MODEL_NAME = re.compile(r"(completions?|responses|messages)[._](a?create|stream|parse)|generate_content|acompletion")
# How Weave writes down the classes of objects.
_CLASS_KEYS = frozenset({"_type", "_class_name", "_bases"})
# Of a call: what is read into a place of its own, or describes Weave's run.
_READ = frozenset(
    {
        "id",
        "project_id",
        "op_name",
        "display_name",
        "trace_id",
        "parent_id",
        "thread_id",
        "turn_id",
        "started_at",
        "ended_at",
        "inputs",
        "output",
        "attributes",
        "summary",
        "exception",
        "otel_dump",
        "storage_size_bytes",
        "total_storage_size_bytes",
        "deleted_at",
    }
)
_THUMBS = {"👍": 1.0, "👎": 0.0}


def is_call(record: Any) -> bool:
    """Whether a parsed record of any origin is surely a call of Weave's."""
    return (
        isinstance(record, dict)
        and all(isinstance(record.get(key), str) for key in ("id", "trace_id", "op_name"))
        and ("inputs" in record or "output" in record)
        and ("project_id" in record or "started_at" in record)
    )


def is_feedback(record: Any) -> bool:
    """Whether a parsed record of any origin is surely feedback of Weave's."""
    return (
        isinstance(record, dict)
        and isinstance(record.get("feedback_type"), str)
        and isinstance(record.get("weave_ref"), str)
        and "payload" in record
    )


def op_name(value: object) -> str:
    """The name of an operation without its address and version.

    >>> op_name("weave:///me/proj/op/openai.chat.completions.create:Zf3")
    'openai.chat.completions.create'
    """
    text = as_text(value) or ""
    return text.rpartition("/op/")[2].rpartition(":")[0] if text.startswith(_REF) else text


def call_of_ref(ref: object) -> str | None:
    """The id of the call that an address is of."""
    parts = (as_text(ref) or "").removeprefix(_REF).split("/")
    return parts[3] if len(parts) >= 4 and parts[2] == "call" else None


def read_calls(calls: Sequence[tuple[dict[str, Any], int]]) -> list[Operation]:
    """Calls with the indices of their pieces as operations."""
    parents = {as_text(call.get("parent_id")) for call, _ in calls}
    return [_operation(call, piece, is_leaf=call["id"] not in parents) for call, piece in calls]


def _operation(call: dict[str, Any], piece: int, *, is_leaf: bool) -> Operation:
    name = op_name(call["op_name"])
    attributes, summary = dict(as_object(call.get("attributes"))), dict(as_object(call.get("summary")))
    about = as_object(attributes.pop("weave", None))
    inputs = _plain(call.get("inputs"))
    if isinstance(inputs, dict):
        inputs = {key: item for key, item in inputs.items() if key != "self" and item != "NOT_GIVEN"}
    refs = {key: item for key, item in as_object(inputs).items() if isinstance(item, str) and item.startswith(_REF)}
    if isinstance(inputs, dict):
        inputs = {key: item for key, item in inputs.items() if key not in refs}
    output = _plain(call.get("output"))
    if isinstance(output, str) and output.startswith(_REF):
        refs["output"], output = output, None
    judged = as_list(as_object(summary.pop("weave", None)).get("feedback"))
    usage, model = _usage(summary.pop("usage", None))
    kept = {key: item for key, item in call.items() if key not in _READ}
    kept.update(attributes=attributes, references=refs)
    return Operation(
        call["id"],
        _kind(about.get("kind"), name, is_leaf=is_leaf, is_root=not call.get("parent_id"), has_usage=usage is not None),
        (piece,),
        trace_id=call["trace_id"],
        parent_id=as_text(call.get("parent_id")),
        name=as_text(call.get("display_name")) or name,
        started_at=iso_time(call.get("started_at")),
        ended_at=iso_time(call.get("ended_at")),
        input=inputs,
        output=output,
        model=model if is_leaf else None,
        usage=usage,
        error=_error(call.get("exception")),
        session_id=as_text(call.get("thread_id")),
        user_id=None,
        scores=[score for item in judged if isinstance(item, dict) for score in read_scores(item)],
        metadata={key: item for key, item in kept.items() if item not in (None, {}, [])},
    )


def _kind(kind: object, name: str, *, is_leaf: bool, is_root: bool, has_usage: bool) -> OperationKind:
    """What a call is of. Weave marks calls of models; tools are functions like any other, at the leaves."""
    if kind == "llm" or (is_leaf and (has_usage or _MODEL_NAME.search(name) is not None)):
        return "model"
    return "tool" if kind == "tool" or (is_leaf and not is_root) else "other"


def _plain(value: object) -> object:
    """A value without the classes of its objects."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if key not in _CLASS_KEYS}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _usage(value: object) -> tuple[Usage | None, str | None]:
    """The usage that a summary has for each model; of one model only it is that of a call."""
    models = as_object(value)
    if len(models) != 1:
        return None, None
    model, counts = next(iter(models.items()))
    found = as_object(counts)
    pair = [
        next((count for key in keys if (count := as_count(found.get(key))) is not None), None)
        for keys in (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens"))
    ]
    return Usage(*pair), model


def _error(exception: object) -> MessageError | None:
    if not isinstance(exception, str) or not exception:
        return None
    fields = as_object(decode_text(exception))
    kind, text = as_text(fields.get("type")), as_text(fields.get("message"))
    return MessageError(kind or "error", text if text is not None else exception)


def read_info(call: dict[str, Any]) -> TraceInfo:
    """What the outermost call of a trace says of the trace."""
    attributes = {key: item for key, item in as_object(call.get("attributes")).items() if key != "weave"}
    kept = {"name": as_text(call.get("display_name")) or op_name(call["op_name"]), "attributes": attributes}
    return TraceInfo(
        call["trace_id"],
        session_id=as_text(call.get("thread_id")),
        metadata={key: item for key, item in kept.items() if item},
    )


def read_scores(fields: dict[str, Any]) -> Iterator[Score]:
    """The judgements of one feedback; a scorer's result may hold several."""
    kind, payload = as_text(fields.get("feedback_type")) or "", fields.get("payload")
    content = as_object(payload)
    common: dict[str, Any] = {
        "scorer": fields.get("creator") or fields.get("wb_user_id"),
        "timestamp": iso_time(fields.get("created_at")),
        "metadata": {
            key: item
            for key, item in fields.items()
            if key in ("id", "feedback_type", "runnable_ref", "annotation_ref", "call_ref") and item is not None
        },
    }
    if kind == "wandb.reaction.1":
        emoji = as_text(content.get("emoji"))
        thumb = next((value for sign, value in _THUMBS.items() if emoji is not None and emoji.startswith(sign)), None)
        direction: Direction | None = None if thumb is None else "higher_is_better"
        yield make_score("reaction", thumb, label=emoji, kind="human", direction=direction, **common)
    elif kind == "wandb.note.1":
        yield make_score("note", None, kind="human", comment=content.get("note"), **common)
    else:
        yield from _results(kind, payload, common)


def _results(kind: str, payload: object, common: dict[str, Any]) -> Iterator[Score]:
    scorer_kind: ScorerKind = "unknown"
    name, value = kind, payload
    for prefix, key, known in (("wandb.annotation.", "value", "human"), ("wandb.runnable.", "output", "unknown")):
        if kind.startswith(prefix):
            name, scorer_kind = kind.removeprefix(prefix), "human" if known == "human" else "unknown"
            value = as_object(payload).get(key, payload)
    fields = as_object(value)
    numbers = {key: item for key, item in fields.items() if isinstance(item, (bool, int, float))}
    if not numbers.keys() - {"score", "value"}:
        yield make_score(name, value, kind=scorer_kind, **common)
        return
    rest = {key: item for key, item in fields.items() if key not in numbers}
    for key, item in numbers.items():
        extra = {**common, "metadata": {**common["metadata"], **rest}}
        comment = as_text(fields.get("reason", fields.get("explanation")))
        yield make_score(f"{name}.{key}", item, kind=scorer_kind, comment=comment, **extra)
