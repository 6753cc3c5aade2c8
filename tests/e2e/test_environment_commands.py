"""From logs to an environment of logs, by commands."""

from __future__ import annotations

import json
from pathlib import Path

from offline_arl.cli.entry import run
from offline_arl.environments.audit import AuditTrail
from offline_arl.environments.support_desk.logs import write_logs


def test_logs_become_an_environment_whose_judge_is_right(tmp_path: Path) -> None:
    write_logs(tmp_path / "logs.jsonl", 60, seed=0)
    store, tasks = str(tmp_path / "store"), str(tmp_path / "tasks")
    assert run(["ingest", str(tmp_path / "logs.jsonl"), "--store", store]) == 0
    assert run(["split", store]) == 0
    assert run(["env", "tasks", "--store", store, "--output", tasks, "--writes", "refund_order"]) == 0
    manifest = json.loads((tmp_path / "tasks/manifest.json").read_text())
    assert (manifest["recordings"], manifest["writes"]) == (60, ["refund_order"])
    assert run(["env", "check", f"replay:{tasks}"]) == 0
    assert run(["env", "misses", f"replay:{tasks}"]) == 0
    assert run(["env", "misses", "support_desk"]) == 2
    assert run(["env", "tasks", "--store", store, "--output", tasks]) == 2  # it is not empty
    other = str(tmp_path / "other")
    assert run(["env", "tasks", "--store", store, "--output", other, "--split", "tset"]) == 2
    assert run(["env", "tasks", "--store", store, "--output", other, "--writes", "refund"]) == 2
    assert not Path(other).exists()


def test_a_trail_that_was_changed_exits_with_one(tmp_path: Path) -> None:
    trail = tmp_path / "audit.jsonl"
    with AuditTrail(trail) as audit:
        audit.append("t", "call", tool="refund", amount=10)
    assert run(["env", "audit", str(trail)]) == 0
    trail.write_bytes(trail.read_bytes().replace(b'"amount":10', b'"amount":99'))
    assert run(["env", "audit", str(trail)]) == 1


def test_each_environment_with_examples_is_checked() -> None:
    probes = ("random_walks", "double_t_maze", "key_to_door", "stitching")
    for name in ("support_desk", "support_desk_red_team", *probes):
        assert run(["env", "check", name, "--tasks", "20"]) == 0
