"""Minari episodes as records, from each of its storages: HDF5, Arrow and Parquet.

An episode becomes `{"id", "observations", "actions", "rewards", "terminations", "truncations", "infos", ...}` with
one more observation than actions, whatever it was stored in, so that one adapter reads them all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_arl.logs.adapter import RawRecord
from offline_arl.logs.containers.plain_json import encode
from offline_arl.logs.records import MAX_RECORD_BYTES, LogFile

if TYPE_CHECKING:
    from offline_arl.logs.containers.tables import Row

EPISODE_COLUMNS = frozenset({"observations", "actions", "rewards", "terminations", "truncations"})
_STEP_COLUMNS = ("actions", "rewards", "terminations", "truncations")
# What does not change when the dataset grows: a record's bytes are its identity.
_DATASET_KEYS = ("dataset_id", "algorithm_name", "env_spec")


def episodes_of_rows(file: LogFile, rows: Iterable[Row]) -> Iterator[RawRecord]:
    """The episodes of a table with one row a time step.

    The row after the last step has the last observation only; its other columns are padding. Minari writes one
    file an episode, and a `metadata.json` beside it.
    """
    header = _read_object(file.path.parent / "metadata.json")
    dataset = dataset_header(file.path.parent.parent)
    for position, (steps, problem) in enumerate(_cut(rows)):
        if problem is not None:
            yield RawRecord(file.shown, file.label, position, b"", problem=problem)
        else:
            yield episode_record(file, position, _episode(steps, header) | dataset)


def _cut(rows: Iterable[Row]) -> Iterator[tuple[list[dict[str, Any]], str | None]]:
    """The steps of each episode; where a row is damaged, its episode is lost as a whole."""
    steps: list[dict[str, Any]] = []
    problem: str | None = None
    for row in rows:
        if row.values is None:
            problem = problem or row.problem
        elif steps and row.values.get("episode_id") != steps[0].get("episode_id"):
            yield steps, problem
            steps, problem = [row.values], None
        else:
            steps.append(row.values)
    yield steps, problem


def _episode(steps: list[dict[str, Any]], header: dict[str, Any]) -> dict[str, Any]:
    episode = dict(header) if "episode_id" not in steps[0] else {**header, "id": steps[0]["episode_id"]}
    episode["observations"] = [step["observations"] for step in steps]
    for key in _STEP_COLUMNS:
        episode[key] = [step[key] for step in steps[:-1]]
    if "infos" in steps[0]:
        episode["infos"] = [step["infos"] for step in steps]
    return episode


def episode_record(file: LogFile, position: int, episode: dict[str, Any]) -> RawRecord:
    """The record of an episode."""
    try:
        raw = encode(episode)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return RawRecord(file.shown, file.label, position, b"", problem=f"the episode has no JSON form: {error}")
    if len(raw) > MAX_RECORD_BYTES:
        problem = f"the episode is longer than {MAX_RECORD_BYTES} bytes"
        return RawRecord(file.shown, file.label, position, raw[:4096], problem=problem)
    return RawRecord(file.shown, file.label, position, raw)


def dataset_header(folder: Path) -> dict[str, Any]:
    """`{"dataset": ...}` from the metadata that Minari keeps in its data folder; {} where there is none."""
    values = _read_object(folder / "metadata.json")
    kept = {key: values[key] for key in _DATASET_KEYS if key in values}
    return {"dataset": kept} if "dataset_id" in kept else {}


def _read_object(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > 1 << 20:
            return {}
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
