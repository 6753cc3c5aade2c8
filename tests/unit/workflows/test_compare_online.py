"""Online trainings compared: environment steps to a threshold, the end, the dip."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from offline_arl.errors import DataError
from offline_arl.online.diagnosis.metrics import validation_line
from offline_arl.online.records import Validation
from offline_arl.workflows.compare_online import compare_online, steps_to
from offline_arl.workflows.context import StageContext
from offline_arl.workflows.stages import CompareOnline


def course(*points: tuple[int, float, float], n_tasks: int = 200) -> list[Validation]:
    """(environment steps, greedy, sampled)."""
    return [
        Validation(number, greedy, sampled, n_tasks, environment_steps=steps)
        for number, (steps, greedy, sampled) in enumerate(points)
    ]


SLOW = course((0, 0.5, 0.27), (1000, 0.4, 0.42), (2000, 0.7, 0.72), (3000, 0.8, 0.82))
FAST = course((0, 0.7, 0.57), (500, 0.75, 0.67), (1000, 0.6, 0.87), (1500, 0.95, 0.91))


def context(folder: Path, **runs: list[Validation]) -> StageContext:
    inputs = {}
    for name, validations in runs.items():
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(validation_line(found)) + "\n" for found in validations))
        inputs[name] = {"history": path}
    return StageContext("comparison", folder, 0, inputs)  # type: ignore[arg-type]


def config(*runs: str) -> CompareOnline:
    return CompareOnline(kind="compare_online", runs=runs, baseline="slow", target=0.97)


def test_steps_to_half_of_the_gap_and_their_ratio(tmp_path: Path) -> None:
    """The gap is 0.70, half of it ends at 0.62.

    Slow: between 0.42 and 0.72 at two thirds, 1,667 steps. Fast: between 0.57 and 0.67 at one half, 250 steps.
    """
    found = compare_online(config("fast"), context(tmp_path, slow=SLOW, fast=FAST)).metrics
    assert found["half_gap"].estimate == pytest.approx(0.62)
    assert found["steps_to_half_gap/slow"].estimate == pytest.approx(1000 + 1000 * 2 / 3)
    assert found["steps_to_half_gap/fast"].estimate == pytest.approx(250)
    assert found["steps_ratio/fast"].estimate == pytest.approx(250 / (1000 + 1000 * 2 / 3))
    assert found["final_sampled/fast"].estimate == 0.91
    assert found["environment_steps_used/slow"].estimate == 3000


def test_the_largest_drop_is_below_the_start(tmp_path: Path) -> None:
    found = compare_online(config("fast"), context(tmp_path, slow=SLOW, fast=FAST)).metrics
    assert found["largest_drop_greedy/fast"].estimate == pytest.approx(0.1)
    assert found["largest_drop_sampled/fast"].estimate == 0.0
    assert found["largest_drop_greedy/slow"].estimate == pytest.approx(0.1)


def test_a_run_that_never_gets_there_has_no_number(tmp_path: Path) -> None:
    cold = course((0, 0.0, 0.0), (3000, 0.0, 0.02))
    outputs = compare_online(config("cold"), context(tmp_path, slow=SLOW, cold=cold))
    assert math.isnan(outputs.metrics["steps_to_half_gap/cold"].estimate)
    assert any("cold: half of the gap never reached" in note for note in outputs.notes)


def test_a_run_that_starts_above_needs_no_steps() -> None:
    assert steps_to(FAST, 0.5) == 0.0


def test_runs_on_different_tasks_are_not_compared(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"\[100, 200\] tasks"):
        compare_online(config("other"), context(tmp_path, slow=SLOW, other=course((0, 0.1, 0.1), n_tasks=100)))
    with pytest.raises(DataError, match="other was not validated"):
        compare_online(config("other"), context(tmp_path, slow=SLOW, other=[]))
