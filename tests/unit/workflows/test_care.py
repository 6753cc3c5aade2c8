"""Care of a store: splits that stay, near duplicates, labels, selections, merges."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from offline_arl.errors import DataError, UsageError
from offline_arl.trajectories.lineage import derived_from
from offline_arl.trajectories.schema import Feedback, Outcome, Score, Source, Trajectory, text_message
from offline_arl.trajectories.store import Store
from offline_arl.workflows import care
from offline_arl.workflows.filters import Filters
from offline_arl.workflows.ingest import ingest

HALVES = {"train": 0.5, "test": 0.5}
WORDS = " ".join(f"word{number}" for number in range(60))


def log(path: Path, tasks: range, **fields: Any) -> Path:
    """A chat log of one attempt a task."""
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"{path.stem} {task}?"},
                {"role": "assistant", "content": f"Answer {task}."},
            ],
            "task_id": str(task),
            "task_type": "even" if task % 2 == 0 else "odd",
            "success": task % 3 == 0,
            **fields,
        }
        for task in tasks
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def splits_by_task(store: Path) -> dict[str, str]:
    """The one split of each task; fails where a task is in two, or in none."""
    frame = Store(store).trajectories.select("task_id", "split").collect()
    found: dict[str, str] = {}
    for task, split in frame.iter_rows():
        assert found.setdefault(task, split) == split
        assert split is not None
    return found


def made(path: Path, *trajectories: Trajectory, feedback: tuple[Feedback, ...] = ()) -> Path:
    store = Store.create(path)
    with store.writer() as writer:
        for trajectory in trajectories:
            writer.add(trajectory)
        writer.add_feedback(feedback)
    return path


def attempt(name: str, text: str = "", **fields: Any) -> Trajectory:
    messages = [text_message("user", text or name), text_message("assistant", "done")]
    return Trajectory(name, messages, Source("test"), **fields)


def test_ingest_keeps_a_split_and_assigns_what_is_new(tmp_path: Path) -> None:
    store = tmp_path / "store"
    ingest(log(tmp_path / "monday.jsonl", range(20)), store)
    first = care.split(store, fractions=HALVES)
    assert (first["extended"], first["by"], first["seed"], first["assigned"]) == (False, "task", 0, 20)
    before = splits_by_task(store)
    ingest([log(tmp_path / "tuesday.jsonl", range(10, 40)), tmp_path / "monday.jsonl"], store)
    after = splits_by_task(store)
    assert {task: after[task] for task in before} == before
    assert Counter(after.values()) == {"train": 20, "test": 20}
    again = care.split(store)
    assert (again["extended"], again["assigned"], again["moved"]) == (True, 0, 0)
    assert {name: counts["trajectories"] for name, counts in again["splits"].items()} == {
        split: sum(after[str(task)] == split for task in [*range(20), *range(10, 40)]) for split in HALVES
    }
    assert again["splits"]["train"]["task_types"].keys() == {"even", "odd"}
    assert Store(store).manifest.configuration["splits"]["counts"] == again["splits"]


def test_a_split_is_changed_on_demand_only(tmp_path: Path) -> None:
    store = tmp_path / "store"
    ingest(log(tmp_path / "log.jsonl", range(12), user_id="u"), store)
    care.split(store, fractions=HALVES, seed=3)
    before = splits_by_task(store)
    assert care.split(store, by="task", seed=3, fractions=HALVES)["extended"]
    for changed, words in (
        ({"by": "user"}, "is split with by task"),
        ({"seed": 0}, "is split with seed 3"),
        ({"fractions": {"train": 0.8, "test": 0.2}}, "is split with fractions train=0.5, test=0.5"),
    ):
        with pytest.raises(UsageError, match=f"{words}; leave it out .* or give --fresh"):
            care.split(store, **changed)  # type: ignore[arg-type]
    assert splits_by_task(store) == before
    fresh = care.split(store, fractions={"train": 0.75, "test": 0.25}, fresh=True)
    assert (fresh["extended"], Counter(splits_by_task(store).values())) == (False, {"train": 9, "test": 3})


def test_near_duplicates_are_counted_where_they_matter(tmp_path: Path) -> None:
    alike = [attempt(f"n{number}", f"{WORDS} {number}", task_id=str(number // 2)) for number in range(4)]
    others = [attempt(f"o{number}", " ".join(f"{number}x{word}" for word in range(30))) for number in range(6)]
    store = made(tmp_path / "store", *alike, *others)
    splits = pl.DataFrame({"trajectory_id": ["n0", "n1", "n2", "n3"], "split": ["a", "a", "a", "b"]})
    Store(store).write_side_table("splits", splits)
    report = care.duplicates(store)
    counts = {name: report[name] for name in ("trajectories", "near_duplicates", "clusters", "largest_cluster")}
    assert counts == {"trajectories": 10, "near_duplicates": 3, "clusters": 1, "largest_cluster": 4}
    assert (report["across_tasks"], report["across_splits"]) == (2, 1)
    assert [row["trajectory_id"] for row in report["examples"]][2] == "n1", "those of other tasks come first"
    assert {row["near_duplicate_of"] for row in report["examples"]} == {"n0"}
    assert care.duplicates(store, threshold=1.0)["clusters"] == 0
    with pytest.raises(UsageError, match="threshold"):
        care.duplicates(store, threshold=0.0)


def judged(path: Path) -> Path:
    crashed = Outcome("infrastructure_error")
    scores = {"a": 0.9, "b": 0.4, "c": 0.6}
    trajectories = [attempt(name, scores=[Score("quality", value, direction="higher_is_better")])
                    for name, value in scores.items()]  # fmt: skip
    feedback = (
        Feedback("trajectory", "d", Score("quality", 0.1, direction="higher_is_better", scorer_kind="human")),
        Feedback("trajectory", "a", Score("thumbs", label="up")),
        Feedback("trajectory", "nowhere", Score("lost", 1.0)),
    )
    rest = [attempt("d", outcome=crashed), attempt("e", outcome=Outcome("scored", success=True)), attempt("f")]
    return made(path, *trajectories, *rest, feedback=feedback)


def test_judgements_become_outcomes(tmp_path: Path) -> None:
    store = judged(tmp_path / "store")
    names = care.judgement_names(store)
    assert [(row["name"], row["judgements"], row["numbers"]) for row in names] == [("quality", 4, 4), ("thumbs", 1, 0)]
    assert names[0]["directions"] == ["higher_is_better"]
    assert names[0]["scorer_kinds"] == ["human", "unknown"]
    assert [names[0][key] for key in ("low", "mean", "high")] == pytest.approx([0.1, 0.5, 0.9])
    report = care.label(store, "quality", threshold=0.5)
    assert (report["labeled"], report["successes"], report["failures"]) == (3, 2, 1)
    assert report["mean"] == pytest.approx((0.9 + 0.4 + 0.6) / 3)
    assert report["outcomes"] == {"success": 3, "failure": 1, "score alone": 0, "unscored": 1, "error": 1}
    alone = care.label(store, "quality")
    assert (alone["successes"], alone["failures"], alone["outcomes"]["score alone"]) == (0, 0, 3)
    with pytest.raises(UsageError, match="no judgement 'thumbs' with a number; there are: quality"):
        care.label(store, "thumbs")
    assert care.judgement_names(made(tmp_path / "none", attempt("a"))) == []


def test_a_selection_is_a_store_that_the_first_one_remembers(tmp_path: Path) -> None:
    store = tmp_path / "store"
    ingest(log(tmp_path / "log.jsonl", range(12)), store)
    care.split(store, fractions=HALVES)
    report = care.select(store, tmp_path / "some", Filters(task_types=("even",), where="success"))
    assert (report["trajectories"], report["of"]) == (2, 12)
    selection = Store(tmp_path / "some")
    table = selection.trajectories.collect()
    assert sorted(table["task_id"]) == ["0", "6"]
    whole = splits_by_task(store)
    assert splits_by_task(tmp_path / "some") == {task: whole[task] for task in ("0", "6")}
    counts = selection.manifest.configuration["splits"]["counts"]
    assert sum(split["trajectories"] for split in counts.values()) == 2
    (derived,) = derived_from(store)
    assert (derived.kind, derived.path) == ("store", str(tmp_path / "some"))
    assert selection.verify() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.jsonl", "some", "store"]

    with pytest.raises(DataError, match="no trajectory fits"):
        care.select(store, tmp_path / "none", Filters(users=("u",)))
    with pytest.raises(UsageError, match="is not empty"):
        care.select(store, tmp_path / "some", Filters())
    assert not (tmp_path / "none").exists()
    assert care.select(store, tmp_path / "all", Filters())["trajectories"] == 12


def test_merged_stores_do_not_leak_what_each_had_split_for_itself(tmp_path: Path) -> None:
    for name, seed in (("one", 0), ("two", 1)):
        ingest(log(tmp_path / f"{name}.jsonl", range(20)), tmp_path / name)
        care.split(tmp_path / name, fractions=HALVES, seed=seed)
    one, two = splits_by_task(tmp_path / "one"), splits_by_task(tmp_path / "two")
    parted = {task for task in one if one[task] != two[task]}
    assert parted, "the seeds part nothing"
    report = care.merge([tmp_path / "one", tmp_path / "two"], tmp_path / "both")
    both = splits_by_task(tmp_path / "both")
    assert (report["trajectories"], report["identical"], report["moved"]) == (40, 0, len(parted))
    assert all(both[task] == ("train" if task in parted else one[task]) for task in one)
    assert {Path(derived_from(tmp_path / name)[0].path).name for name in ("one", "two")} == {"both"}
    assert not report["splits_by_hand"]
    again = care.merge([tmp_path / "both", tmp_path / "one"], tmp_path / "more")
    assert (again["trajectories"], again["identical"]) == (40, 20)


def test_merging_with_a_damaged_store_makes_nothing(tmp_path: Path) -> None:
    for name in ("one", "two"):
        ingest(log(tmp_path / f"{name}.jsonl", range(3)), tmp_path / name)
    (part,) = (tmp_path / "two/blobs").iterdir()
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    with pytest.raises(DataError, match=r"two/blobs/000001.parquet: changed since it was written"):
        care.merge([tmp_path / "one", tmp_path / "two"], tmp_path / "both")
    assert not (tmp_path / "both").exists()


def test_compaction_joins_small_parts(tmp_path: Path) -> None:
    for day in range(4):
        ingest(log(tmp_path / f"{day}.jsonl", range(day, day + 3)), tmp_path / "store")
    before = Store(tmp_path / "store").trajectories.collect()
    report = care.compact(tmp_path / "store")
    assert (report["parts_before"], report["parts_after"]) == (4, 1)
    assert report["megabytes_after"] < report["megabytes_before"]
    assert Store(tmp_path / "store").trajectories.collect().equals(before)
