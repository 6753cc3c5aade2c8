"""HDF5 files of Minari as records, whole and damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offline_arl.logs.adapter import RawRecord
from offline_arl.logs.containers import hdf5
from offline_arl.logs.detect import detect
from offline_arl.logs.records import LogFile, read_records

h5py = pytest.importorskip("h5py", reason="h5py is not installed")


def records(path: Path) -> list[RawRecord]:
    return list(read_records(LogFile(path, path.name, path.name)))


def values(path: Path) -> list[Any]:
    found = records(path)
    assert [record.problem for record in found] == [None] * len(found)
    return [json.loads(record.raw) for record in found]


def write_hdf5(path: Path, episodes: int = 2) -> Path:
    text = h5py.string_dtype(encoding="utf-8")
    with h5py.File(path, "w") as file:
        for number in range(episodes):
            group = file.create_group(f"episode_{number}")
            group.attrs.update({"id": number, "seed": 7, "options/level": "easy"})
            group.create_dataset("observations", data=["Guess.", "Wrong, 日本.", "Right!"], dtype=text)
            group.create_dataset("actions", data=["1", "2"], dtype=text)
            group.create_dataset("rewards", data=[-0.1, 1.0])
            group.create_dataset("terminations", data=[False, True])
            group.create_dataset("truncations", data=[False, False])
            group.create_group("infos").create_dataset("hint", data=["a", "b", "c"], dtype=text)
    return path


def test_hdf5_episodes_are_records_in_order_of_their_numbers(tmp_path: Path) -> None:
    found = values(write_hdf5(tmp_path / "main_data.hdf5", episodes=11))
    assert [episode["id"] for episode in found] == list(range(11))
    assert found[10] == {
        "id": 10,
        "seed": 7,
        "options": {"level": "easy"},
        "observations": ["Guess.", "Wrong, 日本.", "Right!"],
        "actions": ["1", "2"],
        "rewards": [-0.1, 1.0],
        "terminations": [False, True],
        "truncations": [False, False],
        "infos": {"hint": ["a", "b", "c"]},
    }
    assert detect(tmp_path / "main_data.hdf5") == "minari"


def test_an_hdf5_file_of_something_else_is_told(tmp_path: Path) -> None:
    path = tmp_path / "other.hdf5"
    with h5py.File(path, "w") as file:
        file.create_dataset("weights", data=[1, 2])
    (found,) = records(path)
    assert found.problem == "HDF5, but no episodes of Minari; it holds: weights"


def test_links_out_of_an_hdf5_file_are_not_followed(tmp_path: Path) -> None:
    secret = write_hdf5(tmp_path / "secret.hdf5", episodes=1)
    path = write_hdf5(tmp_path / "main_data.hdf5")
    with h5py.File(path, "a") as file:
        del file["episode_1"]
        file["episode_1"] = h5py.ExternalLink(str(secret), "/episode_0")
    good, refused = records(path)
    assert good.problem is None
    assert refused.problem == "episode 1 cannot be read: episode_1 is a link"


def test_a_damaged_hdf5_file_is_told(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "main_data.hdf5")
    path.write_bytes(path.read_bytes()[:3000])
    (found,) = records(path)
    assert found.problem is not None
    assert "cannot be read" in found.problem


def test_an_hdf5_reader_that_does_not_answer_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_hdf5(tmp_path / "main_data.hdf5")
    monkeypatch.setattr(hdf5, "ANSWER_SECONDS", 0.001)  # less than it takes to start
    (found,) = records(path)
    assert found.problem == "the HDF5 file cannot be read further: its reader ended with status -9"
