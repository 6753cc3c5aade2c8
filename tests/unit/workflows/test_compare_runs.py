"""Comparison of runs: paired by task within a run, pooled over runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import polars as pl
import pytest

from offline_arl.errors import DataError, UsageError
from offline_arl.workflows.compare import compare_runs


def write(run: Path, rows: list[tuple[str, bool, str, bool | None]]) -> Path:
    folder = run / "stages" / "evaluation"
    folder.mkdir(parents=True)
    frame = pl.DataFrame(rows, schema=["policy", "sampled", "task_id", "success"], orient="row")
    frame.write_parquet(folder / "episodes.parquet")
    return run


def test_differences_are_paired_by_task_and_pooled_over_runs(tmp_path: Path) -> None:
    first = write(
        tmp_path / "a",
        [("bc", False, f"t{i}", i < 4) for i in range(10)] + [("iql", False, f"t{i}", i < 7) for i in range(10)],
    )
    second = write(
        tmp_path / "b",
        [("bc", False, f"u{i}", i < 5) for i in range(10)] + [("iql", False, f"u{i}", i < 6) for i in range(10)],
    )
    result = compare_runs([first, second])
    pooled, by_seed = result.success["bc", "greedy"]
    assert pooled.estimate == pytest.approx(0.45)  # 9 of 20
    assert by_seed == pytest.approx([0.4, 0.5])
    (comparison,) = result.differences
    assert (comparison.after, comparison.before, comparison.mode) == ("iql", "bc", "greedy")
    assert comparison.difference.estimate == pytest.approx(0.2)  # (3 + 1) of 20 tasks
    assert comparison.seeds == pytest.approx([0.3, 0.1])
    # The four tasks that iql wins and bc does not are all the difference: never below 0.
    assert comparison.difference.low >= 0.0
    assert comparison.difference.n == 20


def test_an_evaluation_alone_is_read_too(tmp_path: Path) -> None:
    rows = [(policy, False, f"t{task}", task < solved) for policy, solved in (("a", 2), ("b", 3)) for task in range(4)]
    run = write(tmp_path / "run", rows)
    (tmp_path / "alone").mkdir()
    (episodes,) = run.glob("stages/*/episodes.parquet")
    shutil.copy(episodes, tmp_path / "alone")
    (difference,) = compare_runs([tmp_path / "alone"]).differences
    assert (difference.after, difference.before, difference.difference.estimate) == ("b", "a", 0.25)


def test_modes_are_not_mixed_and_unjudged_episodes_do_not_count(tmp_path: Path) -> None:
    run = write(
        tmp_path / "a",
        [("bc", False, "t", True), ("bc", True, "t", False), ("iql", False, "t", None), ("iql", True, "t", True)],
    )
    result = compare_runs([run])
    assert [(item.mode, item.difference.estimate) for item in result.differences] == [("sampled", 1.0)]


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least one"):
        compare_runs([])
    with pytest.raises(DataError, match="no evaluation"):
        compare_runs([tmp_path])
    a = write(tmp_path / "a", [("bc", False, "t", True)])
    b = write(tmp_path / "b", [("dt", False, "t", True)])
    with pytest.raises(DataError, match="share no policy"):
        compare_runs([a, b])
