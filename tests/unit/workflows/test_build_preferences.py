"""Preference datasets from a store: families, judgements that came apart, splits, lineage, commands."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pair_examples import attempt, look, result, say

pytest.importorskip("torch", reason="needs the extra train")

from offline_arl import environments
from offline_arl.cli.entry import run
from offline_arl.datasets.pairs import PairDataset, UnpairedDataset
from offline_arl.environments.demonstrations import demonstration
from offline_arl.environments.protocol import HasExamples
from offline_arl.errors import DataError, UsageError
from offline_arl.models.feature_cache import load_features
from offline_arl.models.value_heads import load_heads
from offline_arl.rewards.preferences import PairsConfig
from offline_arl.trajectories.schema import Feedback, Score, Trajectory
from offline_arl.trajectories.splits import assign_splits
from offline_arl.trajectories.store import Store
from offline_arl.workflows.single import build_from_store, run_stage
from offline_arl.workflows.store_families import judgements_by_trajectory, store_families

PREFERENCE = {"direction": "higher_is_better", "comparison_id": "c"}


def scattered() -> list[Trajectory]:
    """Two tasks whose attempts do not lie together, one attempt alone, and two that were compared."""
    return [
        attempt("a1", look("x"), result("found"), say("yes"), success=True, task_id="a"),
        attempt("b1", say("no"), success=False, task_id="b"),
        attempt("alone", say("hm"), task_id="c"),
        attempt("left", say("left"), task_id=None),
        attempt("a2", say("no"), success=False, task_id="a"),
        attempt("b2", look("y"), result("found"), say("yes"), success=True, task_id="b"),
        attempt("right", say("right"), task_id=None),
    ]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.create(tmp_path / "store")
    with store.writer(max_part_trajectories=2) as writer:
        for trajectory in scattered():
            writer.add(trajectory)
        for name, value in (("left", 0.0), ("right", 1.0)):
            writer.add_feedback([Feedback("trajectory", name, Score("preference", value, **PREFERENCE))])  # type: ignore[arg-type]
        thumb = Score("user-feedback", 0.0, scorer_kind="human")
        writer.add_feedback([Feedback("trajectory", "alone", thumb)])
        edit = Score("edit", correction='"aha"', scorer_kind="human")
        writer.add_feedback([Feedback("trajectory", "alone", edit)])
    return store


def test_families_come_when_they_are_complete_with_the_judgements_that_came_apart(store: Store) -> None:
    judgements = judgements_by_trajectory(store, pl.col("comparison_id").is_not_null())
    families = list(store_families(store, store.iter_trajectories(), judgements, PairsConfig(), None))
    names = [[trajectory.trajectory_id for trajectory in family] for family in families]
    assert names == [["alone"], ["a1", "a2"], ["b1", "b2"], ["left", "right"]]
    assert [trajectory.scores[0].value for trajectory in families[3]] == [0.0, 1.0]


def test_pairs_of_a_store(store: Store, tmp_path: Path) -> None:
    outputs = build_from_store(store.path, tmp_path / "pairs", form="pairs")
    dataset = PairDataset.load(tmp_path / "pairs/dataset")
    found = {(row.kind, row.chosen_trajectory_id, row.rejected_trajectory_id) for row in dataset}
    assert found == {
        ("trajectory", "a1", "a2"), ("step", "a1", "a2"), ("trajectory", "b2", "b1"), ("step", "b2", "b1"),
        ("comparison", "right", "left"), ("correction", "alone", "alone"),
    }  # fmt: skip
    counts = {name: metric.estimate for name, metric in outputs.metrics.items()}
    assert counts == {
        "pairs/trajectory": 2, "pairs/step": 2, "pairs/comparison": 1, "pairs/correction": 1, "rows/build": 6,
    }  # fmt: skip
    assert dataset.manifest.lineage is not None
    assert dataset.manifest.lineage.path == str(store.path)


def test_without_step_pairs_the_report_says_why(tmp_path: Path) -> None:
    cases = {
        "act differently after the same beginning": [
            attempt("a", look("x"), result("1"), say("yes"), success=True),
            attempt("b", look("x"), result("2"), say("no"), success=False),
        ],
        "in 1 states attempts took different steps, but none with another end": [
            attempt("a", look("x"), result("1"), say("yes"), success=True),
            attempt("b", say("yes"), success=True),
            attempt("c", say("no"), success=False, task_id="other"),
            attempt("d", look("x"), result("2"), success=True, task_id="other", contexts=[]),
        ],
    }
    for number, (reason, trajectories) in enumerate(cases.items()):
        store = Store.create(tmp_path / f"store-{number}")
        with store.writer() as writer:
            for trajectory in trajectories:
                writer.add(trajectory)
        outputs = build_from_store(store.path, tmp_path / f"pairs-{number}", form="pairs")
        assert any(note.startswith("0 step pairs: ") and reason in note for note in outputs.notes), outputs.notes


def test_labels_of_a_store_with_thumbs_that_came_apart(store: Store, tmp_path: Path) -> None:
    outputs = build_from_store(store.path, tmp_path / "labels", form="unpaired")
    dataset = UnpairedDataset.load(tmp_path / "labels/dataset")
    labels = {(row.trajectory_id, row.source): row.label for row in dataset}
    assert labels == {
        ("a1", "outcome"): True, ("a2", "outcome"): False, ("b1", "outcome"): False, ("b2", "outcome"): True,
        ("alone", "thumb"): False,
    }  # fmt: skip
    assert dataset.manifest.config["recommended"] == {"desirable_weight": 1.5, "undesirable_weight": 1.0}
    assert "class weights for KTO: desirable 1.5, undesirable 1" in outputs.notes


def test_only_the_wanted_splits_are_read(store: Store, tmp_path: Path) -> None:
    assign_splits(store, {"train": 0.5, "test": 0.5}, 0)
    splits = dict(store.trajectories.select("trajectory_id", "split").collect().iter_rows())
    outputs = build_from_store(store.path, tmp_path / "labels", form="unpaired", splits=["train"])
    dataset = UnpairedDataset.load(tmp_path / "labels/dataset")
    assert set(dataset.column("split")) == {"train"}
    assert set(dataset.column("trajectory_id")) <= {name for name, split in splits.items() if split == "train"}
    assert outputs.artifacts["dataset"] == "dataset"
    with pytest.raises(UsageError, match="no split 'validation'; known: test, train"):
        build_from_store(store.path, tmp_path / "x", form="pairs", splits=["validation"])


def test_what_is_too_long_names_the_setting(store: Store, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="sides have more than 16 tokens: raise max_tokens, or set it to null"):
        build_from_store(store.path, tmp_path / "pairs", form="pairs", overrides=["max_tokens=16"])


def test_pairs_of_a_critic_need_its_heads(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="pairs of kind 'value' need value heads"):
        build_from_store(store.path, tmp_path / "pairs", form="pairs", overrides=["pair_kinds=[value]"])


def test_negatives_are_made_on_request_and_told(store: Store, tmp_path: Path) -> None:
    outputs = build_from_store(store.path, tmp_path / "pairs", form="pairs", overrides=["pair_kinds=[negative]"])
    dataset = PairDataset.load(tmp_path / "pairs/dataset")
    assert set(dataset.column("kind")) == {"negative"}
    assert set(dataset.column("chosen_trajectory_id")) == {"a1", "b2"}  # the successful attempts
    assert dataset.column("margin") == dataset.column("weight")
    assert any(note.startswith("negatives: ") and "pairs that teach to call weigh" in note for note in outputs.notes)


def test_a_critic_tells_steps_in_states_that_outcomes_do_not(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    with store.writer() as writer:
        for number in range(6):
            writer.add(attempt(f"t{number}", look("x"), result("a"), say(f"yes {number}"), success=True))
    build_from_store(store.path, tmp_path / "data", form="transitions")
    inputs = {"dataset": tmp_path / "data", "policy": tmp_path / "data"}
    raw = {"kind": "train", "algorithm": "iql_values"}
    run_stage(raw, inputs, tmp_path / "values", name="values", overrides=["steps=5", "holdout_fraction=0"])
    heads, features = load_heads(tmp_path / "values/values"), load_features(tmp_path / "values/values/features")
    row_of = features.row_of()
    built = build_from_store(
        store.path, tmp_path / "valued", form="pairs", model=str(tmp_path / "data/policy"), values=tmp_path / "values",
        overrides=["value_margin=1e-9", "pair_kinds=[value]"],
    )  # fmt: skip
    dataset = PairDataset.load(tmp_path / "valued/dataset")
    assert built.metrics["pairs/value"].estimate == len(dataset) == 15  # of six different answers in one state
    for row in dataset:
        sides = (row.chosen_trajectory_id, row.chosen_score), (row.rejected_trajectory_id, row.rejected_score)
        for name, score in sides:
            at = row_of[name, 1]
            q = heads.q(features.states[at : at + 1], features.actions[at : at + 1]).amin().item()
            assert score == pytest.approx(q, abs=1e-6)
        assert row.margin is not None
        assert row.margin > 0


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    monkeypatch.setattr(os, "environ", os.environ.copy())

    def run_one(*arguments: str | Path, code: int = 0) -> Any:
        assert run([*map(str, arguments), "--json"]) == code
        return json.loads(capfd.readouterr().out)

    return run_one


def test_commands_audit_mend_export_and_delete(store: Store, tmp_path: Path, command: Callable[..., Any]) -> None:
    command("build", "pairs", "--store", store.path, "--output", tmp_path / "pairs")
    report = command("audit", tmp_path / "pairs", "--fail-on", "error")
    assert (report["rows"], report["faulty_rows"], report["kind"]) == (6, 0, "pairs")
    same = command("audit", tmp_path / "pairs", "--against", tmp_path / "pairs", "--fail-on", "error", code=1)
    assert [finding["fault"] for finding in same["findings"]] == ["leak"]
    assert "faults (--fail-on error); the first: another split has the same" in same["error"]
    fixed = command("audit", tmp_path / "pairs", "--fix", tmp_path / "fixed")["fixed"]
    assert fixed["rows"] == len(PairDataset.load(tmp_path / "fixed")) == 6
    assert command("audit", tmp_path / "pairs", "--fix", tmp_path / "fixed", code=2)["error"].endswith("another folder")
    assert "no such fault" in command("audit", tmp_path / "pairs", "--fix", "x", "--keep", "typo", code=2)["error"]
    exported = command("export-dataset", tmp_path / "pairs", "--output", tmp_path / "pairs.jsonl")
    assert (exported["records"], exported["skipped"]) == (6, 0)

    gone = command("delete", store.path, "--where", "trajectory_id = 'a1'", "--yes", "--datasets")
    states = {(item["kind"], Path(item["path"]).name): item["state"] for item in gone["derived"]}
    assert states["dataset", "dataset"] == states["dataset", "fixed"] == "rewritten"
    assert states["export", "pairs.jsonl"] == "unknown"
    for folder in (tmp_path / "pairs/dataset", tmp_path / "fixed"):
        assert "a1" not in PairDataset.load(folder).column("chosen_trajectory_id")
        assert len(PairDataset.load(folder)) == 4


def test_an_environment_judges_negatives_of_attempts_that_know_their_task(tmp_path: Path) -> None:
    family = environments.load("support_desk")
    assert isinstance(family, HasExamples)
    store = Store.create(tmp_path / "store")
    with store.writer() as writer:
        for task in family.tasks("train", 12, seed=0):
            writer.add(demonstration(family, task, family.examples(task).success, agent="example"))
    scorers = {}
    for name, judge in (("log", []), ("both", ["negatives.environment=support_desk"])):
        settings = ["pair_kinds=[negative]", "negatives.per_step=7", *judge]
        build_from_store(store.path, tmp_path / name, form="pairs", overrides=settings)
        scorers[name] = Counter(PairDataset.load(tmp_path / name / "dataset").column("scorer"))
    assert scorers["log"].keys() == {"schema", "log"}
    assert scorers["both"]["environment support_desk"] > 5
    with pytest.raises(UsageError, match="unknown environment 'nowhere'"):
        build_from_store(store.path, tmp_path / "no", form="pairs", overrides=["negatives.environment=nowhere"])
