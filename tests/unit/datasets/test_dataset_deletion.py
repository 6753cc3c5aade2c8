"""A dataset without some trajectories is the dataset that was built without them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from offline_arl.datasets import (
    BCConfig,
    ReturnConditionedConfig,
    SegmentDataset,
    TransitionsConfig,
    build_bc,
    build_return_conditioned,
    build_transitions,
    segments,
)
from offline_arl.datasets.deletion import remove_trajectories, rows_by_trajectory
from offline_arl.datasets.manifest import DatasetManifest, write_manifest
from offline_arl.datasets.return_conditioning import ReturnConditioning, TrainingReturns
from offline_arl.errors import DataError
from offline_arl.rendering import Renderer
from offline_arl.rendering.return_conditioning import ConditioningConfig
from offline_arl.rewards.components import RewardConfig
from offline_arl.trajectories.lineage import StoreReference
from offline_arl.trajectories.schema import Trajectory

CONDITIONING = ReturnConditioning(  # the same with and without the attempts that go
    conditioning=ConditioningConfig(),
    rewards=RewardConfig(),
    edges=(0.5,),
    class_counts=(1, 1),
    returns=TrainingReturns(attempts=2, minimum=0, maximum=1, mean=0.5, deciles=(0,) * 6 + (1,) * 5),
    default_target=1,
)
Build = Callable[[list[Trajectory], Renderer, Path], DatasetManifest]
BUILDERS: dict[str, Build] = {
    "bc": lambda trajectories, renderer, path: build_bc(trajectories, renderer, path, config=BCConfig(max_tokens=260)),
    "transitions": lambda trajectories, renderer, path: build_transitions(
        trajectories, renderer, path, config=TransitionsConfig()
    ),
    "return_conditioned": lambda trajectories, renderer, path: build_return_conditioned(
        trajectories, renderer, path, config=ReturnConditionedConfig(return_conditioning=CONDITIONING)
    ),
}


def same(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray):
        return bool(np.array_equal(left, right))
    return bool(left == right)


@pytest.mark.parametrize("kind", BUILDERS)
def test_it_equals_one_built_without_them(
    kind: str, attempts: list[Trajectory], renderer: Renderer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "ROWS_PER_GROUP", 7)
    monkeypatch.setattr(segments, "ROWS_PER_PART", 14)  # so that trajectories lie across parts
    built = BUILDERS[kind](attempts, renderer, tmp_path / "data")
    gone = {attempt.trajectory_id for attempt in attempts[::4]}
    expected = BUILDERS[kind]([a for a in attempts if a.trajectory_id not in gone], renderer, tmp_path / "expected")
    assert len(list((tmp_path / "data").glob("part-*"))) > 1

    manifest = remove_trajectories(tmp_path / "data", [*gone, "somebody else's"])
    assert manifest.counts == expected.counts != built.counts
    assert manifest.content_sha256 == expected.content_sha256 != built.content_sha256
    assert (manifest.excluded, manifest.config, manifest.fingerprint) == (
        built.excluded,
        built.config,
        built.fingerprint,
    )
    assert manifest.deleted == len(gone)
    loaded, wanted = SegmentDataset.load(tmp_path / "data"), SegmentDataset.load(tmp_path / "expected")
    assert loaded.manifest == manifest
    fields = wanted[0].__dataclass_fields__
    assert [all(same(getattr(row, name), getattr(other, name)) for name in fields)
            for row, other in zip(loaded, wanted, strict=True)] == [True] * len(wanted)  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "expected"]


def test_rows_are_counted_by_trajectory(attempts: list[Trajectory], renderer: Renderer, tmp_path: Path) -> None:
    BUILDERS["bc"](attempts, renderer, tmp_path / "data")
    counted = dict(rows_by_trajectory(tmp_path / "data").iter_rows())
    expected: dict[str, int] = {}
    for row in SegmentDataset.load(tmp_path / "data"):
        expected[row.trajectory_id] = expected.get(row.trajectory_id, 0) + 1
    assert counted == expected
    assert max(counted.values()) > 1


def test_files_that_are_no_part_of_it_and_its_lineage_stay(
    attempts: list[Trajectory], renderer: Renderer, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    built = BUILDERS["bc"](attempts, renderer, data)
    lineage = StoreReference("id", "/somewhere/store", "../store")
    write_manifest(data, msgspec.structs.replace(built, lineage=lineage))
    (data / "notes.txt").write_text("mine")
    (data / "cache").mkdir()
    (data / "cache/features.bin").write_text("mine too")
    first = remove_trajectories(data, [attempts[0].trajectory_id])
    second = remove_trajectories(data, [attempts[1].trajectory_id])
    assert (first.deleted, second.deleted, second.lineage) == (1, 2, lineage)
    assert (data / "notes.txt").read_text() == "mine"
    assert (data / "cache/features.bin").read_text() == "mine too"


def test_a_dataset_of_which_nothing_is_left_can_be_read(
    attempts: list[Trajectory], renderer: Renderer, tmp_path: Path
) -> None:
    for kind, build in BUILDERS.items():
        build(attempts, renderer, tmp_path / kind)
        manifest = remove_trajectories(tmp_path / kind, [attempt.trajectory_id for attempt in attempts])
        assert manifest.counts == dict.fromkeys(("rows", "trajectories", "steps", "tokens", "action_tokens"), 0)
        assert list(SegmentDataset.load(tmp_path / kind)) == []
        assert rows_by_trajectory(tmp_path / kind).height == 0


def test_a_failure_leaves_the_dataset_as_it_was(
    attempts: list[Trajectory], renderer: Renderer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    BUILDERS["bc"](attempts, renderer, tmp_path / "data")
    before = {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()}

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("offline_arl.datasets.deletion.write_manifest", full)
    with pytest.raises(OSError, match="No space left"):
        remove_trajectories(tmp_path / "data", [attempts[0].trajectory_id])
    assert {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()} == before
    assert os.listdir(tmp_path) == ["data"]


def test_what_is_no_dataset_or_damaged_is_named(attempts: list[Trajectory], renderer: Renderer, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is not a dataset folder"):
        remove_trajectories(tmp_path, ["a"])
    BUILDERS["bc"](attempts, renderer, tmp_path / "data")
    part = tmp_path / "data/part-00000.parquet"
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"part-00000.parquet: cannot be read"):
        remove_trajectories(tmp_path / "data", ["a"])
    with pytest.raises(DataError, match="cannot read the dataset"):
        rows_by_trajectory(tmp_path / "data")
