"""Filters: what each selects, and what cannot be asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from offline_arl.errors import DataError, UsageError
from offline_arl.trajectories.schema import Outcome, Source, Trajectory, text_message
from offline_arl.trajectories.store import Store
from offline_arl.workflows.filters import COLUMNS, Filters, parse_where, told_conditions
from offline_arl.workflows.stores import told_damage

ATTEMPTS: dict[str, dict[str, Any]] = {
    "won": {"outcome": Outcome("scored", success=True), "user_id": "u1", "task_type": "refund", "model": "m-1"},
    "lost": {"outcome": Outcome("scored", success=False), "user_id": "u2", "task_type": "status", "task_id": "7"},
    "graded": {"outcome": Outcome("scored", score=0.5), "session_id": "s", "started_at": "2026-01-02T00:00:00Z"},
    "unknown": {"user_id": "u1", "task_type": "o'brien", "started_at": "2026-01-01T23:30:00-01:00"},
    "crashed": {"outcome": Outcome("infrastructure_error"), "ended_at": "2026-02-01"},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    made = Store.create(tmp_path_factory.mktemp("filters") / "store")
    with made.writer() as writer:
        for name, fields in ATTEMPTS.items():
            messages = [text_message("user", name), text_message("assistant", "done")]
            source = Source("openai_chat" if name == "won" else "tau_bench")
            writer.add(Trajectory(name, messages, source, **fields))
    made.write_side_table("splits", pl.DataFrame({"trajectory_id": ["won", "lost"], "split": ["train", "test"]}))
    return made


def chosen(store: Store, **filters: Any) -> set[str]:
    condition = Filters(**filters).condition()
    assert condition is not None
    return set(store.trajectories.filter(condition).collect()["trajectory_id"])


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"task_types": ("refund",)}, {"won"}),
        ({"task_types": ("refund", "status")}, {"won", "lost"}),
        ({"tasks": ("7",)}, {"lost"}),
        ({"users": ("u1",)}, {"won", "unknown"}),
        ({"users": ("u1",), "outcomes": ("unscored",)}, {"unknown"}),
        ({"sessions": ("s",)}, {"graded"}),
        ({"splits": ("train",)}, {"won"}),
        ({"formats": ("tau_bench",), "splits": ("train", "test")}, {"lost"}),
        ({"models": ("m-1",)}, {"won"}),
        ({"models": ("m",)}, set()),
        ({"outcomes": ("success", "failure")}, {"won", "lost"}),
        ({"outcomes": ("error",)}, {"crashed"}),
        ({"since": "2026-01-02"}, {"graded", "unknown", "crashed"}),
        ({"since": "2026-01-02T00:00:01+00:00"}, {"unknown", "crashed"}),
        ({"until": "2026-01-02"}, set()),
        ({"until": "2026-01-02T02:00:00+01:00"}, {"graded", "unknown"}),
        ({"since": "2026-01-02", "until": "2026-02-01"}, {"graded", "unknown"}),
        ({"where": "score >= 0.5"}, {"graded"}),
        ({"where": "NOT success"}, {"lost"}),
        ({"where": "task_type = 'o''brien' OR lower(model) LIKE 'm%'"}, {"unknown", "won"}),
        ({"where": "user_id IS NULL AND n_steps BETWEEN 1 AND 2"}, {"graded", "crashed"}),
        ({"where": "split = 'test'", "outcomes": ("success",)}, set()),
        ({"where": "coalesce(user_id, session_id, 'x') IN ('s', 'x')"}, {"graded", "crashed"}),
    ],
)
def test_each_filter_selects(store: Store, filters: dict[str, Any], expected: set[str]) -> None:
    assert chosen(store, **filters) == expected


def test_no_filter_is_no_condition() -> None:
    assert Filters().condition() is None
    assert Filters(users=("u",), where="success").as_dict() == {"users": ["u"], "where": "success"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "write SQL such as"),
        ("user_id =", "unable to parse"),
        ("n_steps", "must be of type `Boolean`"),
        ("usr_id = 'a'", "no column 'usr_id'; did you mean user_id?"),
        ('user_id = "qqqq"', "no column 'qqqq'; texts stand in single quotes"),
        ("1 = 1", "names no column"),
        ("n_steps = 'many'", "cannot compare string with numeric type"),
        ("sum(n_steps) > 3", "sum cannot be used here"),
        ("n_steps > MAX (n_steps)", "max cannot be used here"),
        ("row_number() OVER (ORDER BY n_steps) = 1", "over cannot be used here"),
        ("n_steps IN (SELECT a FROM read_csv('/etc/hostname'))", "read_csv cannot be used here"),
        ("EXISTS (SELECT 1)", "cannot be used here"),
        ("success; DROP TABLE x", "several statements"),
        ("success -- AND user_id = 'u'", "holds a comment"),
        ("(" * 3000 + "success" + ")" * 3000, "unable to parse"),
        ("regexp_like(model, '[')", "regex"),
    ],
)
def test_what_is_no_condition_on_rows_is_refused_in_one_short_line(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_where(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 900


def test_a_word_in_a_text_is_only_a_text(store: Store) -> None:
    assert chosen(store, where="task_type <> 'select over; -- max('") == {"won", "lost", "unknown"}


def test_files_cannot_be_read(tmp_path: Path) -> None:
    """The words that would do it are refused before polars sees them."""
    (tmp_path / "x.csv").write_text("a\n1\n")
    for text in (f"n_steps IN (SELECT a FROM '{tmp_path}/x.csv')", f"n_steps IN (TABLE '{tmp_path}/x.csv')"):
        with pytest.raises(UsageError):
            parse_where(text)


@pytest.mark.parametrize("name", list(COLUMNS))
def test_every_column_that_is_offered_is_there(store: Store, name: str) -> None:
    assert chosen(store, where=f"{name} IS NULL OR {name} IS NOT NULL") == set(ATTEMPTS)


@pytest.mark.parametrize("text", ["soon", "2026-02-30", ""])
def test_dates_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--since .*: no date; write 2026-01-31"):
        Filters(since=text).condition()
    with pytest.raises(UsageError, match="--until"):
        Filters(until=text).condition()


def test_outcomes_that_are_none_are_refused() -> None:
    with pytest.raises(UsageError, match="--outcome maybe: unknown; give one of success, failure, unscored, error"):
        Filters(outcomes=("maybe",)).condition()  # type: ignore[arg-type]


def test_what_only_the_data_shows_is_told_and_damage_is_not_blamed_on_the_condition(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    with store.writer() as writer:
        writer.add(Trajectory("a", [text_message("assistant", "x")], Source("test"), task_id="seven"))
    where = Filters(where="task_id::int > 3").condition()
    with pytest.raises(UsageError, match="--where: conversion from `str` to `i32` failed"), told_conditions(store):
        store.trajectories.filter(where).collect()  # type: ignore[arg-type]
    (part,) = (tmp_path / "store/trajectories").iterdir()
    data = bytearray(part.read_bytes())
    data[-40:-20] = bytes(20)
    part.write_bytes(data)
    with pytest.raises(DataError, match=r"000001.parquet: changed since it was written"), told_damage(store):  # noqa: SIM117
        with told_conditions(store):
            store.trajectories.filter(where).collect()  # type: ignore[arg-type]
