"""MLflow traces: `trace.to_json()`, and rows of `search_traces` written as JSON."""

from __future__ import annotations

from typing import Any

from offline_arl.logs.adapter import Assembly, Fragment, Group, RawRecord, RecordRefusedError
from offline_arl.logs.platforms.trace_assembly import assemble_traces
from offline_arl.logs.platforms.trace_operations import Operation, TraceInfo
from offline_arl.logs.primitives.values import decode_object, json_text
from offline_arl.logs.telemetry.mlflow_records import (
    read_info,
    read_operations,
    session_of,
    trace_id_of,
    trace_of,
    version_of,
)


class MLflowAdapter:
    """Reads traces of MLflow, versions 2 and 3."""

    name = "mlflow"
    title = "MLflow traces with assessments"
    keeps = (
        "assessments (feedback as scores, expectations as corrections), session, user, tags, errors, tool runs, usage"
    )
    lacks = "previews of requests and responses; overridden assessments are kept as metadata, not as scores"

    def recognizes(self, record: Any) -> bool:
        """Whether the record is a trace, or a row that holds one."""
        return trace_of(record) is not None

    def fragments(self, record: RawRecord) -> list[Fragment]:
        """The group of a trace: its session, or itself."""
        trace = trace_of(decode_object(record.raw))
        if trace is None:
            raise RecordRefusedError("is no MLflow trace: it needs info with an id, and data with a list of spans")
        session = session_of(trace)
        key = f"session {session}" if session else f"trace {trace_id_of(trace)}"
        return [Fragment(key, json_text(trace).encode())]

    def assemble(self, group: Group) -> Assembly:
        """The trajectories of the traces of a session."""
        assembly = Assembly()
        latest: dict[str, tuple[int, dict[str, Any]]] = {}
        for piece, trace in enumerate(decode_object(piece.payload) for piece in group.pieces):
            known = latest.get(trace_id_of(trace))
            if known is not None and version_of(known[1]) > version_of(trace):
                assembly.duplicates[piece] = "an earlier export of a trace that is read already"
                continue
            if known is not None:
                assembly.duplicates[known[0]] = "an earlier export of a trace that is read already"
            latest[trace_id_of(trace)] = piece, trace
        operations: list[Operation] = []
        infos: dict[str, TraceInfo] = {}
        for piece, trace in latest.values():
            operations.extend(read_operations(trace, piece))
            info = read_info(trace)
            infos[info.trace_id] = info
        return assemble_traces(operations, infos, group, assembly)
