"""Judgements find what they are about, whichever came first and however they name it."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from toy_sessions import add_piece, finish, record_key

from offline_arl.errors import DataError
from offline_arl.trajectories.encoding import encode_trajectory
from offline_arl.trajectories.schema import (
    Feedback,
    FeedbackTarget,
    Message,
    Producer,
    Score,
    Source,
    TextPart,
    Trajectory,
    tool_call,
)
from offline_arl.trajectories.store import Store


def make(name: str, **changes: object) -> Trajectory:
    fields: dict[str, object] = {
        "messages": [
            Message("user", [TextPart("Hi")], id=f"{name}-0"),
            Message("assistant", [TextPart("Hello")], id=f"{name}-1"),
        ],
        "source": Source("test"),
        "session_id": "session",
        "identifiers": {"trace": f"trace-{name}", "run": "run"},
    }
    return Trajectory(name, **{**fields, **changes})  # type: ignore[arg-type]


def feedback(target: FeedbackTarget, target_id: str, name: str = "quality", **changes: object) -> Feedback:
    return Feedback(target, target_id, Score(name, **{"value": 1.0, **changes}))  # type: ignore[arg-type]


def found(store: Store) -> list[tuple[str, str | None, int | None]]:
    """Score name, trajectory and message of every judgement, sorted."""
    frame = store.feedback.select("name", "trajectory_id", "message_index").collect()
    return sorted(frame.rows(), key=repr)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


def test_an_empty_store_has_typed_tables(store: Store) -> None:
    assert store.feedback.filter(pl.col("value") > 0).collect().columns[:4] == [
        "trajectory_id",
        "message_index",
        "name",
        "value",
    ]
    assert store.findings.collect().columns == ["trajectory_id", "code", "severity", "where", "text"]


def test_feedback_is_joined_by_each_kind_of_id(store: Store) -> None:
    with store.writer() as writer:
        writer.add_feedback(
            [
                feedback("trajectory", "a", "by trajectory"),
                feedback("trajectory", "a", "by trajectory and message", message_index=1),
                feedback("trace", "trace-b", "by trace"),
                feedback("trace", "run", "by run"),
                feedback("session", "session", "by session"),
                feedback("call", "b-1", "by message"),
                feedback("call", "session", "by an id of another kind"),
                feedback("trace", "nowhere", "by an unknown id"),
            ],
            record_key=record_key("scores:0"),
        )
    assert {row[1:] for row in found(store)} == {(None, None), (None, 1)}
    with store.writer() as writer:
        assert writer.record_state(record_key("scores:0")) == "used"
        writer.add(make("a"))
        writer.add(make("b", scores=[Score("own", 0.5, message_index=0)]))
    assert found(store) == sorted(
        [
            ("by trajectory", "a", None),
            ("by trajectory and message", "a", 1),
            ("by trace", "b", None),
            ("by run", "a", None),
            ("by run", "b", None),
            ("by session", "a", None),
            ("by session", "b", None),
            ("by message", "b", 1),
            ("by an id of another kind", None, None),
            ("by an unknown id", None, None),
            ("own", "b", 0),
        ],
        key=repr,
    )


def test_feedback_on_a_run_that_made_no_message_is_about_the_trajectories_that_name_it(store: Store) -> None:
    """Platforms judge enclosing runs and observations; adapters keep the ids of these among the identifiers."""
    with store.writer() as writer:
        writer.add(make("a", identifiers={"trace": "trace-a", "operation": "chain", "operation_2": "graph"}))
        writer.add(make("b", identifiers={"trace": "trace-b", "operation": "b-1"}))
        writer.add(make("c", identifiers={"trace": "trace-c", "operation": "a-1"}))
        writer.add_feedback(
            [
                feedback("call", "graph", "on a run"),
                feedback("call", "chain", "on a run with a message", message_index=1),
                feedback("call", "a-1", "on a message that c names too"),
                feedback("call", "b-1", "on a message"),
            ]
        )
    assert set(found(store)) == {
        ("on a message", "b", 1),
        ("on a message that c names too", "a", 1),
        ("on a run", "a", None),
        ("on a run with a message", "a", 1),
    }
    assert store.feedback.collect().height == 4


def test_a_judgement_keeps_all_it_says(store: Store) -> None:
    score = Score(
        "toxicity",
        0.9,
        "toxic",
        "judge",
        "model",
        "lower_is_better",
        1,
        "rude",
        '"Sorry"',
        "pair-7",
        "2026-01-01T00:00:00Z",
        {"k": [None]},
    )
    with store.writer() as writer:
        writer.add(make("a", scores=[score]))
        writer.add_feedback([Feedback("trajectory", "a", score)])
    own, apart = store.feedback.collect().to_dicts()
    assert own == {
        "trajectory_id": "a",
        "message_index": 1,
        "name": "toxicity",
        "value": 0.9,
        "label": "toxic",
        "scorer": "judge",
        "scorer_kind": "model",
        "direction": "lower_is_better",
        "comment": "rude",
        "correction": '"Sorry"',
        "comparison_id": "pair-7",
        "timestamp": "2026-01-01T00:00:00Z",
        "metadata": '{"k":[null]}',
        "target": None,
        "target_id": None,
    }
    assert apart == {**own, "target": "trajectory", "target_id": "a"}


def test_a_value_that_is_no_number_is_a_label(store: Store) -> None:
    with store.writer() as writer:
        writer.add_feedback([feedback("session", "s", value=float("nan"))])
        with pytest.raises(DataError, match="feedback on 's': cannot be stored as JSON"):
            writer.add_feedback([feedback("session", "s", comment="\ud800")])
    assert store.feedback.select("value", "label").collect().rows() == [(None, "nan")]


def test_what_was_replaced_is_judged_no_more(store: Store) -> None:
    """A session that grew: its scores, ids and findings are those of the last assembly."""
    orphan = Message("tool", [TextPart("x")], tool_call_id="gone")
    first = make("t", scores=[Score("own", 0.0)], messages=[Message("assistant", id="m0"), orphan])
    second = make("t", scores=[Score("own", 1.0)], messages=[Message("user"), Message("assistant", id="m0")])
    for position, (trajectory, value) in enumerate([(first, 0.25), (second, 0.75)]):
        with store.writer() as writer:
            add_piece(writer, f"a:{position}")
            ((group,),) = writer.dirty_groups()
            finish(writer, group, [trajectory], feedback=[feedback("call", "m0", "group's", value=value)])
    rows = store.feedback.select("name", "value", "message_index").collect().rows()
    assert rows == [("own", 1.0, None), ("group's", 0.75, 1)]
    assert store.findings.select("code", "where").collect().rows() == [("empty_message", "messages[1]")]


def test_copied_messages_do_not_draw_feedback(store: Store) -> None:
    copied = Message("assistant", [TextPart("Hello")], id="a-1", producer=Producer("copy"))
    with store.writer() as writer:
        writer.add(make("a"))
        writer.add(make("branch", messages=[copied, Message("assistant", [TextPart("Bye")], id="b-2")]))
        writer.add_feedback([feedback("call", "a-1")])
    assert found(store) == [("quality", "a", 1)]


def test_findings_are_kept_with_their_codes(store: Store) -> None:
    calls = [tool_call("f", "{", id="c")]
    with store.writer() as writer:
        writer.add(make("sound"))
        writer.add(make("odd", messages=[Message("assistant", tool_calls=calls), Message("user", [TextPart("?")])]))
    assert store.findings.collect().rows() == [
        ("odd", "unanswered_call", "warning", "messages[0].tool_calls[0]", "the call 'c' has no result"),
        (
            "odd",
            "invalid_json",
            "warning",
            "messages[0].tool_calls[0]",
            "invalid JSON: Input data was truncated",
        ),
    ]
    assert store.trajectories.select("n_invalid_calls").collect()["n_invalid_calls"].to_list() == [0, 1]


@pytest.mark.parametrize(
    "changes",
    [
        {"task_id": "\ud800"},
        {"model": "\udcff"},
        {"session_id": "\ud800"},
        {"scores": [Score("\ud800")]},
        {"messages": [Message("assistant", metadata={"reward": 10**400})]},
    ],
)
def test_what_no_column_can_hold_is_an_error_and_no_crash(changes: dict[str, object]) -> None:
    with pytest.raises(DataError, match="trajectory 'a': cannot be stored as JSON"):
        encode_trajectory(make("a", **changes))
