"""Dataset folders as others read them: Hugging Face datasets, the card, rows mapped from the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml
from toys import toy_dataset, toy_rows

from offline_arl.datasets import segments
from offline_arl.datasets.bc import BCConfig, build_bc
from offline_arl.datasets.deletion import remove_trajectories
from offline_arl.datasets.return_conditioned import ReturnConditionedConfig, build_return_conditioned
from offline_arl.datasets.return_conditioning import ConditioningConfig, fit_conditioning
from offline_arl.datasets.segments import SegmentDataset, SegmentRow
from offline_arl.datasets.transitions import TransitionsConfig, build_transitions
from offline_arl.errors import DataError
from offline_arl.rendering import Renderer
from offline_arl.rewards.components import RewardConfig
from offline_arl.trajectories.schema import Trajectory

TOKENS = {
    "trajectory_id": "string", "task_id": "string", "task_type": "string", "success": "bool", "segment": "int32",
    "token_ids": ["int32"], "action_mask": ["bool"], "step_index": ["int32"], "logprobs": ["float32"],
}  # fmt: skip
STEPS = {"n_steps": "int32", "steps": ["int32"]}
COLUMNS = {
    "bc": TOKENS,
    "transitions": {
        **TOKENS, **STEPS, "rewards": ["float32"], "terminated": ["bool"], "truncated": ["bool"], "final_state": "bool",
    },
    "return_conditioned": {**TOKENS, **STEPS, "reward_to_go": ["float32"]},
}  # fmt: skip


def _build(kind: str, trajectories: list[Trajectory], renderer: Renderer, folder: Path) -> SegmentDataset:
    if kind == "bc":
        build_bc(trajectories, renderer, folder, config=BCConfig())
    elif kind == "transitions":
        build_transitions(trajectories, renderer, folder, config=TransitionsConfig())
    else:
        fitted = fit_conditioning(trajectories, rewards=RewardConfig(), config=ConditioningConfig())
        config = ReturnConditionedConfig(return_conditioning=fitted)
        build_return_conditioned(trajectories, renderer, folder, config=config)
    return SegmentDataset.load(folder)


def _plain(row: SegmentRow, names: Any) -> dict[str, Any]:
    values = {name: getattr(row, name) for name in names}
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}


@pytest.mark.parametrize("kind", COLUMNS)
def test_hugging_face_datasets_reads_a_folder_with_stable_features(
    kind: str, attempts: list[Trajectory], renderer: Renderer, tmp_path: Path
) -> None:
    datasets = pytest.importorskip("datasets")
    rows = _build(kind, attempts[:6], renderer, tmp_path / "data")
    expected = {
        name: datasets.LargeList(datasets.Value(value[0])) if isinstance(value, list) else datasets.Value(value)
        for name, value in COLUMNS[kind].items()
    }
    whole = datasets.load_dataset(str(tmp_path / "data"), split="train", cache_dir=str(tmp_path / "cache"))
    parts = datasets.load_dataset(
        "parquet", data_files=str(tmp_path / "data/part-*.parquet"), split="train", cache_dir=str(tmp_path / "cache")
    )
    streamed = datasets.load_dataset(str(tmp_path / "data"), split="train", streaming=True)
    assert whole.features == parts.features == streamed.features == expected
    assert list(streamed) == list(whole) == list(parts) == [_plain(row, COLUMNS[kind]) for row in rows]


def test_columns_without_any_value_keep_their_type(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    row = toy_rows(1)[0]
    unknown = SegmentRow(
        "t", None, None, None, 0, token_ids=row.token_ids, action_mask=row.action_mask, step_index=row.step_index
    )
    toy_dataset(tmp_path / "data", [unknown])
    features = datasets.load_dataset(str(tmp_path / "data"), split="train", cache_dir=str(tmp_path / "cache")).features
    assert features["success"] == datasets.Value("bool")
    assert features["logprobs"] == datasets.LargeList(datasets.Value("float32"))
    assert features["task_id"] == datasets.Value("string")


def test_the_card_has_the_numbers_and_says_nothing_of_the_logs(
    attempts: list[Trajectory], renderer: Renderer, tmp_path: Path
) -> None:
    dataset = _build("transitions", attempts[:6], renderer, tmp_path / "data")
    _, front, body = (tmp_path / "data/README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(front)["configs"] == [{"config_name": "default", "data_files": "part-*.parquet"}]
    for name in ("rows", "tokens", "action_tokens"):
        assert f"| {name} | {dataset.manifest.counts[name]:,} |" in body
    assert all(f"| `{name}` |" in body for name in COLUMNS["transitions"])
    assert dataset.manifest.fingerprint in body
    assert not any(trajectory.trajectory_id in body for trajectory in attempts)
    remove_trajectories(tmp_path / "data", [attempts[0].trajectory_id])
    left = SegmentDataset.load(tmp_path / "data").manifest.counts["tokens"]
    assert f"| tokens | {left:,} |" in (tmp_path / "data/README.md").read_text()


@pytest.mark.parametrize("kind", COLUMNS)
def test_mapped_rows_are_those_in_memory(
    kind: str, attempts: list[Trajectory], renderer: Renderer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over several groups of rows and several parts, forwards and from the end."""
    monkeypatch.setattr(segments, "ROWS_PER_GROUP", 2)
    monkeypatch.setattr(segments, "ROWS_PER_PART", 5)
    memory = _build(kind, attempts[:12], renderer, tmp_path / "data")
    assert len(list((tmp_path / "data").glob("part-*.parquet"))) > 1
    mapped = SegmentDataset.load(tmp_path / "data", memory_map=True)
    assert mapped.lengths.tolist() == memory.lengths.tolist()
    assert mapped.largest_token() == memory.largest_token() == max(int(row.token_ids.max()) for row in memory)
    assert mapped.column("task_id") == memory.column("task_id")
    names = COLUMNS[kind]
    assert [_plain(row, names) for row in mapped] == [_plain(row, names) for row in memory]
    assert _plain(mapped[-1], names) == _plain(memory[-1], names)
    for one, other in zip(mapped, memory, strict=True):
        for name in names:
            if isinstance(getattr(other, name), np.ndarray):
                assert getattr(one, name).dtype == getattr(other, name).dtype


