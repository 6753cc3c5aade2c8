"""Braintrust: rows of logs and experiments (as fetched, queried, exported or sent by the SDK) and feedback.

A row is a span; rows of one id are versions of it, of which each adds to the one before. Scores stand in the rows.
Only what the SDK sends for `log_feedback` is apart from the row that it is about.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from offline_arl.logs.adapter import Assembly, Feedback, Fragment, Group, RawRecord, RecordRefusedError
from offline_arl.logs.platforms.message_shapes import decode_text
from offline_arl.logs.platforms.tool_shapes import tools_text
from offline_arl.logs.platforms.trace_assembly import assemble_traces
from offline_arl.logs.platforms.trace_operations import Operation, OperationKind, TraceInfo
from offline_arl.logs.primitives.record_versions import feedback_assembly
from offline_arl.logs.primitives.scores import make_score
from offline_arl.logs.primitives.times import iso_time
from offline_arl.logs.primitives.values import as_count, as_list, as_object, as_text, decode_object, json_text
from offline_arl.trajectories.schema import MessageError, Score, Usage

_KINDS: dict[str, OperationKind] = {"llm": "model", "tool": "tool"}
_LISTS = ("rows", "events", "data")
_STRUCTURES = ("scores", "metadata", "metrics", "span_attributes", "span_parents", "origin", "tags", "context")
_SESSION_KEYS = ("session_id", "thread_id", "conversation_id")
# What is read into a place of its own, or names where Braintrust keeps the row.
_READ = frozenset(
    {
        "id",
        "span_id",
        "root_span_id",
        "span_parents",
        "span_attributes",
        "input",
        "output",
        "scores",
        "expected",
        "error",
        "metadata",
        "metrics",
        "tags",
        "origin",
        "context",
        "created",
        "is_root",
        "log_id",
        "org_id",
        "project_id",
        "experiment_id",
        "_xact_id",
        "_is_merge",
        "_pagination_key",
    }
)


class BraintrustAdapter:
    """Reads rows and feedback of Braintrust."""

    name = "braintrust"
    title = "Braintrust rows of logs and experiments"
    keeps = "scores (a null stays one without a value), expected as a correction, tags, metadata, dataset rows, errors"
    lacks = "the code's place (context); exports were checked against the SDK's rows, not against the service"

    def recognizes(self, record: Any) -> bool:
        """Whether the record is a row, a list of rows under one of the interface's keys, or feedback on a row."""
        return _is_row(record) or _is_feedback(record) or bool(_rows_in(record))

    def fragments(self, record: RawRecord) -> list[Fragment]:
        """The groups of a record's rows, or of a feedback."""
        fields = decode_object(record.raw)
        fragments = []
        for row in _rows_in(fields) or [fields]:
            if _is_feedback(row):
                key = f"feedback:{row.get('_xact_id') or row.get('id')}:{json_text(sorted(row))}"
            elif _is_row(row):
                key = f"trace:{row['root_span_id']}"
            else:
                raise RecordRefusedError("is no row and no feedback of Braintrust's")
            fragments.append(Fragment(key, json_text(row).encode()))
        return fragments

    def assemble(self, group: Group) -> Assembly:
        """The trajectories of a trace, or feedback."""
        records = [decode_object(piece.payload) for piece in group.pieces]
        if group.key is not None and group.key.startswith("feedback:"):
            return feedback_assembly(records, _read_feedback, _version, "feedback that holds no judgement")
        assembly = Assembly()
        rows: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {}
        for piece, row in sorted(enumerate(records), key=lambda item: _version(item[1])):
            known, pieces = rows.get(row["id"], ({}, ()))
            merged = _merge(known, row)
            if merged == known:
                assembly.duplicates[piece] = "repeats a row that is read already"
            else:
                rows[row["id"]] = merged, (*pieces, piece)
        ids = {row["span_id"]: row["id"] for row, _ in rows.values()}
        operations = [_operation(row, pieces, ids) for row, pieces in rows.values() if not row.get("_object_delete")]
        infos = {row["root_span_id"]: _info(row) for row, _ in rows.values() if not row.get("span_parents")}
        for row, pieces in rows.values():
            if row.get("_object_delete"):
                assembly.set_apart.update(dict.fromkeys(pieces, "a row that was deleted"))
        return assemble_traces(operations, infos, group, assembly)


def _is_row(record: Any) -> bool:
    if not isinstance(record, dict):
        return False
    return all(isinstance(record.get(key), str) for key in ("id", "span_id", "root_span_id")) and (
        "span_attributes" in record or "span_parents" in record or "_xact_id" in record
    )


def _is_feedback(record: Any) -> bool:
    return isinstance(record, dict) and "_audit_source" in record and "id" in record and "root_span_id" not in record


def _rows_in(record: Any) -> list[dict[str, Any]]:
    """The rows that one record lists; none where it lists anything else."""
    for key in _LISTS:
        rows = as_list(as_object(record).get(key))
        if rows and all(_is_row(row) or _is_feedback(row) for row in rows):
            return rows
    return []


