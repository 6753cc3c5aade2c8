"""Value heads on a feature cache against rerunning the frozen model, the whole offline stage, one pass a trajectory.

Run by `make bench`. Times are of the CPU, on one thread. The support desk's logs and the tiny policy, which is not
trained beforehand.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from toys import ToyTokenizer, toy_dataset, toy_model, toy_row
from toys.feature_memory import measure

from offline_arl import environments
from offline_arl.datasets.collate import collate_segments, length_sorted_batches
from offline_arl.datasets.segments import SegmentDataset
from offline_arl.models.config import FeatureConfig
from offline_arl.models.feature_cache import load_manifest
from offline_arl.models.features import StepFeatures, step_features
from offline_arl.models.policy import load_policy
from offline_arl.models.value_heads import HeadShape, ValueHeads
from offline_arl.rendering import Renderer
from offline_arl.trainers.config import IQLConfig
from offline_arl.trainers.step_features import compute_features
from offline_arl.trainers.transitions import TransitionTable, join_transitions
from offline_arl.trainers.value_learners import IQLLearner
from offline_arl.workflows.ingest import ingest
from offline_arl.workflows.single import build_from_store, run_stage

ATTEMPTS = 2_000
ATTEMPTS_PER_BATCH = 116  # about 256 transitions, the batch of the defaults
CONFIG = IQLConfig(truncation="terminal")


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Transitions of the support desk (`dataset`) and the tiny policy (`policy`)."""
    folder = tmp_path_factory.mktemp("desk")
    environments.load("support_desk").write_logs(folder / "logs.jsonl", ATTEMPTS, seed=0)
    ingest([folder / "logs.jsonl"], folder / "store")
    build_from_store(folder / "store", folder / "made", form="transitions")
    return folder / "made"


