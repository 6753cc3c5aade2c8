"""From logs to policies trained on preferences, by every objective, and to the policy's own attempts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offline_arl.datasets.pairs import PairDataset
from offline_arl.errors import DataError, UsageError
from offline_arl.trainers.checkpoint import load_record
from offline_arl.trajectories.store import open_store
from offline_arl.workflows.config import Pipeline, parse_pipeline
from offline_arl.workflows.run import run_pipeline

QUICK = {"kind": "train", "policy": "bc", "epochs": 3, "max_steps": 3, "learning_rate": 1e-4, "logging_steps": 1}


def pipeline(**changes: dict[str, object]) -> Pipeline:
    stages: dict[str, dict[str, object]] = {
        "logs": {"kind": "generate_logs", "trajectories": 60},
        "store": {"kind": "ingest", "logs": "logs"},
        "start": {"kind": "initial_policy", "store": "store", "vocabulary_size": 400},
        "bc_data": {"kind": "dataset", "form": "bc", "store": "store", "policy": "start"},
        "bc": {**QUICK, "algorithm": "bc", "dataset": "bc_data", "policy": "start", "max_steps": 5},
        "pairs": {"kind": "dataset", "form": "pairs", "store": "store", "policy": "start", "pair_kinds": ["step"]},
        "labels": {"kind": "dataset", "form": "unpaired", "store": "store", "policy": "start"},
        "dpo": {**QUICK, "algorithm": "dpo", "dataset": "pairs"},
        "ipo": {**QUICK, "algorithm": "ipo", "dataset": "pairs", "reference": "start"},
        "simpo": {**QUICK, "algorithm": "simpo", "dataset": "pairs"},
        "kto": {**QUICK, "algorithm": "kto", "dataset": "labels", "recommended_weights": True},
        "attempts": {
            "kind": "sample", "policy": "dpo", "tasks": 3, "attempts": 2, "keep": "all", "backend": "transformers",
            "max_tokens_per_step": 8, "max_total_tokens": 512,
        },
    }  # fmt: skip
    stages.update(changes)
    raw = {"name": "preferences", "model": "tiny", "environment": "support_desk", "stages": stages}
    return parse_pipeline(raw, "test")


@pytest.mark.e2e
def test_every_objective_trains_from_logs_and_the_policy_samples_attempts(tmp_path: Path) -> None:
    output = tmp_path / "run"
    result = run_pipeline(pipeline(), output)
    metrics = result.results["metrics"]
    for name in ("dpo", "ipo", "simpo", "kto"):
        record = load_record(output / "stages" / name / "policy")
        assert record.algorithm == name
        assert record.metrics["updates"] == 3
        lines = (output / "stages" / name / "policy" / "monitors.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]
        assert f"kl_to_reference/{name}" in metrics
    kto = load_record(output / "stages" / "kto" / "policy")
    labels = json.loads((output / "stages" / "labels" / "dataset" / "manifest.json").read_text())
    recommended = labels["config"]["recommended"]
    assert {name: kto.config[name] for name in recommended} == recommended
    # DPO and SimPO share the values of their reference; IPO is held to another policy.
    sidecars = list((output / "stages" / "pairs").glob("dataset.reference/*.safetensors"))
    assert len(sidecars) == 2
    attempts = list(open_store(output / "stages" / "attempts" / "store").iter_trajectories())
    assert len(attempts) == 6
    assert len({item.group_id for item in attempts}) == 3
    assert metrics["kept_attempts/attempts"]["estimate"] == 6
    assert run_pipeline(pipeline(), output).executed == ()
    pairs = PairDataset.load(output / "stages" / "pairs" / "dataset")
    assert metrics["pairs/step"]["estimate"] == len(pairs)


@pytest.mark.e2e
def test_what_does_not_fit_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="makes a dataset of form pairs, and dataset takes unpaired"):
        run_pipeline(pipeline(kto={**QUICK, "algorithm": "kto", "dataset": "pairs"}), tmp_path / "run")
    other = {"kind": "initial_policy", "store": "store", "vocabulary_size": 300}
    wrong = pipeline(bc=other)
    with pytest.raises(DataError, match="built for another tokenizer"):
        run_pipeline(wrong, tmp_path / "run")
    sample = {"kind": "sample", "policy": "bc", "tasks": 2, "attempts": 1, "backend": "transformers"}
    nothing = pipeline(kto=QUICK | {"algorithm": "kto", "dataset": "labels"}, attempts=sample)
    with pytest.raises(DataError, match="none of 2 attempts succeeded"):
        run_pipeline(nothing, tmp_path / "run")
