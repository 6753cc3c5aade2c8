"""`metrics.jsonl`: the lines that a training writes about itself, and the history that they tell.

A line is an object with a "kind": "setup" (the first one, a `Setup`), "step" (a `StepRecord`, with "facts" of its
episodes), "validation" or "alarm".
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from offline_arl.errors import DataError, reason_of
from offline_arl.online.diagnosis.facts import Facts
from offline_arl.online.diagnosis.findings import Finding
from offline_arl.online.diagnosis.history import History
from offline_arl.online.diagnosis.setup import Setup
from offline_arl.online.records import StepRecord, Validation

Line = dict[str, Any]
_Record = TypeVar("_Record", StepRecord, Validation)

METRICS_NAME = "metrics.jsonl"


def setup_line(setup: Setup) -> Line:
    """The line of what a training was given."""
    return {"kind": "setup", "step": 0, "setup": setup.as_dict()}


def step_line(record: StepRecord, facts: Facts, *, steady_tasks: bool) -> Line:
    """The line of a step."""
    extra = ({"facts": facts} if facts else {}) | ({} if steady_tasks else {"steady_tasks": False})
    return {"kind": "step", **_finite(asdict(record)), **extra}


def validation_line(validation: Validation) -> Line:
    """The line of a validation."""
    return {"kind": "validation", **_finite(asdict(validation))}


def alarm_line(finding: Finding) -> Line:
    """The line of a finding, where it was first seen."""
    found = finding.as_dict()
    return {"kind": "alarm", "failure": found.pop("kind"), **found}


def read_lines(path: Path, *, until: int | None = None) -> list[Line]:
    """The lines of a file, in order.

    A last line that a killed run left half-written is left out.

    Args:
        path: The file.
        until: Leave out what belongs to later steps; None: take all.

    Raises:
        DataError: The file cannot be read, or holds something else.
    """
    try:
        texts = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}: cannot be read ({reason_of(error)}); name the folder of an online training"
        ) from error
    lines = []
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except ValueError as error:
            if number == len(texts):  # no line break after it
                break
            raise DataError(f"{path}:{number}: is not JSON ({error}); remove the line") from error
        if not isinstance(line, dict) or "kind" not in line or not isinstance(line.get("step"), int):
            raise DataError(f"{path}:{number}: is not a record of online training; name the folder of one")
        if until is None or line["step"] <= until:
            lines.append(line)
    return lines


def read_history(path: Path, *, until: int | None = None) -> History:
    """The history that a file tells; a step or a validation that was made again counts as it was made last.

    Raises:
        DataError: The file cannot be read, or holds something else.
    """
    history = History()
    steps: dict[int, tuple[StepRecord, Facts]] = {}
    validations: dict[tuple[int, bool], Validation] = {}
    for line in read_lines(path, until=until):
        if line["kind"] == "step":
            steps[line["step"]] = _record(StepRecord, line), line.get("facts") or {}
            history.steady_tasks &= line.get("steady_tasks", True)
        elif line["kind"] == "setup":
            history.setup = Setup.read(line.get("setup") or {})
        elif line["kind"] == "validation":
            validation = _record(Validation, line)
            validations[validation.step, validation.full] = validation
    ordered = [steps[step] for step in sorted(steps)]
    history.records = [record for record, _ in ordered]
    history.facts = [facts for _, facts in ordered]
    history.validations = sorted(validations.values(), key=lambda found: found.step)
    return history


def write_lines(path: Path, lines: list[Line]) -> None:
    """Replace a file by these lines, at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".partial")
    fresh.write_text("".join(json.dumps(line, allow_nan=False) + "\n" for line in lines), encoding="utf-8")
    fresh.replace(path)


def append_line(path: Path, line: Line) -> None:
    """Add a line to a file."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, allow_nan=False) + "\n")


def _record(kind: type[_Record], line: Mapping[str, Any]) -> _Record:
    return kind(**dict(_values(kind, line)))


def _values(kind: type[StepRecord] | type[Validation], line: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The fields of a record; what an earlier version did not write, and null, is unknown."""
    for field in fields(kind):
        value = line.get(field.name)
        if value is not None:
            yield field.name, value
        elif field.name not in line and field.default is not MISSING:
            continue
        elif field.type == "float":
            yield field.name, math.nan
        elif field.type == "float | None":
            yield field.name, None
        elif field.type == "int":
            yield field.name, 0


def _finite(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in record.items()
    }
