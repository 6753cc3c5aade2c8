"""The history on disk as it grows and is gone on with, and what is said once of each failure."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from toys.training_history import history, step_record

from offline_arl.errors import DataError
from offline_arl.online.config import CurriculumConfig, GrpoConfig
from offline_arl.online.diagnosis import diagnose
from offline_arl.online.diagnosis.metrics import read_history
from offline_arl.online.diagnosis.setup import Setup
from offline_arl.online.monitors import Monitor
from offline_arl.online.records import Validation


def lines(path: Path) -> list[dict[str, Any]]:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def test_every_line_is_valid_json_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    monitor = Monitor(path)
    monitor.add_validation(Validation(0, 0.9, 0.7, 100, environment_steps=5))
    monitor.add_step(step_record(1, success=math.nan, loss=math.inf, idle_groups=1.0))
    first, second = lines(path)
    assert first == {"kind": "validation", **asdict(Validation(0, 0.9, 0.7, 100, environment_steps=5))}
    assert (second["kind"], second["step"], second["success"], second["kl"]) == ("step", 1, None, 0.02)
    assert second["loss"] is None
    assert "facts" not in second


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    monitor = Monitor(path, steady_tasks=False)
    written = [step_record(1, kl=None, seconds={"rollout": 1.5}), step_record(2, explained_variance=None)]
    for record in written:
        monitor.add_step(record)
    monitor.add_validation(Validation(2, 0.9, 0.7, 100, full=True))
    found = read_history(path)
    assert found.records == written == monitor.history
    assert found.validations == monitor.validations == [Validation(2, 0.9, 0.7, 100, full=True)]
    assert found.steady_tasks is False


def test_a_reference_that_is_not_the_start_is_refused(tmp_path: Path) -> None:
    monitor = Monitor(tmp_path / "metrics.jsonl")
    monitor.check_reference(step_record(1, kl=1e-7), tolerance=1e-6)
    monitor.check_reference(step_record(1, kl=None), tolerance=1e-6)
    monitor.check_reference(step_record(2, kl=0.5), tolerance=1e-6)
    for kl in (1e-5, math.nan):
        with pytest.raises(DataError, match="has to be 0"):
            monitor.check_reference(step_record(1, kl=kl), tolerance=1e-6)


def test_a_finding_is_logged_and_written_once_with_its_remedy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "metrics.jsonl"
    monitor = Monitor(path)
    with caplog.at_level(logging.WARNING):
        for record in history(20, lambda step: {"mean_tokens": 120.0 if step > 5 else 40.0}).records:
            monitor.add_step(record)
    assert monitor.alarms == {"length_drift": 8}  # steps 4 to 8: (2 * 40 + 3 * 120) / 5 = 88, twice the start is 80
    assert [message for message in caplog.messages if "length_drift" in message] == caplog.messages
    (alarm,) = [line for line in lines(path) if line["kind"] == "alarm"]
    assert (alarm["failure"], alarm["symptom"], alarm["step"]) == (
        "length_drift",
        "mean_tokens_up",
        monitor.alarms["length_drift"],
    )
    assert alarm["remedy"] in caplog.text


def test_live_and_afterwards_the_same_is_found(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    monitor = Monitor(path)
    monitor.add_validation(Validation(0, 0.9, 0.7, 100))
    for record in history(20, lambda step: {"kl": 0.06 * step, "invalid_actions": 0.1 * step}).records:
        monitor.add_step(record)
    monitor.add_validation(Validation(20, 0.9, 0.4, 100))
    assert {finding.kind for finding in monitor.findings} == {"kl_growth", "success_drop"}
    assert diagnose(read_history(path)) == monitor.findings


def test_training_is_dead_after_so_many_steps_without_a_signal_and_alive_again_with_one(tmp_path: Path) -> None:
    monitor = Monitor(tmp_path / "metrics.jsonl", dead_steps=6)
    for step in range(1, 7):
        assert monitor.dead is None
        monitor.add_step(step_record(step, idle_groups=1.0))
    assert monitor.dead is not None
    assert (monitor.dead.kind, monitor.dead.symptom, monitor.dead.step) == ("reward_variance", "no_signal", 6)
    monitor.add_step(step_record(7))
    assert monitor.dead is None


def test_without_dead_steps_nothing_stops_a_training(tmp_path: Path) -> None:
    monitor = Monitor(tmp_path / "metrics.jsonl", dead_steps=None)
    monitor.add_step(step_record(1, loss=math.nan))
    assert monitor.dead is None
    assert monitor.findings[0].severity == "fatal"
    stopping = Monitor(tmp_path / "other.jsonl")
    stopping.add_step(step_record(1, loss=math.nan))
    assert stopping.dead is not None
    assert stopping.dead.symptom == "not_finite"


def test_a_resumed_training_keeps_what_came_before_its_state(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "metrics.jsonl"
    before = Monitor(path)
    before.add_validation(Validation(0, 0.9, 0.7, 100))
    for step in range(1, 13):
        before.add_step(step_record(step, mean_tokens=40.0 if step < 4 else 120.0, kl=9.0 if step > 10 else 0.02))
        if step % 4 == 0:
            before.add_validation(Validation(step, 0.9, 0.7, 100))
    path.write_text(path.read_text() + '{"kind": "step", "st')  # killed as it wrote
    caplog.clear()
    after = Monitor(path, resume_at=8)
    assert [record.step for record in after.history] == list(range(1, 9))
    assert [validation.step for validation in after.validations] == [0, 4, 8]
    assert after.alarms == {"length_drift": 6}
    assert after.dead is None
    assert caplog.records == []  # what was said is not said again
    after.add_step(step_record(9, mean_tokens=120.0))
    assert [line["step"] for line in lines(path) if line["kind"] == "step"] == list(range(1, 10))
    assert after.alarms == {"length_drift": 6}


def test_the_file_begins_with_what_the_training_was_given(tmp_path: Path) -> None:
    """Once, also after an interruption; a file of another version holds something else, which is not known then."""
    path = tmp_path / "metrics.jsonl"
    setups = [
        Setup.of(GrpoConfig(curriculum=CurriculumConfig(levels=levels)), critic=True, replay=False) for levels in (2, 3)
    ]
    first = Monitor(path, setup=setups[0])
    first.add_step(step_record(1))
    Monitor(path, setup=setups[1], resume_at=1)
    assert [line["kind"] for line in lines(path)] == ["setup", "step"]
    assert read_history(path).setup == setups[1]
    path.write_text('{"kind": "setup", "step": 0, "setup": {"steps": 60}}\n')
    assert read_history(path).setup is None


def test_a_validation_that_a_resumed_training_makes_again_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = Monitor(path)
    first.add_validation(Validation(0, 0.9, 0.7, 100))
    first.add_validation(Validation(0, 0.9, 0.6, 100))
    assert read_history(path).validations == [Validation(0, 0.9, 0.6, 100)]


def test_a_new_training_does_not_go_on_with_an_old_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    Monitor(path).add_step(step_record(1))
    assert Monitor(path).history == []
    assert path.read_text() == ""
    assert Monitor(tmp_path / "missing.jsonl", resume_at=3).history == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"kind": "step"}\n', "not a record of online training"),
        ("[]\n", "not a record of online training"),
        ('{"kind": "st\n{"kind": "validation", "step": 0}\n', "metrics.jsonl:1: is not JSON"),
        ("\xff\n", "cannot be read"),
    ],
)
def test_other_files_are_refused_with_the_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=message):
        read_history(path)


def test_a_file_of_an_earlier_version_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "step", "step": 1, "n_episodes": 8, "success": 0.5, "loss": 0.1, "gradient_norm": 1.0}\n')
    (record,) = read_history(path).records
    assert (record.success, record.kl, record.infrastructure_errors) == (0.5, None, 0)
    assert math.isnan(record.mean_tokens)
    assert diagnose(read_history(path)) == []
