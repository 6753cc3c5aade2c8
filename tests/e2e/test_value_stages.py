"""Values by every algorithm, policies from them, and prediction of success, stage by stage on generated logs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra train")

from offline_arl import environments
from offline_arl.datasets.segments import SegmentDataset
from offline_arl.errors import UsageError
from offline_arl.models.feature_cache import load_features
from offline_arl.models.value_heads import load_heads
from offline_arl.trainers.checkpoint import load_record
from offline_arl.trainers.value_record import load_value_record
from offline_arl.workflows.context import StageOutputs
from offline_arl.workflows.ingest import ingest
from offline_arl.workflows.single import build_from_store, run_stage

EPISODES = 60
pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store, a transition dataset and the tiny policy that fits it."""
    folder = tmp_path_factory.mktemp("values")
    environments.load("support_desk").write_logs(folder / "logs.jsonl", EPISODES, seed=0)
    ingest([folder / "logs.jsonl"], folder / "store")
    build_from_store(folder / "store", folder / "transitions", form="transitions")
    return folder


def _train(
    folders: Path, algorithm: str, output: Path, settings: Mapping[str, object], values: Path | None = None
) -> StageOutputs:
    data = folders / "transitions"
    return run_stage(
        {"kind": "train", "algorithm": algorithm},
        {"dataset": data, "policy": data / "policy", "values": values},
        output,
        name=algorithm,
        overrides=[f"{key}={json.dumps(value)}" for key, value in settings.items()],
    )


@pytest.mark.parametrize(
    ("values", "settings", "policy"),
    [
        ("iql_values", {}, "iql"),
        ("cql_values", {"calibrated": True}, "cql"),
        ("behavior_values", {"trace_decay": 0.9}, "awr"),
    ],
)
def test_values_become_a_policy(
    values: str, settings: Mapping[str, object], policy: str, folders: Path, tmp_path: Path
) -> None:
    made = _train(folders, values, tmp_path / "values", {"steps": 20, "holdout_fraction": 0.2, **settings})
    folder = tmp_path / "values" / made.artifacts["values"]
    record = load_value_record(folder)
    assert record.algorithm == values
    assert record.config["steps"] == 20
    assert {**record.config, **settings} == record.config
    assert record.metrics["updates"] == 20
    card = (folder / "README.md").read_text()
    for told in (
        values,
        record.dataset_sha256,
        record.policy_sha256,
        "load_heads",
        "held-out attempts",
        "| `steps` | 20 |",
    ):
        assert told in card
    features = load_features(folder / "features")
    assert load_heads(folder).q(features.states[:8], features.actions[:8]).shape == (2, 8)

    extracted = _train(folders, policy, tmp_path / "policy", {"max_steps": 2}, values=tmp_path / "values")
    assert (tmp_path / "policy" / "policy" / "model.safetensors").is_file()
    effective = extracted.metrics[f"effective_sample_size/{policy}"]
    steps = int(features.has_action.sum())
    assert effective.n == steps
    assert 1 <= effective.estimate <= steps
    assert 0 <= extracted.metrics[f"clipped_share/{policy}"].estimate <= 1
    assert any("equal steps" in note for note in extracted.notes)


def test_extraction_sees_what_weighs_more_more_often(folders: Path, tmp_path: Path) -> None:
    """By the loss each row is seen once; by sampling about as many tokens, of other rows."""
    _train(folders, "iql_values", tmp_path / "values", {"steps": 20})
    lengths = SegmentDataset.load(folders / "transitions" / "dataset").lengths
    tokens = {}
    for weighting in ("loss", "sampling"):
        settings = {"epochs": 1, "inverse_temperature": 10, "weighting": weighting}
        _train(folders, "iql", tmp_path / weighting, settings, values=tmp_path / "values")
        tokens[weighting] = load_record(tmp_path / weighting / "policy").metrics["tokens"]
    assert tokens["loss"] == lengths.sum()
    assert tokens["sampling"] != tokens["loss"]
    assert tokens["sampling"] == pytest.approx(tokens["loss"], rel=0.25)


def test_alternatives_of_a_policy_become_candidates(folders: Path, tmp_path: Path) -> None:
    """A policy without any training hardly ever ends a message, so it is cloned a little first."""
    _train(folders, "bc", tmp_path / "bc", {"epochs": 4, "learning_rate": 0.005, "tokens_per_batch": 1024})
    settings = {"steps": 20, "alternatives": 2, "backend": "transformers", "max_tokens_per_step": 48}
    data = folders / "transitions"
    outputs = run_stage(
        {"kind": "train", "algorithm": "cql_values"},
        {"dataset": data, "policy": tmp_path / "bc"},
        tmp_path / "values",
        name="cql_values",
        overrides=[f"{key}={json.dumps(value)}" for key, value in settings.items()],
    )
    made = SegmentDataset.load(tmp_path / "values" / "alternatives")
    logged = SegmentDataset.load(data / "dataset")
    prompts = {
        row.token_ids[: np.flatnonzero(row.step_index == step)[0]].tobytes() for row in logged for step in row.steps
    }
    for row in made:
        first, last = np.flatnonzero(row.action_mask)[[0, -1]]
        assert row.token_ids[:first].tobytes() in prompts
        assert last == len(row) - 1
        assert len(row) - first <= 48
    assert len(load_features(tmp_path / "values" / "values" / "features_of_alternatives")) == len(made)
    (share,) = [note for note in outputs.notes if "more than one candidate action" in note]
    without = _train(folders, "cql_values", tmp_path / "without", {"steps": 2}).notes[0]
    assert float(share.split("; ")[1].split(" %")[0]) > float(without.split("; ")[1].split(" %")[0])


def test_values_of_another_algorithm_are_refused(folders: Path, tmp_path: Path) -> None:
    _train(folders, "behavior_values", tmp_path / "values", {"steps": 2})
    with pytest.raises(UsageError, match="these values are of behavior_values and iql needs iql_values"):
        _train(folders, "iql", tmp_path / "policy", {}, values=tmp_path / "values")
    assert not (tmp_path / "policy").exists()


def test_success_is_predicted_by_cross_validation(folders: Path, tmp_path: Path) -> None:
    _train(folders, "iql_values", tmp_path / "values", {"steps": 2})
    outputs = run_stage(
        {
            "kind": "predict_success",
            "folds": 3,
            "fractions": [0.5, 1.0],
            "iql": {"steps": 20},
            "behavior": {"steps": 20},
        },
        {"store": folders / "store", "dataset": folders / "transitions", "values": tmp_path / "values"},
        tmp_path / "prediction",
        name="prediction",
    )
    predictors = ("iql_values", "behavior_values", "probe", "surface")
    expected = {f"success_auc_{mark}/{name}" for mark in (50, 100) for name in predictors}
    expected |= {f"success_auc_gain_{mark}/{name}-surface" for mark in (50, 100) for name in predictors[:3]}
    assert set(outputs.metrics) == expected
    for name in predictors:
        found = outputs.metrics[f"success_auc_100/{name}"]
        assert found.n == EPISODES
        assert found.low <= found.estimate <= found.high
