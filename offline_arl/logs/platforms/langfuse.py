"""Langfuse: traces downloaded in its interface, its public API, its export to blob storage, and scores.

A trace with its observations is one record, or each observation, trace and score is a record of its own. Traces of
one session are read together where their records name the session, because a later trace of a conversation repeats
the earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from offline_arl.logs.adapter import Assembly, Fragment, Group, RawRecord, RecordRefusedError
from offline_arl.logs.platforms.langfuse_records import (
    camel_case,
    kind_of,
    read_feedback,
    read_observation,
    read_trace,
    scores_of_trace,
    trace_of_observation,
)
from offline_arl.logs.platforms.trace_assembly import assemble_traces
from offline_arl.logs.platforms.trace_operations import Operation, TraceInfo
from offline_arl.logs.primitives.record_versions import feedback_assembly
from offline_arl.logs.primitives.values import as_list, as_object, as_text, decode_object, json_text
from offline_arl.trajectories.schema import Score


class LangfuseAdapter:
    """Reads traces, observations and scores of Langfuse."""

    name = "langfuse"
    title = "Langfuse traces, observations and scores"
    keeps = "scores and corrections of traces and observations, session and user, tags, model parameters, cost"
    lacks = "figures that Langfuse computes (latency, cost by part); attributes that repeat input and output"

    def recognizes(self, record: Any) -> bool:
        """Whether the record is a trace, an observation or a score in one of Langfuse's spellings."""
        return kind_of(record) is not None

    def fragments(self, record: RawRecord) -> list[Fragment]:
        """The groups of a record: sessions, traces, and scores by their ids."""
        return list(_fragments(decode_object(record.raw), record.raw))

    def assemble(self, group: Group) -> Assembly:
        """The trajectories of a session or trace, or the feedback of a score."""
        records = [decode_object(piece.payload) for piece in group.pieces]
        if group.key is not None and group.key.startswith("score:"):
            refusal = "a score that names no trace, observation or session"
            return feedback_assembly(records, read_feedback, _changed_at, refusal)
        return _Reading().read(records, group)


def _fragments(fields: dict[str, Any], raw: bytes) -> Iterator[Fragment]:
    kind = kind_of(fields)
    if kind == "page":
        for item in fields["data"]:
            if not isinstance(item, dict):
                raise RecordRefusedError("data: expected a list of objects")
            yield from _fragments(item, json_text(item).encode())
        return
    if kind is None:
        raise RecordRefusedError("is no trace, observation or score of Langfuse's")
    known = camel_case(as_object(fields["trace"]) if kind == "download" else fields)
    if kind == "score":
        yield Fragment(f"score:{known.get('id') or json_text(known)}", raw)
        return
    session_id = as_text(known.get("sessionId"))
    trace_id = as_text(known.get("traceId" if kind == "observation" else "id"))
    if trace_id is None:
        raise RecordRefusedError(f"{kind}: has no trace id")
    is_whole = kind == "download" or any(isinstance(item, dict) for item in as_list(known.get("observations")))
    if session_id:
        yield Fragment(f"session:{session_id}", raw)
    # Observations without a session may be elsewhere, and are then to be joined with this trace.
    if not session_id or (kind == "trace" and not is_whole):
        yield Fragment(f"trace:{trace_id}", raw)


def _changed_at(record: dict[str, Any]) -> str | None:
    return as_text(record.get("updatedAt", record.get("updated_at")))


class _Reading:
    """The records of a group, each observation and trace once."""

    def __init__(self) -> None:
        self._operations: dict[str, Operation] = {}
        self._versions: dict[str, tuple[bool, str]] = {}
        self._infos: dict[str, TraceInfo] = {}
        self._scores: dict[str, dict[str, Score]] = {}  # of observations, by id of the observation and the score

    def read(self, records: list[dict[str, Any]], group: Group) -> Assembly:
        assembly = Assembly()
        for piece, record in enumerate(records):
            kind = kind_of(record)
            if kind == "observation":
                self._add(read_observation(record, piece), record)
                info = trace_of_observation(record)
                if info is not None:
                    self._infos.setdefault(info.trace_id, info)
            else:
                trace = record["trace"] if kind == "download" else record
                self._add_trace(as_object(trace), as_list(record.get("observations")), piece)
        operations = list(self._operations.values())
        for operation in operations:
            operation.scores.extend(self._scores.get(operation.operation_id, {}).values())
        held = {piece for operation in operations for piece in operation.pieces}
        for piece in range(len(records)):
            if piece not in held:
                assembly.duplicates[piece] = "an earlier version of a trace or observation that is read already"
        return assemble_traces(operations, self._infos, group, assembly)

    def _add_trace(self, trace: dict[str, Any], observations: list[Any], piece: int) -> None:
        found = read_trace(trace, piece)
        if found is None:
            return
        info, outermost = found
        known = self._infos.setdefault(info.trace_id, info)
        known.metadata.update(info.metadata)
        known.session_id, known.user_id = known.session_id or info.session_id, known.user_id or info.user_id
        known.task_id = known.task_id or info.task_id
        self._add(outermost, trace)
        for target, score in scores_of_trace(trace):
            score_id = str(score.metadata.get("id"))
            if target is not None:
                self._scores.setdefault(target, {})[score_id] = score
            elif all(item.metadata.get("id") != score_id for item in known.scores):
                known.scores.append(score)
        # A download repeats the observations inside the trace, without input and output.
        for item in (*observations, *as_list(trace.get("observations"))):
            if isinstance(item, dict):
                self._add(read_observation(item, piece, info), item)

    def _add(self, operation: Operation | None, record: dict[str, Any]) -> None:
        """Keep the version of an operation that has content, or is later."""
        if operation is None:
            return
        has_content = operation.input is not None or operation.output is not None
        version = (has_content, _changed_at(record) or "")
        key = operation.operation_id
        if key not in self._operations or version > self._versions[key]:
            self._operations[key], self._versions[key] = operation, version
