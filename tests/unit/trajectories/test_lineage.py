"""What was made from a store is found again, wherever store and dataset went."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from offline_arl.errors import DataError
from offline_arl.trajectories.lineage import FILE, derived_from, remember_derived, store_id
from offline_arl.trajectories.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return Store.create(tmp_path / "run/store").path


def test_what_was_made_is_remembered_once_a_place_and_both_sides_name_the_other(store: Path, tmp_path: Path) -> None:
    assert (store_id(store), derived_from(store)) == (None, [])
    data = tmp_path / "run/data"
    for path in (data, tmp_path / "elsewhere", data):
        reference = remember_derived(store, "dataset", path)
    assert reference is not None
    assert (reference.store_id, reference.relative) == (store_id(store), "../store")
    assert [(entry.path, entry.relative) for entry in derived_from(store)] == [
        (str(tmp_path / "elsewhere"), "../../elsewhere"),
        (str(data), "../data"),
    ]
    assert Store(store).verify() == []


def test_what_moved_with_the_store_is_found_beside_it(store: Path, tmp_path: Path) -> None:
    (tmp_path / "run/data").mkdir()
    remember_derived(store, "dataset", tmp_path / "run/data")
    (entry,) = derived_from(store)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    assert entry.locate(store) == tmp_path / "run/data"
    assert entry.locate(tmp_path / "copy/store") == tmp_path / "copy/data"
    shutil.rmtree(tmp_path / "copy/data")
    assert entry.locate(tmp_path / "copy/store") == tmp_path / "run/data"
    shutil.rmtree(tmp_path / "run/data")
    assert entry.locate(tmp_path / "copy/store") is None


def test_many_at_once_agree_on_the_id_and_lose_nothing(store: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        references = list(pool.map(lambda n: remember_derived(store, "export", tmp_path / f"{n}.jsonl"), range(40)))
    assert {reference.store_id for reference in references if reference} == {store_id(store)}
    assert {Path(entry.path).name for entry in derived_from(store)} == {f"{n}.jsonl" for n in range(40)}


def test_a_torn_line_costs_that_line_and_a_damaged_head_is_named(store: Path, tmp_path: Path) -> None:
    remember_derived(store, "dataset", tmp_path / "one")
    with (store / FILE).open("ab") as stream:
        stream.write(b'{"kind": "data\n')
    remember_derived(store, "dataset", tmp_path / "two")
    assert [Path(entry.path).name for entry in derived_from(store)] == ["one", "two"]
    (store / FILE).write_bytes(b"{}\n")
    with pytest.raises(DataError, match=r"derived.jsonl:1: is damaged"):
        store_id(store)


def test_a_store_that_cannot_be_written_does_not_stop_the_work(
    store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (store / FILE).mkdir()  # permissions would not stop a superuser
    assert remember_derived(store, "dataset", tmp_path / "data") is None
    assert "deletion will not reach" in caplog.text
