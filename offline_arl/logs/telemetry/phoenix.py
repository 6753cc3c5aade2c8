"""Phoenix annotations: judgements of spans, traces and sessions, which Phoenix exports apart from the spans.

The spans themselves are read by `spans_adapter.FlatSpansAdapter`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from offline_arl.logs.adapter import Assembly, Feedback, FeedbackTarget, Fragment, Group, RawRecord, RecordRefusedError
from offline_arl.logs.primitives.record_versions import feedback_assembly
from offline_arl.logs.primitives.scores import make_score, scorer_kind_of
from offline_arl.logs.primitives.times import iso_time
from offline_arl.logs.primitives.values import as_object, as_text, decode_object, json_text
from offline_arl.logs.telemetry.spans import span_identity

_TARGETS: tuple[tuple[str, FeedbackTarget], ...] = (
    ("span_id", "call"),
    ("trace_id", "trace"),
    ("session_id", "session"),
)
_NAME_KEYS = ("name", "annotation_name")


class PhoenixAnnotationsAdapter:
    """Reads annotations of Phoenix: as its API gives them, one by one or a page, and as rows of a data frame."""

    name = "phoenix_annotations"
    title = "Phoenix annotations of spans, traces and sessions"
    keeps = "label, score, explanation, annotator, identifier and metadata; joined by the id of what they judge"
    lacks = ""

    def recognizes(self, record: Any) -> bool:
        """Whether the record is an annotation, or a page of them."""
        return next(_annotations(record), None) is not None

    def fragments(self, record: RawRecord) -> list[Fragment]:
        """The annotations by what they judge and who judged it; Phoenix replaces an earlier one of the same name."""
        annotations = list(_annotations(decode_object(record.raw)))
        if not annotations:
            raise RecordRefusedError("is no Phoenix annotation: it needs a name, an annotator_kind and what it judges")
        return [Fragment(_key(annotation), json_text(annotation).encode()) for annotation in annotations]

    def assemble(self, group: Group) -> Assembly:
        """The feedback of the latest version of an annotation."""
        records = [decode_object(piece.payload) for piece in group.pieces]
        return feedback_assembly(records, _feedback, _changed_at, "an annotation that names nothing that it judges")


def _annotations(record: Any) -> Iterator[dict[str, Any]]:
    """The annotations of a record: itself, or those of a page (`{"data": [...], "next_cursor": ...}`)."""
    fields = as_object(record)
    items = fields["data"] if isinstance(fields.get("data"), list) and "next_cursor" in fields else [fields]
    for item in items:
        if _is_annotation(item):
            yield item


def _is_annotation(record: Any) -> bool:
    return (
        isinstance(record, dict)
        and isinstance(record.get("annotator_kind"), str)
        and any(isinstance(record.get(key), str) for key in _NAME_KEYS)
        and any(isinstance(record.get(key), str) for key, _ in _TARGETS)
    )


def _key(annotation: dict[str, Any]) -> str:
    parts = [
        annotation.get(key) for key in (*_NAME_KEYS, *(key for key, _ in _TARGETS), "identifier", "document_position")
    ]
    # A note is never replaced: each is its own, whatever its name.
    return json_text([*parts, annotation.get("id") if parts[0] == "note" or parts[1] == "note" else None])


def _changed_at(annotation: dict[str, Any]) -> str | None:
    return iso_time(annotation.get("updated_at", annotation.get("created_at")))


def _feedback(annotation: dict[str, Any]) -> list[Feedback]:
    for key, target in _TARGETS:
        target_id = as_text(annotation.get(key))
        if target_id is None:
            continue
        result = as_object(annotation.get("result"))
        values = {
            name: result.get(name, annotation.get(f"result.{name}", annotation.get(name)))
            for name in ("label", "score", "explanation")
        }
        extra = dict(as_object(annotation.get("metadata")))
        for name in ("id", "identifier", "source", "document_position", "user_id"):
            if annotation.get(name) not in (None, ""):
                extra.setdefault(name, annotation[name])
        kind = scorer_kind_of(annotation["annotator_kind"])
        score = make_score(
            annotation.get("name", annotation.get("annotation_name")),
            values["score"],
            label=values["label"],
            scorer=annotation.get("user_id") if kind == "human" else extra.get("model"),
            kind=kind,
            comment=values["explanation"],
            timestamp=_changed_at(annotation),
            metadata=extra,
        )
        return [Feedback(target, target_id if target == "session" else span_identity(target_id) or target_id, score)]
    return []
