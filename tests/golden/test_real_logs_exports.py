"""All real logs, exported to every format and ingested again: the same trajectories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from offline_arl.logs.exports.catalog import exporters
from offline_arl.trajectories.schema import Trajectory
from offline_arl.trajectories.store import Store
from offline_arl.workflows.export import export
from offline_arl.workflows.ingest import ingest

REAL_LOGS = Path(__file__).resolve().parents[3] / "shared/real_logs"
ENDINGS = {"json_lines": ".jsonl", "parquet": ".parquet", "folder": ""}
WRITTEN = [
    (name, ENDINGS[container])
    for name, exporter in exporters().items()
    for container in exporter.containers
    if exporter.per_record == 1
]


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Store:
    if not REAL_LOGS.exists():
        pytest.skip(f"{REAL_LOGS} is not here")
    folder = tmp_path_factory.mktemp("logged") / "store"
    ingest(REAL_LOGS, folder)
    return Store(folder)


def by_id(store: Store) -> dict[str, bytes]:
    """All of each trajectory but where it was read from; the order of keys does not count."""

    def plain(item: Any) -> Any:
        if isinstance(item, msgspec.Struct):
            return {name: plain(getattr(item, name)) for name in item.__struct_fields__ if name != "source"}
        if isinstance(item, list):
            return [plain(element) for element in item]
        return {key: plain(element) for key, element in item.items()} if isinstance(item, dict) else item

    def as_json(trajectory: Trajectory) -> bytes:
        return msgspec.json.encode(plain(trajectory), order="deterministic")

    return {trajectory.trajectory_id: as_json(trajectory) for trajectory in store.iter_trajectories()}


# What has no record, by looking at the logs: conversations that hold nothing but answers, or none.
MAY_LACK = {"trl_prompt_completion": 0.01, "verl_rl": 0.01, "trl_unpaired": 0.6}


@pytest.mark.parametrize(("name", "ending"), WRITTEN)
def test_real_logs_come_back_the_same(logged: Store, name: str, ending: str, tmp_path: Path) -> None:
    output = tmp_path / f"out{ending}"
    report = export(logged, output, format=name)
    total = len(logged)
    assert report.records == report.trajectories == total - sum(report.skipped.values())
    assert sum(report.skipped.values()) <= MAY_LACK.get(name, 0) * total
    again = ingest(output, tmp_path / "again")
    assert (again.trajectories, again.quarantined, again.set_apart) == (report.trajectories, 0, 0)
    assert set(again.by_format) == {exporters()[name].adapter}
    wanted, found = by_id(logged), by_id(Store(tmp_path / "again"))
    assert {key: wanted[key] for key in found} == found


@pytest.mark.parametrize("name", ["trl", "sharegpt"])
def test_slots_of_real_logs_are_small(logged: Store, name: str, tmp_path: Path) -> None:
    export(logged, tmp_path / "out.jsonl", format=name)
    lines = (tmp_path / "out.jsonl").read_bytes().splitlines()
    slots = sum(len(json.loads(line)["offline_arl"].encode()) for line in lines)
    assert slots < 0.2 * sum(map(len, lines))
