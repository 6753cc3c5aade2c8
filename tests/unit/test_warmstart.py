"""The warm start on disk, and the gate in front of online training."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from offline_arl.environments.protocol import Task
from offline_arl.errors import DataError, GateError
from offline_arl.rollouts.episode import Episode
from offline_arl.trajectories.schema import Outcome, Source, Trajectory
from offline_arl.warmstart import WarmStart, check_gate


def episodes(successes: int, n: int, *, temperature: float = 1.0, status: str = "scored") -> list[Episode]:
    found = []
    for index in range(n):
        outcome = Outcome(status, success=index < successes if status == "scored" else None)  # type: ignore[arg-type]
        trajectory = Trajectory("t", [], Source("rollout"), outcome=outcome, metadata={"temperature": temperature})
        found.append(Episode(Task(f"task-{index}", "x", {}), 0, trajectory, [], 0, [], 1, 0, 0))
    return found


def test_the_gate_lets_pass_from_thirty_percent_on() -> None:
    report = check_gate(episodes(30, 100))
    assert (report.success, report.n_tasks, report.n_episodes) == (0.3, 100, 100)
    with pytest.raises(GateError, match=r"succeeds in 29\.0% of 100 .* needs 30%: clone successes longer"):
        check_gate(episodes(29, 100))
    for successes, bar in ((29, "0.25"), (20, "0.2"), (3, "0")):
        with pytest.raises(GateError, match=rf"--set gate\.minimum_success={bar} "):
            check_gate(episodes(successes, 100))
    assert check_gate(episodes(10, 100), minimum_success=0.1).success == 0.1


def test_the_gate_wants_enough_different_judged_tasks() -> None:
    with pytest.raises(GateError, match="judged 99 validation tasks and needs 100"):
        check_gate(episodes(99, 99))
    with pytest.raises(GateError, match="judged 50 validation tasks"):
        check_gate([*episodes(50, 50), *episodes(50, 50)])
    with pytest.raises(GateError, match="judged 60 validation tasks"):
        check_gate([*episodes(60, 60), *episodes(0, 100, status="infrastructure_error")])


def test_failures_of_the_harness_do_not_count_against_the_policy() -> None:
    report = check_gate([*episodes(50, 100), *episodes(0, 80, status="infrastructure_error")])
    assert report.success == 0.5


def test_greedy_episodes_are_not_what_the_gate_measures() -> None:
    with pytest.raises(GateError, match="these are greedy"):
        check_gate(episodes(100, 100, temperature=0.0))


def test_a_warm_start_comes_back_from_disk(tmp_path: Path) -> None:
    policy, heads = tmp_path / "policy", tmp_path / "heads"
    policy.mkdir()
    heads.mkdir()
    start = WarmStart(policy, "abc", heads, policy, None, {"levels": 2}, {"algorithm": "iql", "success": 0.8})
    start.save(tmp_path / "start")
    assert WarmStart.load(tmp_path / "start") == start
    heads.rmdir()
    with pytest.raises(DataError, match=r"value_heads_path .* does not exist"):
        WarmStart.load(tmp_path / "start")


def test_a_broken_warm_start_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"warm_start\.json is missing"):
        WarmStart.load(tmp_path)
    for text in ("{", json.dumps({"policy_path": "x"}), "[]"):
        (tmp_path / "warm_start.json").write_text(text)
        with pytest.raises(DataError, match="is not a warm start"):
            WarmStart.load(tmp_path)


def test_the_fingerprint_is_of_the_weights(tmp_path: Path, lookup_policy: Path) -> None:
    from offline_arl.models.policy import load_policy, save_policy

    start = WarmStart.from_policy(lookup_policy, algorithm="bc")
    model, tokenizer = load_policy(lookup_policy)
    save_policy(model, tokenizer, tmp_path / "copy")
    assert WarmStart.from_policy(tmp_path / "copy").policy_fingerprint == start.policy_fingerprint
    weights = model.model.norm.weight.data
    weights[0] = float(np.nextafter(np.float32(weights[0]), np.float32(2)))
    save_policy(model, tokenizer, tmp_path / "copy")
    assert WarmStart.from_policy(tmp_path / "copy").policy_fingerprint != start.policy_fingerprint
    assert start.metadata == {"algorithm": "bc"}
