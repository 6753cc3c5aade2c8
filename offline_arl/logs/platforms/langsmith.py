"""LangSmith: runs (as listed, exported or sent by the SDK) and feedback.

The runs of a trace are read together; those of a conversation are, where their metadata names it, because a later
trace repeats the earlier ones.
"""

from __future__ import annotations

from typing import Any

from offline_arl.logs.adapter import Assembly, Fragment, Group, RawRecord, RecordRefusedError
from offline_arl.logs.platforms.langsmith_records import (
    kind_of,
    merge_runs,
    read_feedback,
    read_info,
    read_run,
    runs_of,
    thread_of,
    trace_of,
)
from offline_arl.logs.platforms.trace_assembly import assemble_traces
from offline_arl.logs.platforms.trace_operations import Operation, TraceInfo
from offline_arl.logs.primitives.record_versions import feedback_assembly
from offline_arl.logs.primitives.values import as_text, decode_object, json_text


class LangSmithAdapter:
    """Reads runs and feedback of LangSmith."""

    name = "langsmith"
    title = "LangSmith runs and feedback"
    keeps = (
        "feedback with corrections and compared groups, threads, tags, metadata, errors, tool runs, dataset examples"
    )
    lacks = "the code's environment and signatures; feedback_stats are kept as metadata, because they are averages"

    def recognizes(self, record: Any) -> bool:
        """Whether the record is a run, several of them, what the SDK sends, or feedback."""
        return kind_of(record) is not None

    def fragments(self, record: RawRecord) -> list[Fragment]:
        """The groups of a record's runs, or of a feedback."""
        fields = decode_object(record.raw)
        kind = kind_of(fields)
        if kind == "feedback":
            return [Fragment(f"feedback:{fields.get('id')}", record.raw)]
        if kind is None:
            raise RecordRefusedError("is no run and no feedback of LangSmith's")
        fragments = []
        for run in runs_of(fields):
            trace_id = trace_of(run)
            if trace_id is None:
                raise RecordRefusedError(f"run {run['id']}: has no trace id")
            # The SDK's record of a run's end does not repeat the metadata that names the thread.
            thread_id = thread_of(run) if kind != "batch" else None
            payload = json_text({key: value for key, value in run.items() if key != "child_runs"})
            fragments.append(Fragment(f"thread:{thread_id}" if thread_id else f"trace:{trace_id}", payload.encode()))
        return fragments

    def assemble(self, group: Group) -> Assembly:
        """The trajectories of a trace or thread, or the feedback."""
        records = [decode_object(piece.payload) for piece in group.pieces]
        if group.key is not None and group.key.startswith("feedback:"):
            refusal = "feedback that names no run is of a whole project"
            return feedback_assembly(records, read_feedback, lambda item: as_text(item.get("modified_at")), refusal)
        assembly = Assembly()
        runs: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {}
        for piece, run in enumerate(records):
            known, pieces = runs.get(run["id"], ({}, ()))
            merged = merge_runs(known, run)
            if merged == known:
                assembly.duplicates[piece] = "repeats a run that is read already"
            else:
                runs[run["id"]] = merged, (*pieces, piece)
        operations: list[Operation] = []
        infos: dict[str, TraceInfo] = {}
        for run, pieces in runs.values():
            operations.extend(read_run(run, pieces))
            info = read_info(run)
            if info is not None:
                infos[info.trace_id] = info
        return assemble_traces(operations, infos, group, assembly)
