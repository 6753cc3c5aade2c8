"""Exports as a whole: what is selected, what is reported, what is left behind, and what comes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
from export_examples import compared, rich, text

from offline_arl.cli.entry import run
from offline_arl.cli.exchange import _FORMATS
from offline_arl.errors import DataError, UsageError
from offline_arl.logs.exports import sinks
from offline_arl.logs.exports.catalog import exporters
from offline_arl.trajectories.schema import Branch, Outcome, Source, Trajectory
from offline_arl.trajectories.select import successful
from offline_arl.trajectories.store import Store
from offline_arl.workflows.export import export
from offline_arl.workflows.filters import Filters
from offline_arl.workflows.ingest import ingest


def conversation(name: str, **fields: Any) -> Trajectory:
    chat = [text("user", f"question of {name}"), text("assistant", "answer")]
    return Trajectory(name, chat, Source("test"), **fields)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.create(tmp_path / "store")
    with store.writer(max_part_trajectories=2) as writer:
        for name, success in (("a", True), ("b", False), ("c", None), ("d", True), ("e", True)):
            outcome = Outcome() if success is None else Outcome("scored", success=success)
            writer.add(conversation(name, outcome=outcome, task_type="x" if name < "d" else "y"))
    return store


def ids(path: Path) -> list[str]:
    return [json.loads(line)["trajectory_id"] for line in path.read_bytes().splitlines()]


def test_what_is_selected(store: Store, tmp_path: Path) -> None:
    for number, (where, limit, wanted) in enumerate(
        [
            (None, None, "abcde"),
            (Filters(outcomes=("success",)), None, "ade"),
            (Filters(task_types=("x",)), None, "abc"),
            (Filters(where="success AND task_type = 'y'"), 1, "d"),
            (successful() & (pl.col("task_type") == "x"), None, "a"),
            (None, 2, "ab"),
        ]
    ):
        output = tmp_path / f"{number}.jsonl"
        report = export(store, output, format="openai_chat", where=where, limit=limit)
        assert ids(output) == list(wanted)
        assert report.trajectories == report.records == len(wanted)


def test_the_report_tells_what_has_no_record(store: Store, tmp_path: Path) -> None:
    report = export(store, tmp_path / "out.jsonl", format="trl_unpaired")
    assert report.as_dict() | {"seconds": 0, "megabytes": 0} == {
        "format": "trl_unpaired",
        "output": str(tmp_path / "out.jsonl"),
        "trajectories": 4,
        "records": 4,
        "skipped": 1,
        "reasons": {"no verdict on its outcome": 1},
        "seconds": 0,
        "megabytes": 0,
    }
    assert report.megabytes > 0


def test_pairs_are_one_record(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    with store.writer() as writer:
        for trajectory in (rich(), *compared()):
            writer.add(trajectory)
    report = export(store, tmp_path / "out.parquet", format="trl_preference")
    assert (report.trajectories, report.records) == (2, 1)
    assert report.skipped == {"no trajectory that it was compared with": 1}


@pytest.mark.parametrize(
    ("format", "name", "reason"),
    [
        ("verl", "out.jsonl", "verl is written to a file that ends in .parquet"),
        ("trl", "out.csv", "trl is written to a file that ends in .jsonl or a file that ends in .parquet"),
        ("trl", "out", "trl is written to a file that ends in .jsonl or a file that ends in .parquet"),
        ("atif", "out.parquet", "atif is written to a folder or a file that ends in .jsonl"),
        ("csv", "out.csv", "unknown export format 'csv'"),
        ("trl", "store.jsonl", "is there already"),
    ],
)
def test_outputs_that_cannot_be(store: Store, tmp_path: Path, format: str, name: str, reason: str) -> None:
    (tmp_path / "store.jsonl").write_text("mine")
    with pytest.raises(UsageError, match=reason):
        export(store, tmp_path / name, format=format)
    assert (tmp_path / "store.jsonl").read_text() == "mine"


@pytest.mark.parametrize(
    ("format", "name"), [("trl", "out.jsonl"), ("trl", "out.parquet"), ("atif", "out"), ("verl", "new/out.parquet")]
)
def test_what_goes_wrong_leaves_nothing(
    store: Store, tmp_path: Path, format: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / name
    real = sinks.open_sink

    def failing(*arguments: Any) -> Any:
        sink = real(*arguments)
        write, written = sink.write, []

        def full(record: Any, name: str) -> None:
            if len(written) == 3:
                raise OSError(28, "No space left on device")
            written.append(name)
            write(record, name)

        monkeypatch.setattr(sink, "write", full)
        return sink

    monkeypatch.setattr("offline_arl.workflows.export.open_sink", failing)
    with pytest.raises(DataError, match="No space left on device; check the free space"):
        export(store, output, format=format)
    assert sorted(path.name for path in output.parent.iterdir() if path.name != "store") == []


def test_nothing_to_export_is_told(store: Store, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no trajectory is selected"):
        export(store, tmp_path / "out.jsonl", format="trl", where=Filters(tasks=("none",)))
    with pytest.raises(DataError, match="nothing to export as trl_unpaired: no verdict on its outcome"):
        export(store, tmp_path / "out.jsonl", format="trl_unpaired", where=Filters(outcomes=("unscored",)))
    assert not (tmp_path / "out.jsonl").exists()


def test_ids_become_harmless_file_names(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    names = ["../../up", "trajectory", "a/b", "x.cont-1", "ok_1"]
    with store.writer() as writer:
        for name in names:
            writer.add(conversation(name))
    export(store, tmp_path / "deep/out", format="atif")
    files = [path for path in tmp_path.rglob("*.json") if "store" not in path.parts]
    assert len(files) == len(names)
    assert all(path.parent == tmp_path / "deep/out" for path in files)
    ingest(tmp_path / "deep/out", tmp_path / "again")
    assert {trajectory.trajectory_id for trajectory in Store(tmp_path / "again").iter_trajectories()} == set(names)


def test_two_contents_under_one_id_stay_two(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for folder, answer in (("one", "yes"), ("two", "no")):
        store = Store.create(tmp_path / folder)
        chat = [text("user", "?"), text("assistant", answer)]
        root = Trajectory("root", chat, Source("test"))
        branch = msgspec.structs.replace(root, trajectory_id=f"{folder}-branch", branch=Branch("root", 1))
        with store.writer() as writer:
            writer.add(root)
            writer.add(branch)
        export(store, tmp_path / f"{folder}.jsonl", format="trl")
    report = ingest([tmp_path / "one.jsonl", tmp_path / "two.jsonl"], tmp_path / "both")
    assert report.trajectories == 4
    found = list(Store(tmp_path / "both").iter_trajectories())
    assert sorted(trajectory.messages[1].text for trajectory in found) == ["no", "no", "yes", "yes"]
    assert len({trajectory.trajectory_id for trajectory in found}) == 4
    (warning,) = caplog.messages
    assert "trajectory_id 'root' is taken by other content; this one is " in warning


def test_an_export_into_its_own_store_is_marked_as_a_copy(store: Store, tmp_path: Path) -> None:
    export(store, tmp_path / "out.jsonl", format="sharegpt")
    ingest(tmp_path / "out.jsonl", store)
    table = store.trajectories.select("trajectory_id", "duplicate_of").collect()
    assert table["duplicate_of"].to_list() == [None] * 5 + list("abcde")


def test_the_command(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["export", "--store", str(store.path), "--format", "trl", "--output", str(tmp_path / "o.jsonl")]
    assert run([*arguments, "--only-successes", "--task-type", "y", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["format"], report["trajectories"], report["skipped"]) == ("trl", 2, 0)
    assert run([*arguments, "--only-successes", "--outcome", "failure", "--json"]) == 2
    assert "contradict" in json.loads(capsys.readouterr().out)["error"]


def test_the_help_names_every_format() -> None:
    assert _FORMATS.split(", ") == list(exporters())
