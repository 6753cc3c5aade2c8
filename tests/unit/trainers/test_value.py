"""Joining transitions with features, holding tasks out, advantages and the quality of V."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given
from hypothesis import strategies as st
from toys import toy_dataset, toy_row

from offline_arl.datasets.segments import SegmentDataset, SegmentRow
from offline_arl.errors import DataError, UsageError
from offline_arl.models.features import StepFeatures
from offline_arl.models.value_heads import HeadShape, ValueHeads
from offline_arl.trainers.config import IQLConfig
from offline_arl.trainers.extraction import advantages, awr_step_weights
from offline_arl.trainers.transitions import held_out_trajectories, join_transitions
from offline_arl.trainers.value import fit_values
from offline_arl.trainers.value_quality import auc, value_quality

QUICK = IQLConfig(steps=20, batch_size=8, hidden_size=8, holdout_fraction=0.0)


def transition_row(name: str, steps: int, *, ending: str, task: str = "task", final_state: bool = False) -> SegmentRow:
    """Rewards 1, 2, 3, ... so that every step can be told apart."""
    row = toy_row(name, np.random.default_rng(0), steps=steps)
    last = np.arange(steps) == steps - 1
    return dataclasses.replace(
        row,
        task_id=task,
        n_steps=steps,
        steps=np.arange(steps, dtype=np.int32),
        rewards=np.arange(1, steps + 1, dtype=np.float32),
        terminated=last & (ending == "terminated"),
        truncated=last & (ending == "truncated"),
        final_state=final_state,
    )


def features_of(rows: list[SegmentRow], *, seed: int = 0, size: int = 4) -> StepFeatures:
    """Random features for every step, and for the state after the last one where a row has it."""
    keys = [(row.trajectory_id, step) for row in rows for step in range(row.n_steps + row.final_state)]
    acts = [step < row.n_steps for row in rows for step in range(row.n_steps + row.final_state)]
    generator = torch.Generator().manual_seed(seed)
    return StepFeatures(
        trajectory_ids=[name for name, _ in keys],
        steps=torch.tensor([step for _, step in keys], dtype=torch.long),
        has_action=torch.tensor(acts, dtype=torch.bool),
        states=torch.randn(len(keys), size, generator=generator),
        actions=torch.randn(len(keys), size, generator=generator),
    )


def _joined(row: SegmentRow, tmp_path: Path, truncation: str = "bootstrap") -> dict[str, list[object]]:
    dataset = toy_dataset(tmp_path / "data", [row], kind="transitions")
    table = join_transitions(features_of([row]), dataset, truncation=truncation, discount=0.5)
    return {name: value.tolist() for name, value in vars(table).items()}


def test_the_next_state_of_a_step_is_the_state_of_the_next_step(tmp_path: Path) -> None:
    table = _joined(transition_row("a", 3, ending="terminated"), tmp_path)
    assert table["state_rows"] == [0, 1, 2]
    assert table["next_rows"][:2] == [1, 2]
    assert table["rewards"] == [1.0, 2.0, 3.0]
    assert table["terminated"] == [False, False, True]
    assert table["has_target"] == [True, True, True]


def test_a_truncated_step_bootstraps_from_the_state_after_it(tmp_path: Path) -> None:
    table = _joined(transition_row("a", 2, ending="truncated", final_state=True), tmp_path)
    assert table["next_rows"] == [1, 2]
    assert table["terminated"] == [False, False]
    assert table["has_target"] == [True, True]


def test_a_truncated_step_without_a_next_state_has_no_target(tmp_path: Path) -> None:
    table = _joined(transition_row("a", 2, ending="truncated"), tmp_path)
    assert table["terminated"] == [False, False]
    assert table["has_target"] == [True, False]


def test_truncation_can_count_as_the_end(tmp_path: Path) -> None:
    table = _joined(transition_row("a", 2, ending="truncated", final_state=True), tmp_path, truncation="terminal")
    assert table["terminated"] == [False, True]
    assert table["has_target"] == [True, True]


def test_a_step_without_features_is_an_error(tmp_path: Path) -> None:
    row = transition_row("a", 2, ending="terminated")
    dataset = toy_dataset(tmp_path / "data", [row], kind="transitions")
    with pytest.raises(DataError, match="trajectory a: step 0 has no features"):
        join_transitions(
            features_of([dataclasses.replace(row, trajectory_id="b")]), dataset, truncation="bootstrap", discount=0.5
        )


def test_a_cloning_dataset_has_no_transitions(tmp_path: Path) -> None:
    dataset = toy_dataset(tmp_path / "data", [toy_row("a", np.random.default_rng(0))])
    with pytest.raises(UsageError, match="kind bc, this needs transitions"):
        join_transitions(features_of([]), dataset, truncation="bootstrap", discount=0.5)


def _many(tmp_path: Path) -> tuple[list[SegmentRow], SegmentDataset]:
    rows = [
        transition_row(f"{task}-{attempt}", 2, ending="terminated", task=f"task {task}")
        for task in range(10)
        for attempt in range(3)
    ]
    return rows, toy_dataset(tmp_path / "data", rows, kind="transitions")


def test_whole_tasks_are_held_out(tmp_path: Path) -> None:
    _, dataset = _many(tmp_path)
    held_out = held_out_trajectories(dataset, 0.3, generator=torch.Generator().manual_seed(0))
    assert len(held_out) == 9
    assert len({name.split("-")[0] for name in held_out}) == 3
    other = held_out_trajectories(dataset, 0.3, generator=torch.Generator().manual_seed(1))
    assert other != held_out


def test_held_out_attempts_do_not_move_the_heads(tmp_path: Path) -> None:
    rows, dataset = _many(tmp_path)
    config = QUICK.model_copy(update={"holdout_fraction": 0.3})
    features = features_of(rows)
    first = fit_values(features, dataset, config, generator=torch.Generator().manual_seed(0))
    changed = features.states.clone()
    for at, name in enumerate(features.trajectory_ids):
        if name in first.held_out:
            changed[at] += 1.0
    moved = dataclasses.replace(features, states=changed)
    second = fit_values(moved, dataset, config, generator=torch.Generator().manual_seed(0))
    assert second.held_out == first.held_out
    for one, other in zip(first.heads.parameters(), second.heads.parameters(), strict=True):
        assert torch.equal(one, other)


def test_training_is_reproducible_and_leaves_the_random_state(tmp_path: Path) -> None:
    rows, dataset = _many(tmp_path)
    state = torch.random.get_rng_state()
    runs = [
        fit_values(features_of(rows), dataset, QUICK, generator=torch.Generator().manual_seed(s)) for s in (0, 0, 1)
    ]
    assert torch.equal(torch.random.get_rng_state(), state)
    values = [run.heads.v(features_of(rows).states) for run in runs]
    assert torch.equal(values[0], values[1])
    assert not torch.equal(values[0], values[2])


def test_diverged_heads_are_refused(tmp_path: Path) -> None:
    rows, dataset = _many(tmp_path)
    config = QUICK.model_copy(update={"learning_rate": 1e37, "steps": 30})
    with pytest.raises(DataError, match=r"training diverged: .* not finite"):
        fit_values(features_of(rows), dataset, config, generator=torch.Generator().manual_seed(0))


def test_holding_everything_out_is_an_error(tmp_path: Path) -> None:
    row = transition_row("a", 2, ending="terminated")
    dataset = toy_dataset(tmp_path / "data", [row], kind="transitions")
    with pytest.raises(DataError, match="every task is held out"):
        fit_values(
            features_of([row]),
            dataset,
            QUICK.model_copy(update={"holdout_fraction": 0.9}),
            generator=torch.Generator().manual_seed(0),
        )


def test_progress_is_reported_with_losses(tmp_path: Path) -> None:
    rows, dataset = _many(tmp_path)
    seen: list[tuple[int, set[str]]] = []
    fit_values(
        features_of(rows),
        dataset,
        QUICK.model_copy(update={"log_every": 10}),
        generator=torch.Generator().manual_seed(0),
        report=lambda update, losses: seen.append((update, set(losses))),
    )
    names = {"q_loss", "value_loss", "mean_q", "mean_v"}
    assert seen == [(10, names), (20, names)]


def _heads() -> ValueHeads:
    shape = HeadShape(state_size=4, action_size=4, hidden_size=8)
    return ValueHeads(shape, generator=torch.Generator().manual_seed(0))


def test_every_step_with_an_action_gets_an_advantage() -> None:
    rows = [transition_row("a", 2, ending="truncated", final_state=True), transition_row("b", 1, ending="terminated")]
    features, heads = features_of(rows), _heads()
    got = advantages(heads, features, rows_per_batch=2)
    assert list(got) == [("a", 0), ("a", 1), ("b", 0)]
    expected = (heads.q(features.states, features.actions).amin(0) - heads.v(features.states)).tolist()
    assert list(got.values()) == pytest.approx([expected[0], expected[1], expected[3]])


def test_step_weights_are_capped_exponentials() -> None:
    """exp(2 * 0.5) = e; exp(2 * 3) = 403 is capped at 20."""
    weights = awr_step_weights({("a", 0): 0.5, ("a", 1): 3.0}, inverse_temperature=2.0, max_weight=20.0)
    assert weights == {("a", 0): pytest.approx(2.7182818), ("a", 1): 20.0}


@given(
    values=st.lists(st.integers(0, 5), min_size=2, max_size=30),
    data=st.data(),
)
def test_auc_equals_scikit_learns(values: list[int], data: st.DataObject) -> None:
    labels = data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)))
    got = auc(np.array(values, dtype=np.float64), np.array(labels))
    if len(set(labels)) == 1:
        assert np.isnan(got)
    else:
        assert got == pytest.approx(sklearn.metrics.roc_auc_score(labels, values))


def _quality_data(count: int) -> tuple[StepFeatures, ValueHeads, dict[str, bool]]:
    """Attempts of 3 steps; success is decided by V of the middle step, the first step knows nothing."""
    rows = [transition_row(f"t{number}", 3, ending="terminated") for number in range(count)]
    features, heads = features_of(rows, seed=3), _heads()
    middle = heads.v(features.states[features.steps == 1])
    success = {row.trajectory_id: bool(value > middle.median()) for row, value in zip(rows, middle, strict=True)}
    return features, heads, success


def test_value_quality_reads_the_first_and_the_middle_step() -> None:
    features, heads, success = _quality_data(400)
    quality = value_quality(heads, features, success, generator=np.random.default_rng(0), resamples=200)
    assert quality.mid_trajectory.estimate == 1.0
    assert quality.mid_trajectory.n == 400
    assert quality.first_step.low < 0.5 < quality.first_step.high
    assert 0.02 < quality.first_step.high - quality.first_step.low < 0.2


def test_only_the_trajectories_asked_for_count() -> None:
    features, heads, success = _quality_data(50)
    chosen = dict(list(success.items())[:20])
    quality = value_quality(heads, features, chosen, generator=np.random.default_rng(0), resamples=20)
    assert quality.first_step.n == 20


def test_copies_within_a_task_do_not_narrow_the_interval() -> None:
    """Each attempt four times over: drawn by task the interval stays about as wide, drawn singly it halves."""
    features, heads, success = _quality_data(60)
    copies = [f"{name}/{copy}" for copy in range(4) for name in features.trajectory_ids]
    repeated = StepFeatures(
        copies,
        features.steps.repeat(4),
        features.has_action.repeat(4),
        features.states.repeat(4, 1),
        features.actions.repeat(4, 1),
    )
    outcomes = {name: success[name.split("/")[0]] for name in copies}
    tasks = {name: name.split("/")[0] for name in copies}

    def width(clusters: dict[str, str] | None) -> float:
        generator = np.random.default_rng(0)
        interval = value_quality(heads, repeated, outcomes, generator=generator, clusters=clusters).first_step
        return interval.high - interval.low

    single, clustered = width(None), width(tasks)
    assert 1.6 < clustered / single < 2.4


def test_one_outcome_only_has_no_auc() -> None:
    features, heads, success = _quality_data(5)
    everyone = dict.fromkeys(success, True)
    quality = value_quality(heads, features, everyone, generator=np.random.default_rng(0), resamples=10)
    assert np.isnan(quality.first_step.estimate)
    assert np.isnan(quality.first_step.low)
