"""The loop that fits values: what is held out, reproducibility, what is refused, progress."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import toy_dataset
from toys.transitions import features_of, transition_row

from offline_arl.datasets.segments import SegmentDataset, SegmentRow
from offline_arl.errors import DataError
from offline_arl.trainers.config import BehaviorValuesConfig, CQLConfig, IQLConfig
from offline_arl.trainers.value import fit_values

SETTINGS: dict[str, Any] = {"steps": 20, "batch_size": 8, "hidden_size": 8, "holdout_fraction": 0.0}
QUICK = IQLConfig(**SETTINGS)
ALGORITHMS = [
    QUICK,
    CQLConfig(**SETTINGS),
    CQLConfig(calibrated=True, **SETTINGS),
    BehaviorValuesConfig(**SETTINGS),
    BehaviorValuesConfig(trace_decay=0.9, refresh_every=3, **SETTINGS),
]
each_algorithm = pytest.mark.parametrize("config", ALGORITHMS, ids=["iql", "cql", "calql", "monte_carlo", "td_lambda"])
AnyConfig = IQLConfig | CQLConfig | BehaviorValuesConfig


def _many(tmp_path: Path) -> tuple[list[SegmentRow], SegmentDataset]:
    rows = [
        transition_row(f"{task}-{attempt}", 2, ending="terminated", task=f"task {task}")
        for task in range(10)
        for attempt in range(3)
    ]
    return rows, toy_dataset(tmp_path / "data", rows, kind="transitions")


@each_algorithm
def test_held_out_attempts_do_not_move_the_heads(config: AnyConfig, tmp_path: Path) -> None:
    rows, dataset = _many(tmp_path)
    config = config.model_copy(update={"holdout_fraction": 0.3})
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


@each_algorithm
def test_training_is_reproducible_and_leaves_the_random_state(config: AnyConfig, tmp_path: Path) -> None:
    rows, dataset = _many(tmp_path)
    state = torch.random.get_rng_state()
    runs = [
        fit_values(features_of(rows), dataset, config, generator=torch.Generator().manual_seed(s)) for s in (0, 0, 1)
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


def test_given_trajectories_are_held_out(tmp_path: Path) -> None:
    rows, dataset = _many(tmp_path)
    chosen = frozenset({"3-0", "3-1", "3-2"})
    config = QUICK.model_copy(update={"holdout_fraction": 0.9})
    result = fit_values(features_of(rows), dataset, config, generator=torch.Generator(), held_out=chosen)
    assert result.held_out == chosen
    assert result.diagnostics["transitions"] == 27 * 2


@each_algorithm
def test_without_a_hold_out_nothing_is_said_of_one(config: AnyConfig, tmp_path: Path) -> None:
    rows, dataset = _many(tmp_path)
    result = fit_values(features_of(rows), dataset, config, generator=torch.Generator())
    assert not result.held_out
    assert not any(name.startswith("held_out") for name in result.diagnostics)
    assert result.diagnostics["transitions"] == 60


@each_algorithm
def test_a_single_task_of_single_steps_is_enough(config: AnyConfig, tmp_path: Path) -> None:
    """Everything ends with the first step, so Q is the reward, whatever the algorithm: 1 here."""
    rows = [transition_row(f"a{number}", 1, ending="terminated", seed=number) for number in range(8)]
    dataset = toy_dataset(tmp_path / "data", rows, kind="transitions")
    features = features_of(rows)
    config = config.model_copy(update={"steps": 300, "learning_rate": 1e-2, "target_update_rate": 0.1})
    heads = fit_values(features, dataset, config, generator=torch.Generator().manual_seed(0)).heads
    torch.testing.assert_close(heads.q(features.states, features.actions), torch.ones(2, 8), atol=0.05, rtol=0)
    torch.testing.assert_close(heads.v(features.states), torch.ones(8), atol=0.05, rtol=0)


@each_algorithm
def test_features_of_half_precision_train_too(config: AnyConfig, tmp_path: Path) -> None:
    rows, dataset = _many(tmp_path)
    exact = features_of(rows)
    halved = dataclasses.replace(exact, states=exact.states.bfloat16(), actions=exact.actions.bfloat16())
    result = fit_values(halved, dataset, config, generator=torch.Generator().manual_seed(0))
    rounded = dataclasses.replace(halved, states=halved.states.float(), actions=halved.actions.float())
    same = fit_values(rounded, dataset, config, generator=torch.Generator().manual_seed(0))
    assert torch.equal(result.heads.v(halved.states), same.heads.v(rounded.states))