def _batches(dataset: SegmentDataset) -> Iterator[list[int]]:
    yield from np.array_split(np.arange(len(dataset)), len(dataset) // ATTEMPTS_PER_BATCH)


def _learner(features: StepFeatures, table: TransitionTable) -> IQLLearner:
    shape = HeadShape(state_size=features.states.shape[-1], action_size=features.actions.shape[-1])
    heads = ValueHeads(shape, generator=torch.Generator().manual_seed(0))
    heads.set_normalization(features.pieces(table.state_rows))
    return IQLLearner(heads, features, CONFIG)


def test_an_epoch_from_the_cache_is_fifty_times_faster_with_the_same_losses(desk: Path, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    dataset = SegmentDataset.load(desk / "dataset")
    model, tokenizer = load_policy(desk / "policy")
    features = compute_features(model, tokenizer, dataset, tmp_path / "cache", config=FeatureConfig())
    table = join_transitions(features, dataset, truncation=CONFIG.truncation, discount=CONFIG.discount)
    batches = list(_batches(dataset))
    attempts = torch.unique(table.trajectories)
    assert len(attempts) == len(dataset) == ATTEMPTS  # one segment an attempt, so batches of rows are batches of both

    cached = _learner(features, table)
    began = time.process_time()
    from_cache = []
    for batch in batches:
        losses = cached.update(table, _of_attempts(table, batch), CONFIG.learning_rate)
        from_cache.append([float(losses[name].detach()) for name in ("value_loss", "q_loss")])
    cache_s = time.process_time() - began

    rerun = _learner(features, table)
    rerun_s, from_model = 0.0, []
    for batch in batches:
        rows = [dataset[int(index)] for index in batch]
        padded = collate_segments(rows, pad_token_id=tokenizer.pad_token_id)
        began = time.process_time()
        with torch.no_grad():
            rerun.features, _ = step_features(model, rows, padded, layers=(-1,))
        rerun_s += time.process_time() - began
        part = _joined(rerun.features, table, features, batch)
        began = time.process_time()
        losses = rerun.update(part, torch.arange(len(part)), CONFIG.learning_rate)
        from_model.append([float(losses[name].detach()) for name in ("value_loss", "q_loss")])
        rerun_s += time.process_time() - began

    difference = np.abs(np.array(from_cache) - np.array(from_model)).max()
    print(
        f"\nepoch of {len(table)} transitions: {cache_s:.2f} s of CPU from the cache, {rerun_s:.2f} s with the model "
        f"({rerun_s / cache_s:.0f} times); losses differ by at most {difference:.1e}",
        end="",
    )
    assert difference < 1e-5
    assert rerun_s > 50 * cache_s


def _of_attempts(table: TransitionTable, rows: list[int]) -> torch.Tensor:
    return torch.nonzero((table.trajectories >= int(rows[0])) & (table.trajectories <= int(rows[-1]))).flatten()


def _joined(batch: StepFeatures, table: TransitionTable, features: StepFeatures, rows: list[int]) -> TransitionTable:
    """The transitions of some attempts, as rows of the features that were just computed for them."""
    part = table.select(
        torch.nonzero((table.trajectories >= int(rows[0])) & (table.trajectories <= int(rows[-1]))).flatten()
    )
    row_of = batch.row_of()

    def moved(old: torch.Tensor) -> torch.Tensor:
        keys = ((features.trajectory_ids[row], int(features.steps[row])) for row in old.tolist())
        return torch.tensor([row_of.get(key, 0) for key in keys])

    return replace(part, state_rows=moved(part.state_rows), next_rows=moved(part.next_rows))


def test_the_offline_stage_on_two_thousand_attempts_takes_under_two_minutes(desk: Path, tmp_path: Path) -> None:
    """Hidden states, value heads, and the extraction of a policy from them, with the quickstart's settings."""
    seconds = []
    inputs = {"dataset": desk, "policy": desk}
    settings = ("epochs=4", "tokens_per_batch=1024", "optimizer=muon", "learning_rate=2e-3")
    for algorithm, given, overrides in (
        ("iql_values", inputs, ("truncation=terminal",)),
        ("iql", {**inputs, "values": tmp_path / "iql_values"}, settings),
    ):
        began = time.process_time()
        raw = {"kind": "train", "algorithm": algorithm}
        run_stage(raw, given, tmp_path / algorithm, name=algorithm, overrides=overrides)
        seconds.append(time.process_time() - began)
    print(f"\n{ATTEMPTS} attempts: values {seconds[0]:.1f} s of CPU, extraction {seconds[1]:.1f} s", end="")
    assert sum(seconds) < 120


@pytest.mark.parametrize("steps", [4, 16])
def test_tokens_of_one_pass_against_a_row_a_step(steps: int, tmp_path: Path) -> None:
    """A trajectory of T steps costs its tokens once, not once for each of its prefixes: about T / 2 times fewer."""
    generator = np.random.default_rng(0)
    rows = [toy_row(f"t{number}", generator, prefix=1, steps=steps) for number in range(200)]
    dataset = toy_dataset(tmp_path / "data", rows)
    config = FeatureConfig(tokens_per_batch=1_024)
    compute_features(toy_model(), ToyTokenizer(), dataset, tmp_path / "cache", config=config)
    manifest = load_manifest(tmp_path / "cache")
    assert manifest is not None
    a_row_a_step = _tokens_of_a_row_a_step(dataset)
    ratio = a_row_a_step / manifest.tokens
    print(
        f"\nT = {steps}: {manifest.tokens:,} tokens in one pass, {a_row_a_step:,} with a row a step: {ratio:.1f} times"
    )
    assert manifest.tokens < 1.1 * dataset.lengths.sum()
    assert ratio > 0.9 * steps / 2


def test_tokens_of_one_pass_over_the_desk(desk: Path, tmp_path: Path) -> None:
    dataset = SegmentDataset.load(desk / "dataset")
    model, tokenizer = load_policy(desk / "policy")
    assert Renderer(tokenizer).prefix_preserving
    compute_features(model, tokenizer, dataset, tmp_path / "cache", config=FeatureConfig())
    manifest = load_manifest(tmp_path / "cache")
    assert manifest is not None
    a_row_a_step = _tokens_of_a_row_a_step(dataset)
    steps = sum(len(row.steps) for row in dataset) / len(dataset)
    padded = sum(
        len(batch) * int(dataset.lengths[batch].max())
        for batch in length_sorted_batches(dataset.lengths, max_tokens=FeatureConfig().tokens_per_batch)
    )
    print(
        f"\nthe desk ({steps:.1f} steps an attempt): {manifest.tokens:,} tokens in one pass "
        f"({padded:,} without the shared prefix), {a_row_a_step:,} with a row a step: "
        f"{a_row_a_step / manifest.tokens:.1f} times",
        end="",
    )
    assert manifest.tokens < padded
    assert manifest.tokens < a_row_a_step


def _tokens_of_a_row_a_step(dataset: SegmentDataset) -> int:
    """Each step is a row of its own that holds all tokens up to the end of its action."""
    total = 0
    for row in dataset:
        ends = [np.flatnonzero(row.step_index == step)[-1] + 1 for step in np.unique(row.step_index[row.action_mask])]
        total += int(np.sum(ends))
    return total


def test_features_may_be_larger_than_memory(tmp_path: Path) -> None:
    """What the process takes for itself does not grow with the features: they stay on disk, mapped."""
    small = measure(str(tmp_path), attempts=1_000, size=768)
    (tmp_path / "large").mkdir()
    large = measure(str(tmp_path / "large"), attempts=25_000, size=768)
    print(
        f"\nfeatures {small.features:,.0f} and {large.features:,.0f} MiB: fitting heads takes "
        f"{small.process:,.0f} and {large.process:,.0f} MiB",
        end="",
    )
    assert large.features > 800
    assert large.process < 0.35 * large.features
