"""What a newcomer does with logs that came without verdicts: ingest, label, duplicates, split, build, delete."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

pytest.importorskip("torch", reason="needs the extra train")

from offline_arl import environments
from offline_arl.cli.entry import run
from offline_arl.datasets import SegmentDataset
from offline_arl.trajectories.store import Store

pytestmark = pytest.mark.e2e

EPISODES, USERS = 90, 9


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run a command that must succeed and return its JSON."""
    monkeypatch.setattr(os, "environ", os.environ.copy())

    def run_one(*arguments: str | Path) -> Any:
        code = run([*map(str, arguments), "--json"])
        out, err = capfd.readouterr()
        assert code == 0, err
        assert out.count("\n") == 1, out
        return json.loads(out)

    return run_one


@pytest.fixture
def logs(tmp_path: Path) -> tuple[Path, Path, int]:
    """Two files of chats of nine users, with a judge's score each, and how many the judge likes."""
    environments.load("support_desk").write_logs(tmp_path / "raw.jsonl", EPISODES, seed=0)
    rows = []
    for number, line in enumerate((tmp_path / "raw.jsonl").read_text().splitlines()):
        row = json.loads(line)
        score = {"name": "helpful", "value": float(row.pop("success")), "direction": "higher_is_better"}
        rows.append({**row, "outcome": None, "reward": None, "score": None, "scores": [score],
                     "user_id": f"u{number % USERS}"})  # fmt: skip
    parts = tmp_path / "monday.jsonl", tmp_path / "tuesday.jsonl"
    for path, part in zip(parts, (rows[:60], rows[60:]), strict=True):
        path.write_text("".join(json.dumps(row) + "\n" for row in part))
    return *parts, int(sum(row["scores"][0]["value"] for row in rows))


def test_from_logs_without_verdicts_to_a_dataset_that_forgets_a_user(
    tmp_path: Path, logs: tuple[Path, Path, int], command: Callable[..., Any]
) -> None:
    monday, tuesday, liked = logs
    store = tmp_path / "store"
    assert command("ingest", monday, "--store", store)["trajectories"] == 60
    assert command("show", store)["by_status"] == {"unscored": 60}

    assert [row["name"] for row in command("label", store)["judgements"]] == ["helpful"]
    command("duplicates", store)
    command("split", store, "--fraction", "train=0.7", "--fraction", "test=0.3")
    first = dict(Store(store).trajectories.select("trajectory_id", "split").collect().iter_rows())
    command("ingest", tuesday, "--store", store)
    labeled = command("label", store, "--outcome", "helpful", "--threshold", "0.5")
    assert (labeled["labeled"], labeled["successes"]) == (EPISODES, liked)
    command("duplicates", store)
    again = command("split", store)
    assert again["extended"]
    table = Store(store).trajectories.collect()
    assert table["split"].null_count() == 0
    assert table.group_by("task_id").agg(pl.col("split").n_unique())["split"].max() == 1
    now = dict(table.select("trajectory_id", "split").iter_rows())
    assert sum(now[name] != split for name, split in first.items()) <= again["moved"]

    command("build", "bc", "--store", store, "--output", tmp_path / "data", "--only-successes")
    dataset = tmp_path / "data/dataset"
    gone = set(table.filter(pl.col("user_id") == "u4")["trajectory_id"])
    before = SegmentDataset.load(dataset)
    assert gone & set(before.column("trajectory_id"))

    plan = command("delete", store, "--user", "u4", "--dry-run")
    assert (plan["deleted"], plan["trajectories"]) == (False, EPISODES // USERS)
    done = command("delete", store, "--user", "u4", "--datasets", "--yes")
    states = Counter((item["kind"], item["state"]) for item in done["derived"])
    assert states == {("dataset", "rewritten"): 1, ("policy", "unknown"): 1}
    after = SegmentDataset.load(dataset)
    assert set(after.column("trajectory_id")) == set(before.column("trajectory_id")) - gone
    assert command("ingest", monday, tuesday, "--store", store)["trajectories"] == 0
    assert command("show", store)["trajectories"] == EPISODES - EPISODES // USERS
    trained = command("train", "bc", "--dataset", tmp_path / "data", "--policy", tmp_path / "data",
                      "--output", tmp_path / "bc", "--set", "max_steps=1")  # fmt: skip
    assert Path(trained["artifacts"]["policy"], "model.safetensors").is_file()
