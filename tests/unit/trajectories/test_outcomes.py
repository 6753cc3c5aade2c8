"""Outcomes that come after the trajectories take the place of what was logged, wherever they are read."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from offline_arl.errors import UsageError
from offline_arl.trajectories import select
from offline_arl.trajectories.outcomes import label_outcomes
from offline_arl.trajectories.schema import Direction, Feedback, Message, Outcome, Score, Source, Trajectory
from offline_arl.trajectories.store import Store

LOGGED = {
    "a": Outcome("scored", success=False, score=0.0, components={"format": 1.0}, scorer="logged"),
    "b": Outcome(),
    "c": Outcome("scored", success=True),
    "crashed": Outcome("infrastructure_error"),
}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.create(tmp_path / "store")
    with store.writer() as writer:
        for name, outcome in LOGGED.items():
            writer.add(Trajectory(name, [Message("assistant")], Source("test"), outcome=outcome))
    return store


def judge(store: Store, name: str, direction: Direction, **values: list[float]) -> None:
    with store.writer() as writer:
        for target, numbers in values.items():
            scores = [Score(name, number, direction=direction) for number in numbers]
            writer.add_feedback(Feedback("trajectory", target, score) for score in scores)


def outcomes(store: Store) -> dict[str, Outcome]:
    return {trajectory.trajectory_id: trajectory.outcome for trajectory in store.iter_trajectories()}


def test_several_judgements_count_by_their_mean_and_missing_ones_not_at_all(store: Store) -> None:
    judge(store, "quality", "higher_is_better", a=[1.0, 0.5], b=[0.5, 0.25], crashed=[1.0])
    table = label_outcomes(store, "quality", threshold=0.75)
    assert table.rows() == [("a", "scored", True, 0.75, "quality"), ("b", "scored", False, 0.375, "quality")]
    assert outcomes(store) == {
        "a": Outcome("scored", success=True, score=0.75, components={"format": 1.0}, scorer="quality"),
        "b": Outcome("scored", success=False, score=0.375, scorer="quality"),
        "c": LOGGED["c"],
        "crashed": LOGGED["crashed"],
    }
    shown = store.trajectories.select("trajectory_id", "status", "success", "score", "scorer").collect().rows()
    assert shown[:3] == [
        ("a", "scored", True, 0.75, "quality"),
        ("b", "scored", False, 0.375, "quality"),
        ("c", "scored", True, None, None),
    ]
    assert [t.trajectory_id for t in store.iter_trajectories(select.successful())] == ["a", "c"]
    assert [t.trajectory_id for t in store.iter_trajectories(select.failed())] == ["b"]
    assert store.get("a").outcome.score == 0.75
    logged = store.logged_trajectories.select("success").collect()["success"].to_list()
    assert logged == [False, None, True, None]


def test_where_lower_is_better_the_comparison_turns_round(store: Store) -> None:
    judge(store, "toxicity", "lower_is_better", a=[0.9], b=[0.1])
    with pytest.raises(UsageError, match="toxicity: lower is better, so its numbers are no rewards; give a threshold"):
        label_outcomes(store, "toxicity")
    table = label_outcomes(store, "toxicity", threshold=0.5)
    assert table.select("trajectory_id", "success", "score").rows() == [("a", False, 0.9), ("b", True, 0.1)]


def test_a_direction_is_never_guessed(store: Store) -> None:
    judge(store, "stars", "unknown", a=[5.0])
    with pytest.raises(UsageError, match=r"stars: .* of unknown direction; say --direction higher_is_better or"):
        label_outcomes(store, "stars")
    assert label_outcomes(store, "stars", direction="higher_is_better").rows() == [("a", "scored", None, 5.0, "stars")]
    judge(store, "stars", "higher_is_better", a=[1.0])
    with pytest.raises(UsageError, match=r"of different directions \(higher_is_better, unknown\)"):
        label_outcomes(store, "stars")


def test_names_without_numbers_are_told_with_those_there_are(store: Store) -> None:
    with pytest.raises(UsageError, match="no judgement 'x' with a number; there are: none"):
        label_outcomes(store, "x")
    judge(store, "quality", "higher_is_better", a=[1.0], elsewhere=[1.0])
    with pytest.raises(UsageError, match="no judgement 'x' with a number; there are: quality"):
        label_outcomes(store, "x")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"status": ["fine"]}, "status must be one of scored, unscored, infrastructure_error"),
        ({"status": [None]}, "status must be one of"),
        ({"success": [1]}, "needs a boolean column success"),
        ({"score": ["1"]}, "needs a float column score"),
    ],
)
def test_a_table_that_holds_no_outcomes_is_refused(store: Store, changes: dict[str, list[object]], reason: str) -> None:
    columns: dict[str, list[object]] = {
        "trajectory_id": ["a"],
        "status": ["scored"],
        "success": [True],
        "score": [1.0],
        "scorer": ["me"],
    }
    strings = {name: pl.String() for name in ("trajectory_id", "status", "scorer")}
    store.write_side_table("outcomes", pl.DataFrame(columns))
    with pytest.raises(UsageError, match=reason):
        store.write_side_table("outcomes", pl.DataFrame({**columns, **changes}, schema_overrides=strings))
    assert store.get("a").outcome.scorer == "me"
