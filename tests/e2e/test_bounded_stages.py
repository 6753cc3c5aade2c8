"""The block `safety` of a pipeline: stages in which a policy acts keep to it, and leave an audit trail."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
from toys import lookup

from offline_arl import environments
from offline_arl.cli.entry import run as command
from offline_arl.environments.audit import AuditEntry, verify
from offline_arl.errors import UsageError
from offline_arl.trajectories.store import open_store
from offline_arl.workflows.config import parse_pipeline
from offline_arl.workflows.run import RunResult, run_pipeline

LOGS: dict[str, Any] = {
    "logs": {"kind": "generate_logs", "trajectories": 10, "environment": "stitching"},
    "store": {"kind": "ingest", "logs": "logs"},
}
ROLLOUTS = {"environment": "lookup", "backend": "transformers", "max_tokens_per_step": 24, "max_total_tokens": 128}
EVALUATION: dict[str, Any] = {"kind": "evaluate", "policies": ["start"], "tasks": 24, "sampled": False, **ROLLOUTS}
ONLINE: dict[str, Any] = {
    "kind": "online", "algorithm": "grpo", "policy": "start", "tasks": 20, "validation_tasks": 4, "steps": 1,
    "group_size": 2, "prompts_per_step": 4, "rows_per_batch": 8, "gate": None, "validation_every": 1, **ROLLOUTS,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy is found by a name."""
    monkeypatch.setitem(environments._OWN, "lookup", "toys.lookup")
    monkeypatch.setattr(lookup, "family", lookup.LookupFamily(), raising=False)


def run(folder: Path, policy: Path, safety: dict[str, Any] | None, **stages: dict[str, Any]) -> RunResult:
    start = {"kind": "initial_policy", "store": "store", "model": str(policy)}
    raw = {"name": "bounds", "safety": safety, "stages": {**LOGS, "start": start, **stages}}
    return run_pipeline(parse_pipeline(raw, "test"), folder)


def trail(path: Path) -> list[AuditEntry]:
    verify(path)
    return [msgspec.json.decode(line, type=AuditEntry) for line in path.read_bytes().splitlines()]


def estimate(result: RunResult, name: str) -> float:
    return float(result.results["metrics"][name]["estimate"])


def test_a_bounded_evaluation_counts_what_was_refused_and_every_call_is_on_its_trail(
    tmp_path: Path, lookup_policy: Path
) -> None:
    forbidden = [{"name": "keys below 500", "tools": ["look"], "pattern": '"key": ?"[0-4]'}]
    safety = {"writes": [], "max_calls": 4, "forbidden": forbidden, "audit": "trail.jsonl"}
    result = run(tmp_path / "run", lookup_policy, safety, evaluation=EVALUATION)
    folder = tmp_path / "run/stages/evaluation"
    entries = trail(folder / "trail.jsonl")
    kinds = Counter(entry.kind for entry in entries)
    episodes = list(open_store(folder / "store").iter_trajectories())
    refused = [item for item in episodes if item.stop_reason == "forbidden_action"]
    assert kinds["start"] == kinds["end"] == len(episodes) == 24
    assert 0 < len(refused) < 24
    assert kinds["refused"] == len(refused)
    assert kinds["call"] == sum(len(m.tool_calls) for item in episodes for m in item.messages) - len(refused)
    assert estimate(result, "forbidden_action/start") == len(refused) / 24
    returns = pl.read_parquet(folder / "episodes.parquet").filter(pl.col("return") == -10.0)
    assert set(returns["task_id"]) == {item.task_id for item in refused}
    (note,) = [note for note in result.records[-1].outputs.notes if "audit trail" in note]
    assert note == f"audit trail trail.jsonl: {len(entries)} entries, last hash {entries[-1].hash}"
    assert command(["env", "audit", str(folder / "trail.jsonl"), "--last-hash", entries[-1].hash]) == 0


def test_online_training_keeps_to_the_block_of_its_stage(tmp_path: Path, lookup_policy: Path) -> None:
    """One call an episode is allowed, and none of them may cost more than there is: both limits are hard."""
    own = {"writes": [], "max_calls": 1, "costs": {"look": 2.0}, "max_cost": 1.0}
    result = run(tmp_path / "run", lookup_policy, {"writes": []}, grpo={**ONLINE, "safety": own}, evaluation=EVALUATION)
    entries = trail(tmp_path / "run/stages/grpo/audit.jsonl")
    kinds = Counter(entry.kind for entry in entries)
    episodes = list(open_store(tmp_path / "run/stages/grpo/store").iter_trajectories())
    assert kinds["start"] == kinds["end"] > len(episodes) > 0  # of validation, too
    assert kinds["call"] == 0
    assert kinds["refused"] > 0
    assert {item.stop_reason for item in episodes} <= {"cost_limit", "answered", "context_length", "max_steps"}
    assert "cost_limit" in {item.stop_reason for item in episodes}
    assert estimate(result, "truncation_rate/start") < 1.0  # the evaluation has the pipeline's block
    assert Counter(entry.kind for entry in trail(tmp_path / "run/stages/evaluation/audit.jsonl"))["call"] > 0


def test_commands_take_the_block_by_set(tmp_path: Path, lookup_policy: Path) -> None:
    common = ["evaluate", "--policy", f"p={lookup_policy}", "--environment", "lookup", "--tasks", "4"]
    common += ["--backend", "transformers", "--set", "max_tokens_per_step=24", "--set", "max_total_tokens=128"]
    bounds = ["--set", "safety.writes=[]", "--set", "safety.max_calls=0"]
    assert command([*common, *bounds, "--output", str(tmp_path / "bounded")]) == 0
    assert {entry.kind for entry in trail(tmp_path / "bounded/audit.jsonl")} >= {"start", "refused", "end"}
    table = pl.read_parquet(tmp_path / "bounded/episodes.parquet")
    assert not table["success"].any()
    assert command([*common, *bounds, "--set", "safety.audit=null", "--output", str(tmp_path / "quiet")]) == 0
    assert not (tmp_path / "quiet/audit.jsonl").exists()
    assert command([*common, "--set", "safety.max_calls=3", "--output", str(tmp_path / "none")]) == 2  # cannot undo


@pytest.mark.parametrize(
    ("safety", "told"),
    [
        ({"max_calls": -1}, "max_calls"),
        ({"costs": {"look": -1}}, "'look' is negative"),
        ({"forbidden": [{"name": "x"}]}, "forbids everything"),
        ({"forbidden": [{"name": "x", "pattern": "("}]}, "no regular expression"),
        ({"audit": "../elsewhere.jsonl"}, "audit"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_blocks_that_make_no_sense_are_told(safety: dict[str, Any], told: str) -> None:
    raw = {"name": "x", "stages": {**LOGS, "start": {"kind": "initial_policy", "store": "store"}, "e": EVALUATION}}
    with pytest.raises(UsageError, match=told):
        parse_pipeline({**raw, "safety": safety}, "test")