def test_a_mapped_dataset_takes_no_memory_for_its_rows(tmp_path: Path) -> None:
    rows = toy_rows(3_000, prefix=200)
    toy_dataset(tmp_path / "data", rows)
    SegmentDataset.load(tmp_path / "data", memory_map=True)  # makes the copy
    before = pa.total_allocated_bytes()
    mapped = SegmentDataset.load(tmp_path / "data", memory_map=True)
    assert pa.total_allocated_bytes() - before < 100_000
    size = 9 * sum(map(len, rows))
    memory = SegmentDataset.load(tmp_path / "data")
    assert sum(row.token_ids.nbytes + row.step_index.nbytes + row.action_mask.nbytes for row in memory) == size
    assert pa.total_allocated_bytes() - before > 0.5 * size
    assert len(mapped) == len(memory)


def test_large_datasets_are_mapped_without_being_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy_dataset(tmp_path / "data", toy_rows(4))
    assert not (tmp_path / "data/.mapped").exists()
    monkeypatch.setattr(segments, "TOKENS_TO_MAP", 10)
    SegmentDataset.load(tmp_path / "data")
    assert (tmp_path / "data/.mapped").is_dir()


def test_deletion_reaches_the_mapped_copy(tmp_path: Path) -> None:
    toy_dataset(tmp_path / "data", toy_rows(6))
    SegmentDataset.load(tmp_path / "data", memory_map=True)
    (tmp_path / "data/notes.txt").write_text("mine")
    remove_trajectories(tmp_path / "data", ["t2"])
    assert {path.name for path in (tmp_path / "data").iterdir()} == {
        "README.md", "manifest.json", "notes.txt", "part-00000.parquet",
    }  # fmt: skip
    assert "t2" not in SegmentDataset.load(tmp_path / "data", memory_map=True).column("trajectory_id")


def test_a_copy_of_other_content_is_replaced_and_a_damaged_one_is_told(tmp_path: Path) -> None:
    toy_dataset(tmp_path / "data", toy_rows(6))
    SegmentDataset.load(tmp_path / "data", memory_map=True)
    (first,) = (tmp_path / "data/.mapped").iterdir()
    toy_dataset(tmp_path / "other", toy_rows(9))
    for name in ("manifest.json", "part-00000.parquet"):
        (tmp_path / "data" / name).write_bytes((tmp_path / "other" / name).read_bytes())
    assert len(SegmentDataset.load(tmp_path / "data", memory_map=True)) == 9
    (second,) = (tmp_path / "data/.mapped").iterdir()
    assert second != first
    second.write_bytes(b"ARROW1 not really")
    with pytest.raises(DataError, match="cannot read the dataset"):
        SegmentDataset.load(tmp_path / "data", memory_map=True)
