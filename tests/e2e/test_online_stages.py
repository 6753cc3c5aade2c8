"""Online trainings beside one another in a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from toys import lookup

from offline_arl import environments
from offline_arl.online.diagnosis.metrics import read_history
from offline_arl.trajectories.store import open_store
from offline_arl.workflows.config import parse_pipeline
from offline_arl.workflows.run import run_pipeline

pytestmark = pytest.mark.e2e

ONLINE: dict[str, Any] = {
    "kind": "online", "algorithm": "grpo", "policy": "start", "environment": "lookup", "backend": "transformers",
    "tasks": 8, "prompts_per_step": 4, "group_size": 2, "steps": 2, "rows_per_batch": 8, "learning_rate": 1e-6,
    "validation_tasks": 16, "validation_every": 2, "gate": None, "max_tokens_per_step": 24, "max_total_tokens": 128,
}  # fmt: skip


def test_trainings_of_a_run_have_the_same_tasks(
    tmp_path: Path, lookup_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps play all eight tasks of each; the start is worth the same on what both are validated on."""
    monkeypatch.setitem(environments._OWN, "lookup", "toys.lookup")
    monkeypatch.setattr(lookup, "family", lookup.LookupFamily(), raising=False)
    stages = {
        "logs": {"kind": "generate_logs", "trajectories": 10, "environment": "stitching"},
        "store": {"kind": "ingest", "logs": "logs"},
        "start": {"kind": "initial_policy", "store": "store", "model": str(lookup_policy)},
        "one": ONLINE,
        "other": ONLINE,
    }
    run_pipeline(parse_pipeline({"name": "beside", "stages": stages}, "test"), tmp_path / "run")
    played, starts = [], []
    for name in ("one", "other"):
        folder = tmp_path / "run/stages" / name
        played.append({item.task_id for item in open_store(folder / "store").iter_trajectories()})
        starts.append(read_history(folder / "metrics.jsonl").validations[0].greedy)
    assert len(played[0]) == 8
    assert played[0] == played[1]
    assert starts[0] == starts[1]
