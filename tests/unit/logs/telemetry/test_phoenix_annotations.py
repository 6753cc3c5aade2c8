"""Phoenix annotations: judgements apart from their spans, in the shapes that a Phoenix 20.26 server gave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offline_arl.logs.reading import LogContents, read_logs

SPAN, TRACE = "8be1e4e01604c190", "039e36556548fa107012a6e0f798e1ec"
ANNOTATION = {
    "id": "U3BhbkFubm90YXRpb246MQ==",
    "created_at": "2026-11-29T20:04:10+00:00",
    "updated_at": "2026-11-29T20:04:10.266611+00:00",
    "source": "API",
    "user_id": "VXNlcjox",
    "name": "correctness",
    "annotator_kind": "HUMAN",
    "result": {"label": "correct", "score": 1.0, "explanation": "fine"},
    "metadata": {"round": 2},
    "identifier": "",
    "span_id": SPAN,
}
ROW = {
    "span_id": SPAN,
    "annotation_name": "toxicity",
    "annotator_kind": "LLM",
    "metadata": {"model": "judge-1"},
    "identifier": "",
    "result.label": None,
    "result.score": 0.2,
    "result.explanation": None,
}


def read(folder: Path, *records: Any) -> LogContents:
    path = folder / "annotations.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    contents = read_logs(path)
    assert contents.formats == {str(path): "phoenix_annotations"}
    assert len(contents.fates) == len(records)
    return contents


def test_an_annotation_of_a_span_is_feedback_on_its_call(tmp_path: Path) -> None:
    contents = read(tmp_path, ANNOTATION)
    assert contents.count("used") == 1
    assert not contents.trajectories
    (feedback,) = contents.feedback
    assert (feedback.target, feedback.target_id) == ("call", SPAN)
    score = feedback.score
    assert (score.name, score.value, score.label, score.comment) == ("correctness", 1.0, "correct", "fine")
    assert (score.scorer, score.scorer_kind, score.direction) == ("VXNlcjox", "human", "higher_is_better")
    assert score.timestamp == "2026-11-29T20:04:10.266611+00:00"
    assert score.metadata["round"] == 2


def test_a_row_of_a_data_frame(tmp_path: Path) -> None:
    (feedback,) = read(tmp_path, ROW).feedback
    assert (feedback.target, feedback.target_id) == ("call", SPAN)
    score = feedback.score
    assert (score.name, score.value, score.label) == ("toxicity", 0.2, None)
    assert (score.scorer, score.scorer_kind, score.direction) == ("judge-1", "model", "lower_is_better")


@pytest.mark.parametrize(
    ("ids", "target"),
    [({"trace_id": TRACE}, ("trace", TRACE)), ({"session_id": "sess-1"}, ("session", "sess-1"))],
)
def test_annotations_of_traces_and_sessions(tmp_path: Path, ids: dict[str, str], target: tuple[str, str]) -> None:
    record = {key: value for key, value in ANNOTATION.items() if key != "span_id"} | ids
    record["result"] = {"label": "yes", "score": None, "explanation": None}
    (feedback,) = read(tmp_path, record).feedback
    assert (feedback.target, feedback.target_id) == target
    assert (feedback.score.value, feedback.score.label) == (None, "yes")  # no verdict in numbers is not zero


def test_a_page_of_the_api(tmp_path: Path) -> None:
    contents = read(tmp_path, {"data": [ANNOTATION, ANNOTATION | {"name": "tone"}], "next_cursor": None})
    assert [feedback.score.name for feedback in contents.feedback] == ["correctness", "tone"]


def test_the_latest_version_of_an_annotation_holds(tmp_path: Path) -> None:
    """Phoenix replaces an annotation of the same name, target and identifier."""
    newer = ANNOTATION | {"updated_at": "2026-11-30T00:00:00+00:00", "result": {"score": 0.0}}
    other = ANNOTATION | {"identifier": "second-judge"}
    contents = read(tmp_path, newer, ANNOTATION, other)
    assert [(fate.fate, fate.reason) for fate in contents.fates] == [
        ("used", ""),
        ("duplicate", "another version of the same judgement holds"),
        ("used", ""),
    ]
    assert [feedback.score.value for feedback in contents.feedback] == [0.0, 1.0]


def test_notes_are_never_replaced(tmp_path: Path) -> None:
    notes = [ANNOTATION | {"name": "note", "id": str(number)} for number in range(2)]
    assert len(read(tmp_path, *notes).feedback) == 2
