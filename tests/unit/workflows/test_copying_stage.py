"""Exercises in copying as stages of a pipeline: they need a tokenizer and no store, and are cloned like any dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from offline_arl.datasets.segments import SegmentDataset
from offline_arl.models.policy import load_tokenizer
from offline_arl.workflows.config import parse_pipeline
from offline_arl.workflows.run import run_pipeline

STAGES: dict[str, Any] = {
    "logs": {"kind": "generate_logs", "environment": "support_desk", "trajectories": 60},
    "store": {"kind": "ingest", "logs": "logs"},
    "random": {"kind": "initial_policy", "store": "store", "model": "tiny", "vocabulary_size": 300},
    "exercises": {"kind": "dataset", "form": "copying", "policy": "random", "rows": 64},
    "start": {
        "kind": "train", "algorithm": "bc", "dataset": "exercises", "policy": "random", "max_steps": 2,
        "tokens_per_batch": 256,
    },
}  # fmt: skip


def test_exercises_are_cloned_before_the_logs(tmp_path: Path) -> None:
    result = run_pipeline(parse_pipeline({"name": "copying", "stages": STAGES}, "test"), tmp_path / "run")
    stages = result.output / "stages"
    exercises = SegmentDataset.load(stages / "exercises" / "dataset")
    tokenizer = load_tokenizer(stages / "random" / "policy")
    rows = [tokenizer.convert_ids_to_tokens(row.token_ids.tolist()) for row in exercises]
    of_identifiers = [all(len(piece) <= 2 and (piece.isdigit() or piece.isupper()) for piece in row) for row in rows]
    assert 40 <= sum(of_identifiers) < 64  # four fifths on average
    assert not {token for row in rows for token in row} & set(tokenizer.get_added_vocab())
    assert result.records[3].outputs.metrics["segments/exercises"].estimate == 64
    assert exercises.manifest.lineage is None  # of no store, so that deleting a trajectory cannot concern them
    record = json.loads((stages / "start" / "policy" / "training.json").read_text())
    assert record["algorithm"] == "bc"
    assert record["config"]["max_steps"] == 2
