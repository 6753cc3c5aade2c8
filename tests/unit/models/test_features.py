"""Features of steps against one forward pass a step, and their cache."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from toys import ToyTokenizer, toy_dataset, toy_model, toy_rows

from offline_arl.datasets.collate import collate_segments
from offline_arl.datasets.segments import SegmentRow
from offline_arl.errors import DataError
from offline_arl.models.config import FeatureConfig
from offline_arl.models.feature_cache import load_features, load_manifest
from offline_arl.models.features import step_features
from offline_arl.trainers.step_features import compute_features


def _one_pass_a_step(model: torch.nn.Module, row: SegmentRow, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """State and action feature of a step from prefixes of the trajectory, the obvious way."""
    positions = np.flatnonzero(row.step_index == step)
    ids = torch.tensor(row.token_ids[None].astype(np.int64))
    before = model(ids[:, : positions[0]], output_hidden_states=True).hidden_states[-1][0, -1]
    through = model(ids[:, : positions[-1] + 1], output_hidden_states=True).hidden_states[-1][0]
    return before, torch.cat([through[-1], through[positions].mean(dim=0)])


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma2"])
def test_features_of_one_pass_a_trajectory_equal_one_pass_a_step(architecture: str) -> None:
    model, rows = toy_model(architecture), toy_rows(6)
    with torch.inference_mode():
        features, _ = step_features(model, rows, collate_segments(rows, pad_token_id=0), layers=(-1,))
        assert len(features) == sum(len(np.unique(row.step_index[row.action_mask])) for row in rows)
        for name, step, at in ((*key, place) for key, place in features.row_of().items()):
            row = next(row for row in rows if row.trajectory_id == name)
            state, action = _one_pass_a_step(model, row, step)
            torch.testing.assert_close(features.states[at], state, atol=2e-5, rtol=2e-5)
            torch.testing.assert_close(features.actions[at], action, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("window", [1, 3, 1000])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_a_window_is_the_mean_over_the_tokens_before_the_action(architecture: str, window: int) -> None:
    """Also where it reaches into what all rows share, or is longer than what is there."""
    model, rows = toy_model(architecture), toy_rows(6)
    batch = collate_segments(rows, pad_token_id=0)
    assert batch.shared_prefix >= 8
    with torch.inference_mode():
        plain, _ = step_features(model, rows, batch, layers=(-1, 0))
        features, _ = step_features(model, rows, batch, layers=(-1, 0), state_window=window)
        torch.testing.assert_close(features.actions, plain.actions, atol=2e-5, rtol=2e-5)
        for (name, step), at in features.row_of().items():
            row = next(row for row in rows if row.trajectory_id == name)
            first = int(np.flatnonzero(row.step_index == step)[0])
            ids = torch.tensor(row.token_ids[None, :first].astype(np.int64))
            states = model(ids, output_hidden_states=True).hidden_states
            both = torch.cat([states[-1][0], states[0][0]], dim=-1)
            expected = torch.cat([both[-1], both[-window:].mean(dim=0)])
            torch.testing.assert_close(features.states[at], expected, atol=2e-5, rtol=2e-5)


def test_the_state_after_the_last_step_is_at_the_last_token() -> None:
    model, row = toy_model(), toy_rows(1)[0]
    tokens = np.append(row.token_ids, np.array([3, 4], dtype=np.int32))
    steps = int(row.step_index.max()) + 1
    row = replace(
        row,
        token_ids=tokens,
        step_index=np.append(row.step_index, np.array([-1, -1], dtype=np.int32)),
        action_mask=np.append(row.action_mask, [False, False]),
        n_steps=steps,
        final_state=True,
    )
    with torch.inference_mode():
        features, _ = step_features(model, [row], collate_segments([row], pad_token_id=0), layers=(-1,))
        expected = model(torch.tensor(tokens[None].astype(np.int64)), output_hidden_states=True).hidden_states[-1][
            0, -1
        ]
    at = features.row_of()[row.trajectory_id, steps]
    torch.testing.assert_close(features.states[at], expected, atol=2e-5, rtol=2e-5)
    assert features.has_action.tolist() == [True] * steps + [False]
    assert (features.actions[at] == 0).all()


def test_a_segment_that_starts_with_an_action_is_an_error() -> None:
    row = toy_rows(1)[0]
    row = replace(row, token_ids=row.token_ids[-1:], step_index=row.step_index[-1:], action_mask=row.action_mask[-1:])
    with pytest.raises(DataError, match="trajectory t0: a segment starts with an action"):
        step_features(toy_model(), [row], collate_segments([row], pad_token_id=0), layers=(-1,))


@pytest.mark.parametrize("window", [0, 4])
def test_batches_change_nothing(tmp_path: Path, window: int) -> None:
    model, dataset = toy_model(), toy_dataset(tmp_path / "data", toy_rows(20))
    config = FeatureConfig(layers=(0, -1), state_window=window)
    whole = compute_features(model, ToyTokenizer(), dataset, tmp_path / "a", config=config)
    config = FeatureConfig(layers=(0, -1), state_window=window, tokens_per_batch=64)
    parts = compute_features(model, ToyTokenizer(), dataset, tmp_path / "b", config=config)
    order = [parts.row_of()[key] for key in whole.row_of()]
    torch.testing.assert_close(parts.states[order], whole.states)
    torch.testing.assert_close(parts.actions[order], whole.actions)


def test_another_window_is_another_cache(tmp_path: Path) -> None:
    model, dataset = toy_model(), toy_dataset(tmp_path / "data", toy_rows(4))
    made = [
        compute_features(model, ToyTokenizer(), dataset, tmp_path / "cache", config=FeatureConfig(state_window=window))
        for window in (0, 2, 3)
    ]
    assert made[1].states.shape[1] == 2 * made[0].states.shape[1]
    assert not torch.equal(made[1].states, made[2].states)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 0.0), ("float16", 1e-3), ("bfloat16", 1e-2)])
def test_a_cache_holds_what_one_pass_gives(dtype: str, tolerance: float, tmp_path: Path) -> None:
    model, rows = toy_model(), toy_rows(6)
    dataset = toy_dataset(tmp_path / "data", rows)
    config = FeatureConfig(dtype=dtype)
    compute_features(model, ToyTokenizer(), dataset, tmp_path / "cache", config=config)
    loaded = load_features(tmp_path / "cache")
    with torch.inference_mode():
        order = sorted(range(len(rows)), key=lambda at: len(rows[at]))
        by_length = [rows[at] for at in order]
        expected, _ = step_features(model, by_length, collate_segments(by_length, pad_token_id=0), layers=(-1,))
    assert loaded.states.dtype == getattr(torch, dtype)
    assert loaded.row_of() == expected.row_of()
    torch.testing.assert_close(loaded.states.float(), expected.states, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(loaded.actions.float(), expected.actions, atol=tolerance, rtol=tolerance)


def test_every_token_is_computed_once(tmp_path: Path) -> None:
    """Three rows share a prefix of 10 tokens that are computed for one row alone: 10 + 3 * (longest - 10)."""
    rows = toy_rows(3)
    dataset = toy_dataset(tmp_path / "data", rows)
    compute_features(toy_model(), ToyTokenizer(), dataset, tmp_path / "cache", config=FeatureConfig())
    batch = collate_segments(rows, pad_token_id=0)
    assert batch.shared_prefix >= 8
    manifest = load_manifest(tmp_path / "cache")
    assert manifest is not None
    assert manifest.tokens == batch.shared_prefix + 3 * (max(map(len, rows)) - batch.shared_prefix)


def test_the_state_after_an_action_is_the_one_at_its_last_token(tmp_path: Path) -> None:
    model, rows = toy_model(), toy_rows(4)
    dataset = toy_dataset(tmp_path / "data", rows)
    features = compute_features(model, ToyTokenizer(), dataset, tmp_path / "cache", config=FeatureConfig())
    for (name, step), at in features.row_of().items():
        row = next(row for row in rows if row.trajectory_id == name)
        _, action = _one_pass_a_step(model, row, step)
        after = features.states_after(torch.tensor([at]))[0]
        torch.testing.assert_close(after, action[: len(after)], atol=2e-5, rtol=2e-5)


def test_features_are_read_from_the_file_when_they_are_used(tmp_path: Path) -> None:
    """What is written into the file after loading is what a row gives: nothing was copied into memory."""
    dataset = toy_dataset(tmp_path / "data", toy_rows(4))
    features = compute_features(toy_model(), ToyTokenizer(), dataset, tmp_path / "cache", config=FeatureConfig())
    path = tmp_path / "cache" / "states.safetensors"
    with path.open("r+b") as file:
        file.seek(-4 * features.states.shape[1], 2)
        file.write(np.full(features.states.shape[1], 7, dtype=np.float32).tobytes())
    assert (features.states[-1] == 7).all()


def test_a_cache_is_reused_for_the_same_model_and_data_only(tmp_path: Path) -> None:
    model, dataset = toy_model(), toy_dataset(tmp_path / "data", toy_rows(4))
    config = FeatureConfig()
    compute_features(model, ToyTokenizer(), dataset, tmp_path / "cache", config=config)
    shard = tmp_path / "cache" / "states.safetensors"
    written = shard.stat().st_mtime_ns
    compute_features(model, ToyTokenizer(), dataset, tmp_path / "cache", config=config)
    assert shard.stat().st_mtime_ns == written
    other = compute_features(toy_model(seed=1), ToyTokenizer(), dataset, tmp_path / "cache", config=config)
    fresh = compute_features(toy_model(seed=1), ToyTokenizer(), dataset, tmp_path / "fresh", config=config)
    assert torch.equal(other.states, fresh.states)


def test_training_mode_and_gradients_are_left_alone(tmp_path: Path) -> None:
    model, dataset = toy_model().train(), toy_dataset(tmp_path / "data", toy_rows(4))
    features = compute_features(model, ToyTokenizer(), dataset, tmp_path / "cache", config=FeatureConfig())
    assert model.training
    assert not features.states.requires_grad
    assert not features.states.is_inference()


@pytest.mark.parametrize("damage", [b"short", b""])
def test_a_damaged_cache_is_a_one_line_error(damage: bytes, tmp_path: Path) -> None:
    dataset = toy_dataset(tmp_path / "data", toy_rows(4))
    compute_features(toy_model(), ToyTokenizer(), dataset, tmp_path / "cache", config=FeatureConfig())
    (tmp_path / "cache" / "states.safetensors").write_bytes(damage)
    with pytest.raises(DataError, match="compute the features again"):
        load_features(tmp_path / "cache")


def test_a_cache_whose_parts_do_not_fit_is_refused(tmp_path: Path) -> None:
    for name, count in (("a", 4), ("b", 7)):
        dataset = toy_dataset(tmp_path / f"data-{name}", toy_rows(count))
        compute_features(toy_model(), ToyTokenizer(), dataset, tmp_path / name, config=FeatureConfig())
    (tmp_path / "b" / "states.safetensors").replace(tmp_path / "a" / "states.safetensors")
    with pytest.raises(DataError, match="compute the features again"):
        load_features(tmp_path / "a")


def test_a_pass_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    row = toy_rows(1)[0]
    row = replace(row, token_ids=row.token_ids[-1:], step_index=row.step_index[-1:], action_mask=row.action_mask[-1:])
    dataset = toy_dataset(tmp_path / "data", [row])
    with pytest.raises(DataError, match="starts with an action"):
        compute_features(toy_model(), ToyTokenizer(), dataset, tmp_path / "cache", config=FeatureConfig())
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
