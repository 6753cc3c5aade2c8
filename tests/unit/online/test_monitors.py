"""The history on disk, and the alarms."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest

from offline_arl.errors import DataError
from offline_arl.online.monitors import Monitor, StepRecord, Validation


def record(step: int, **fields: Any) -> StepRecord:
    values: dict[str, Any] = {
        "step": step,
        "n_episodes": 100,
        "success": 0.6,
        "mean_return": 0.6,
        "mean_steps": 2.0,
        "invalid_actions": 0.1,
        "truncated": 0.0,
        "infrastructure_errors": 0,
        "idle_groups": 0.2,
        "kl": 0.0,
        "entropy": 1.0,
        "loss": 0.1,
        "gradient_norm": 1.0,
        "sync_difference": None,
    }
    return StepRecord(**{**values, **fields})


def test_every_line_is_valid_json_as_it_is_written(tmp_path: Path) -> None:
    monitor = Monitor(tmp_path / "run" / "metrics.jsonl")
    monitor.add_validation(Validation(0, 0.9, 0.7, 100))
    monitor.add_step(record(1, success=math.nan))
    first, second = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert first == {"kind": "validation", "step": 0, "greedy": 0.9, "sampled": 0.7, "n_tasks": 100}
    assert (second["kind"], second["step"], second["success"], second["kl"]) == ("step", 1, None, 0.0)


def test_a_reference_that_is_not_the_start_is_refused(tmp_path: Path) -> None:
    monitor = Monitor(tmp_path / "metrics.jsonl")
    monitor.check_reference(record(1, kl=1e-7), tolerance=1e-6)
    monitor.check_reference(record(1, kl=None), tolerance=1e-6)
    monitor.check_reference(record(2, kl=0.5), tolerance=1e-6)
    for kl in (1e-5, math.nan):
        with pytest.raises(DataError, match="has to be 0"):
            monitor.check_reference(record(1, kl=kl), tolerance=1e-6)


def test_alarms_are_raised_once_at_the_step_they_show(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    monitor = Monitor(tmp_path / "metrics.jsonl")
    with caplog.at_level(logging.WARNING):
        for step in range(1, 21):
            late = step > 10
            monitor.add_step(record(step, entropy=0.05 if late else 1.0, success=0.3 if late else 0.6))
    # The mean of five falls below 0.2 once all five are low: (0.05 * 4 + 1) / 5 = 0.24 and then 0.05.
    # Success 0.6 - 0.15 = 0.45: three low ones of five give 0.42.
    assert monitor.alarms == {"success_drop": 13, "entropy_collapse": 15}
    assert len(caplog.records) == 2


def test_under_a_curriculum_only_validation_tells_a_drop(tmp_path: Path) -> None:
    monitor = Monitor(tmp_path / "metrics.jsonl", steady_tasks=False)
    for step in range(1, 21):
        monitor.add_step(record(step, success=0.2 if step > 10 else 0.6))
    assert monitor.alarms == {}
    for step, sampled in ((0, 0.6), (20, 0.46), (40, 0.44)):  # 0.6 - 0.15 = 0.45
        monitor.add_validation(Validation(step, greedy=0.6, sampled=sampled, n_tasks=100))
    assert monitor.alarms == {"success_drop": 40}


def test_a_failing_harness_raises_an_alarm_at_once(tmp_path: Path) -> None:
    monitor = Monitor(tmp_path / "metrics.jsonl")
    monitor.add_step(record(1, infrastructure_errors=10))
    assert monitor.alarms == {}
    monitor.add_step(record(2, infrastructure_errors=11))
    assert monitor.alarms == {"harness": 2}
