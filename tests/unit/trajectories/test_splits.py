"""Splits: sizes, what stays together, time, and what happens when the store grows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from offline_arl.errors import DataError, UsageError
from offline_arl.trajectories.near_duplicates import mark_near_duplicates
from offline_arl.trajectories.schema import Branch, Source, Trajectory, text_message
from offline_arl.trajectories.splits import SplitReport, assign_splits, extend_splits, read_recipe
from offline_arl.trajectories.store import Store

HALVES = {"train": 0.5, "test": 0.5}
THREE = {"train": 0.8, "validation": 0.1, "test": 0.1}


def attempt(name: str, *, text: str = "", **fields: object) -> Trajectory:
    messages = [text_message("user", text or name), text_message("assistant", "done")]
    return Trajectory(name, messages, Source("test"), **fields)  # type: ignore[arg-type]


def add(store: Store, *trajectories: Trajectory) -> None:
    with store.writer() as writer:
        for trajectory in trajectories:
            writer.add(trajectory)


def store_of(tmp_path: Path, *trajectories: Trajectory) -> Store:
    store = Store.create(tmp_path / "store")
    add(store, *trajectories)
    return store


def split_of(store: Store) -> dict[str, str | None]:
    return dict(store.trajectories.select("trajectory_id", "split").collect().iter_rows())


def tasks(numbers: Iterable[int], **fields: object) -> list[Trajectory]:
    return [attempt(f"t{number}", task_id=f"task-{number}", **fields) for number in numbers]


def test_splits_never_share_a_task_and_have_the_asked_for_sizes(tmp_path: Path) -> None:
    kinds = ("address", "complaint", "refund", "status")
    store = store_of(
        tmp_path,
        *(
            attempt(f"{task}-{trial}", task_id=str(task), task_type=kinds[task % 4])
            for task in range(100)
            for trial in range(3)
        ),
    )
    report = assign_splits(store, {"train": 0.7, "validation": 0.2, "test": 0.1}, seed=3)
    assert (report.table.height, report.assigned, report.unassigned) == (300, 300, 0)
    table = store.trajectories.select("task_id", "task_type", "split").unique().collect()
    assert table.height == 100, "a task is in two splits"
    assert Counter(table["split"]) == {"train": 70, "validation": 20, "test": 10}
    for kind in kinds:  # 25 tasks each: shares of 17.5, 5 and 2.5
        counts = Counter(table.filter(pl.col("task_type") == kind)["split"])
        assert counts["validation"] == 5
        assert counts["train"] in (17, 18)
        assert report.recipe.counts["validation"].task_types[kind] == 15
    assert report.not_everywhere == {}


def test_splits_depend_on_the_seed_alone(tmp_path: Path) -> None:
    one = store_of(tmp_path / "one", *tasks(range(40)))
    other = store_of(tmp_path / "other", *reversed(tasks(range(40))))
    assign_splits(one, HALVES, seed=0)
    assign_splits(other, HALVES, seed=0)
    first = split_of(one)
    assert split_of(other) == first
    assign_splits(one, HALVES, seed=1)
    assert split_of(one) != first


def test_whatever_belongs_together_is_in_one_split(tmp_path: Path) -> None:
    """A chain: task 1 and task 2 share an episode, a branch hangs on the second, a copy of it has no task."""
    chain = [
        attempt("a", task_id="1", episode_id="e"),
        attempt("b", task_id="2", episode_id="e"),
        attempt("c", branch=Branch("b", 1)),
        attempt("d", parent_trajectory_id="c"),
        attempt("e", text="c"),
    ]
    store = store_of(tmp_path, *chain, *tasks(range(20)))
    for seed in range(5):
        assign_splits(store, HALVES, seed=seed)
        splits = split_of(store)
        assert len({splits[name] for name in "abcde"}) == 1
        assert len(set(splits.values())) == 2


def test_trajectories_that_refer_to_the_same_missing_one_stay_together(tmp_path: Path) -> None:
    workers = [attempt(f"w{number}", parent_trajectory_id="elsewhere") for number in range(4)]
    store = store_of(tmp_path, *workers, *tasks(range(8)))
    assign_splits(store, HALVES, seed=0)
    assert len({split for name, split in split_of(store).items() if name.startswith("w")}) == 1


def test_near_duplicates_stay_together_where_they_are_marked(tmp_path: Path) -> None:
    words = " ".join(f"word{number}" for number in range(60))
    alike = [attempt(f"n{number}", text=f"{words} {number}", task_id=f"n{number}") for number in range(6)]
    others = [attempt(f"t{n}", text=" ".join(f"{n}x{word}" for word in range(20)), task_id=str(n)) for n in range(10)]
    store = store_of(tmp_path, *alike, *others)
    assert not assign_splits(store, HALVES, seed=0).recipe.near_duplicates
    assert len({split_of(store)[f"n{number}"] for number in range(6)}) == 2, "the seed tells nothing"
    mark_near_duplicates(store)
    report = assign_splits(store, HALVES, seed=0)
    assert report.recipe.near_duplicates
    assert len({split_of(store)[f"n{number}"] for number in range(6)}) == 1
    assert report.recipe.counts["train"].families + report.recipe.counts["test"].families == 11


def test_a_type_with_enough_families_is_in_every_split_and_the_report_names_the_others(tmp_path: Path) -> None:
    store = store_of(
        tmp_path,
        *tasks(range(60), task_type="common"),
        *tasks(range(60, 63), task_type="three"),
        *tasks(range(63, 65), task_type="two"),
        *tasks([65]),
    )
    report = assign_splits(store, THREE, seed=0)
    counts = report.recipe.counts
    assert all(counts[name].task_types["three"] == 1 for name in THREE)
    assert [counts[name].families for name in THREE] == [pytest.approx(66 * share, abs=3) for share in THREE.values()]
    assert set(report.not_everywhere) == {"two", ""}
    number, missing = report.not_everywhere["two"]
    present = {name for name in THREE if "two" in counts[name].task_types}
    assert (number, set(missing)) == (2, set(THREE) - present)


def test_types_of_one_family_each_do_not_bend_the_shares(tmp_path: Path) -> None:
    store = store_of(tmp_path, *(attempt(f"t{number}", task_type=f"type-{number}") for number in range(50)))
    counts = assign_splits(store, THREE, seed=0).recipe.counts
    assert [counts[name].families for name in THREE] == [40, 5, 5]


def test_by_user_keeps_users_together_and_says_which_tasks_are_not(tmp_path: Path) -> None:
    store = store_of(
        tmp_path,
        *(
            attempt(f"u{user}-{task}", user_id=f"u{user}", task_id=f"task-{task}", session_id=f"s{user}-{task}")
            for user in range(10)
            for task in range(3)
        ),
        attempt("nobody"),
    )
    report = assign_splits(store, HALVES, seed=0, by="user")
    users = store.trajectories.group_by("user_id").agg(pl.col("split").n_unique()).collect()
    assert set(users["split"]) == {1}
    assert {name: counts.families for name, counts in report.recipe.counts.items()} in (
        {"train": 5, "test": 6},
        {"train": 6, "test": 5},
    )
    assert (report.without_key, report.shared) == (1, {"task_id": 3, "session_id": 0})
    assert assign_splits(store, HALVES, seed=0, by="session").recipe.counts["train"].families in (15, 16)
    with pytest.raises(UsageError, match="no trajectory has a user_id, so it cannot be split by user"):
        assign_splits(store_of(tmp_path / "none", *tasks(range(3))), HALVES, seed=0, by="user")


def day(number: int) -> str:
    return f"2026-01-{number:02}T12:00:00Z"


def test_by_time_the_first_split_is_over_before_the_next_one_ends(tmp_path: Path) -> None:
    store = store_of(
        tmp_path,
        *(attempt(f"d{number:02}", task_id=str(number), started_at=day(number)) for number in range(1, 21)),
        attempt("again", task_id="3", started_at=day(19)),  # task 3 comes back late: its family is late
        attempt("timeless", task_id="x"),
    )
    report = assign_splits(store, {"train": 0.5, "validation": 0.25, "test": 0.25}, seed=0, by="time")
    splits = split_of(store)
    assert splits["again"] == splits["d03"] == "test"
    assert splits.pop("timeless") is None
    assert (report.unassigned, report.straddling, report.straddlers) == (1, 1, ("d03",))
    last = {name: max(key for key, split in splits.items() if split == name) for name in ("train", "validation")}
    assert {key for key, split in splits.items() if split == "train"} == {
        f"d{number:02}" for number in range(1, 12) if number != 3
    }
    assert last == {"train": "d11", "validation": "d16"}
    assert report.recipe.cuts == [datetime(2026, 1, 12, 12, tzinfo=UTC), datetime(2026, 1, 17, 12, tzinfo=UTC)]
    # A store that grows: behind the last cut comes the last split, and what is timeless stays outside.
    add(store, attempt("later", task_id="later", started_at=day(25)), attempt("early", started_at=day(2)))
    assert extend_splits(store) is not None
    assert (split_of(store)["later"], split_of(store)["early"], split_of(store)["timeless"]) == ("test", "train", None)


def test_by_time_compares_moments_and_not_texts(tmp_path: Path) -> None:
    store = store_of(
        tmp_path,
        attempt("late", started_at="2026-01-01T00:30:00-05:00"),
        attempt("early", started_at="2026-01-01T03:00:00+00:00"),
    )
    assign_splits(store, HALVES, seed=0, by="time")
    assert split_of(store) == {"late": "test", "early": "train"}


def test_by_time_parts_no_moment_and_needs_enough_of_them(tmp_path: Path) -> None:
    store = store_of(tmp_path, *(attempt(f"d{number}", started_at=day(1 + number // 9)) for number in range(10)))
    report = assign_splits(store, HALVES, seed=0, by="time")
    assert [report.recipe.counts[name].trajectories for name in HALVES] == [9, 1]
    with pytest.raises(UsageError, match="by time needs at least 3 families with different times, and there are 2"):
        assign_splits(store, THREE, seed=0, by="time")
    with pytest.raises(UsageError, match="no trajectory has a time"):
        assign_splits(store_of(tmp_path / "none", attempt("a")), HALVES, seed=0, by="time")


def test_a_grown_store_keeps_its_split_and_new_families_fill_it(tmp_path: Path) -> None:
    store = store_of(tmp_path, *tasks(range(10), task_type="a"))
    assert extend_splits(store) is None
    assign_splits(store, HALVES, seed=0)
    before = split_of(store)
    add(store, *tasks(range(10, 30), task_type="a"), *(attempt(f"more{n}", task_id=f"task-{n}") for n in range(10)))
    assert split_of(store)["more3"] is None
    report = extend_splits(store)
    assert report is not None
    after = split_of(store)
    assert {name: after[name] for name in before} == before
    assert all(after[f"more{number}"] == before[f"t{number}"] for number in range(10))
    assert (report.assigned, report.moved) == (30, 0)
    assert [report.recipe.counts[name].families for name in HALVES] == [15, 15]
    assert read_recipe(store) == report.recipe
    number = store.manifest.next_number
    again = extend_splits(store)
    assert again is not None
    assert (again.assigned, again.recipe) == (0, report.recipe)
    assert store.manifest.next_number == number, "nothing was new, so nothing is written"


def test_what_joins_families_takes_them_to_the_first_split(tmp_path: Path) -> None:
    store = store_of(tmp_path, *tasks(range(10)))
    assign_splits(store, HALVES, seed=0)
    before = split_of(store)
    trained = next(name for name, split in before.items() if split == "train")
    tested = next(name for name, split in before.items() if split == "test")
    add(store, attempt("bridge", task_id=f"task-{tested[1:]}", parent_trajectory_id=trained))
    report = extend_splits(store)
    assert report is not None
    assert (report.assigned, report.moved) == (1, 1)
    after = split_of(store)
    assert after[trained] == after[tested] == after["bridge"] == "train"
    assert {name: split for name, split in after.items() if name not in (tested, "bridge")} == {
        name: split for name, split in before.items() if name != tested
    }


def test_a_split_made_by_hand_has_no_recipe(tmp_path: Path) -> None:
    store = store_of(tmp_path, *tasks(range(4)))
    assign_splits(store, HALVES, seed=0)
    store.write_side_table("splits", pl.DataFrame({"trajectory_id": ["t0"], "split": ["mine"]}))
    assert read_recipe(store) is None
    assert extend_splits(store) is None
    assert split_of(store)["t0"] == "mine"


def test_a_damaged_recipe_is_named(tmp_path: Path) -> None:
    store = store_of(tmp_path, *tasks(range(4)))
    report: SplitReport = assign_splits(store, HALVES, seed=0)
    store.write_side_table("splits", report.table, configuration={"splits": {"by": "moon"}})
    with pytest.raises(DataError, match=r"the recipe of the splits is damaged .*; split the store anew"):
        extend_splits(store)


@pytest.mark.parametrize("fractions", [{}, {"train": 0.5}, {"train": 1.2, "test": -0.2}])
def test_fractions_that_are_no_shares_are_refused(tmp_path: Path, fractions: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="must be positive and sum to 1"):
        assign_splits(store_of(tmp_path, attempt("a")), fractions, seed=0)


def test_an_empty_store_can_be_split(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    assert assign_splits(store, HALVES, seed=0).table.height == 0
    add(store, *tasks(range(4)))
    assert extend_splits(store) is not None
    assert Counter(split_of(store).values()) == {"train": 2, "test": 2}