def _version(row: dict[str, Any]) -> str:
    """A sortable text of a row's transaction; rows that were never stored have none and keep their order."""
    number = str(row.get("_xact_id") or "")
    return f"{len(number):03d}{number}"


def _merge(known: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    """A row with what a later version adds; objects are merged key by key."""
    merged = dict(known)
    for key, value in later.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict) and later.get("_is_merge"):
            merged[key] = {**old, **value}
        elif value is not None or key not in merged:
            merged[key] = value
    merged.pop("_is_merge", None)
    return merged


def _structured(row: dict[str, Any]) -> dict[str, Any]:
    return {key: decode_text(value) if key in _STRUCTURES else value for key, value in row.items()}


def _operation(row: dict[str, Any], pieces: tuple[int, ...], ids: dict[str, str]) -> Operation:
    row = _structured(row)
    attributes, metadata = as_object(row.get("span_attributes")), dict(as_object(row.get("metadata")))
    metrics = dict(as_object(row.get("metrics")))
    counts = [as_count(metrics.pop(key, None)) for key in ("prompt_tokens", "completion_tokens")]
    parent = next(iter(as_list(row.get("span_parents"))), None)
    tools = tools_text(metadata.get("tools"))
    if tools is not None:
        del metadata["tools"]
    kept = {key: value for key, value in row.items() if key not in _READ}
    started, ended = iso_time(metrics.pop("start", None)), iso_time(metrics.pop("end", None))
    metrics.pop("tokens", None)
    kept.update(metadata=metadata, metrics=metrics, tags=row.get("tags"))
    return Operation(
        row["id"],
        _KINDS.get(str(attributes.get("type")), "other"),
        pieces,
        trace_id=row["root_span_id"],
        parent_id=ids.get(parent, parent) if isinstance(parent, str) else None,
        name=as_text(attributes.get("name")),
        started_at=started or as_text(row.get("created")),
        ended_at=ended,
        input=row.get("input"),
        output=row.get("output"),
        tools=tools,
        model=as_text(metadata.get("model")),
        usage=Usage(*counts) if any(counts) else None,
        error=_error(row.get("error")),
        # What a scorer asks a model is no step of the agent.
        is_utility=True if attributes.get("type") == "score" else None,
        session_id=_session(metadata),
        user_id=as_text(metadata.get("user_id")),
        scores=list(_scores(row)),
        metadata={key: value for key, value in kept.items() if value not in (None, {}, [])},
    )


def _error(error: object) -> MessageError | None:
    if error is None or error == "":
        return None
    return MessageError("error", error if isinstance(error, str) else json_text(error))


def _session(metadata: dict[str, Any]) -> str | None:
    return next((found for key in _SESSION_KEYS if (found := as_text(metadata.get(key)))), None)


def _scores(row: dict[str, Any]) -> Iterator[Score]:
    """The scores of a row, and what was expected of it."""
    for name, value in as_object(decode_text(row.get("scores"))).items():
        yield make_score(name, value)
    if row.get("expected") is not None:
        yield make_score("expected", None, correction=row["expected"])


def _info(row: dict[str, Any]) -> TraceInfo:
    row = _structured(row)
    metadata, origin = as_object(row.get("metadata")), as_object(row.get("origin"))
    is_dataset = origin.get("object_type") == "dataset"
    kept = {
        "name": as_object(row.get("span_attributes")).get("name"),
        "tags": row.get("tags"),
        "metadata": metadata,
        "experiment": row.get("experiment_id"),
    }
    return TraceInfo(
        row["root_span_id"],
        session_id=_session(metadata),
        user_id=as_text(metadata.get("user_id")),
        task_id=as_text(origin.get("id")) if is_dataset else None,
        metadata={key: value for key, value in kept.items() if value not in (None, {}, [])},
    )


def _read_feedback(fields: dict[str, Any]) -> list[Feedback]:
    """What the SDK sends for `log_feedback`: scores and an expected value, or a comment on another row."""
    fields = _structured(fields)
    audit = as_object(fields.get("_audit_metadata"))
    origin = as_object(fields.get("origin"))
    target = as_text(origin.get("id")) or as_text(fields.get("id")) or ""
    scores = list(_scores(fields))
    comment = as_text(as_object(fields.get("comment")).get("text"))
    if comment is not None:
        scores.append(make_score("comment", None, comment=comment, timestamp=fields.get("created")))
    metadata = {"source": fields.get("_audit_source"), **audit}
    return [
        Feedback(
            "call",
            target,
            make_score(
                score.name,
                score.value,
                scorer=audit.get("user_id"),
                comment=score.comment,
                correction=decode_text(score.correction),
                timestamp=score.timestamp,
                metadata=metadata,
            ),
        )
        for score in scores
    ]
