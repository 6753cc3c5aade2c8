"""W&B Weave: calls (as exported, queried or sent by the SDK) and feedback.

The calls of a trace are read together, those of a thread are where they name it. Feedback stands in a call's summary,
where it was asked for, or is a record of its own that names the call by its address.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from offline_arl.logs.adapter import Assembly, Feedback, Fragment, Group, RawRecord, RecordRefusedError
from offline_arl.logs.platforms.trace_assembly import assemble_traces
from offline_arl.logs.platforms.weave_records import (
    call_of_ref,
    is_call,
    is_feedback,
    read_calls,
    read_info,
    read_scores,
)
from offline_arl.logs.primitives.record_versions import feedback_assembly
from offline_arl.logs.primitives.values import as_list, as_object, as_text, decode_object, json_text

_LISTS = ("batch", "calls", "result", "data")


class WeaveAdapter:
    """Reads calls and feedback of Weave."""

    name = "weave"
    title = "W&B Weave calls and feedback"
    keeps = "reactions, notes, scorers' results and annotations, threads, attributes, exceptions, usage"
    lacks = (
        "values behind references (weave:///...), the machine's description; exports were checked against what the "
        "SDK sends, not against the service; calls that the SDK sends in halves (start and end) are not joined"
    )

    def recognizes(self, record: Any) -> bool:
        """Whether the record is a call, feedback, or a list of them."""
        return is_call(record) or is_feedback(record) or bool(_items_in(record))

    def fragments(self, record: RawRecord) -> list[Fragment]:
        """The groups of a record's calls, or of a feedback."""
        return list(_fragments(decode_object(record.raw)))

    def assemble(self, group: Group) -> Assembly:
        """The trajectories of a trace or thread, or feedback."""
        records = [decode_object(piece.payload) for piece in group.pieces]
        if group.key is not None and group.key.startswith("feedback:"):
            return feedback_assembly(records, _read_feedback, _created_at, "feedback that is on no call")
        assembly = Assembly()
        calls: dict[str, tuple[dict[str, Any], int]] = {}
        for piece, call in enumerate(records):
            known = calls.get(call["id"])
            # A call that was still running when it was exported first is complete in a later export.
            if known is not None and (call.get("ended_at") is None or known[0] == call):
                assembly.duplicates[piece] = "repeats a call that is read already"
                continue
            if known is not None:
                assembly.duplicates[known[1]] = "an earlier state of a call"
            calls[call["id"]] = call, piece
        operations = read_calls(list(calls.values()))
        infos = {call["trace_id"]: read_info(call) for call, _ in calls.values() if not call.get("parent_id")}
        return assemble_traces(operations, infos, group, assembly)


def _items_in(record: Any) -> list[dict[str, Any]]:
    """The calls or feedback that one record lists; none where it lists anything else."""
    for key in _LISTS:
        items = as_list(as_object(record).get(key))
        if items and all(is_call(item) or is_feedback(item) for item in items):
            return items
    return []


def _fragments(fields: dict[str, Any]) -> Iterator[Fragment]:
    for item in _items_in(fields) or [fields]:
        if is_feedback(item):
            yield Fragment(f"feedback:{item.get('id') or json_text(item)}", json_text(item).encode())
        elif is_call(item):
            thread_id = as_text(item.get("thread_id"))
            key = f"thread:{thread_id}" if thread_id else f"trace:{item['trace_id']}"
            yield Fragment(key, json_text(item).encode())
        else:
            raise RecordRefusedError("is no call and no feedback of Weave's")


def _created_at(fields: dict[str, Any]) -> str:
    return as_text(fields.get("created_at")) or ""


def _read_feedback(fields: dict[str, Any]) -> list[Feedback]:
    call_id = call_of_ref(fields.get("weave_ref"))
    return [] if call_id is None else [Feedback("call", call_id, score) for score in read_scores(fields)]
