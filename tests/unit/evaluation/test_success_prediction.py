"""Cross-validated prediction of success: folds, decisions, planted signals, intervals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from toys import toy_dataset
from toys.transitions import features_of, transition_row

from offline_arl.datasets.segments import SegmentDataset
from offline_arl.errors import DataError
from offline_arl.evaluation.success_prediction import (
    Attempts,
    auc_estimates,
    auc_within,
    grouped_folds,
    probe_inputs,
    regression_scores,
    surface_inputs,
    value_scores,
)
from offline_arl.models.features import StepFeatures
from offline_arl.trainers.config import BehaviorValuesConfig, IQLConfig
from offline_arl.trainers.value_quality import auc

TASKS, TRIES, STEPS = 20, 3, 4
QUICK = {"steps": 150, "batch_size": 64, "hidden_size": 16, "learning_rate": 5e-3, "target_update_rate": 0.1}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[StepFeatures, SegmentDataset]:
    """Success is a coin for each attempt, and visible in the first feature from the third of four steps on."""
    generator = np.random.default_rng(0)
    rows = []
    for task in range(TASKS):
        for attempt in range(TRIES):
            success = bool(generator.random() < 0.5)
            rewards = [0.0] * (STEPS - 1) + [float(success)]
            row = transition_row(
                f"{task}-{attempt}", STEPS, ending="terminated", task=f"task {task}", rewards=rewards, seed=len(rows)
            )
            rows.append(replace(row, success=success))
    features = features_of(rows)
    states, actions = features.states.clone(), features.actions.clone()
    succeeded = {row.trajectory_id: row.success for row in rows}
    for at, name in enumerate(features.trajectory_ids):
        if int(features.steps[at]) >= 2:
            states[at, 0] = actions[at, 0] = 3.0 if succeeded[name] else -3.0
    dataset = toy_dataset(tmp_path_factory.mktemp("data") / "data", rows, kind="transitions")
    return replace(features, states=states, actions=actions), dataset


def test_folds_keep_tasks_whole_and_cover_everything() -> None:
    tasks = np.array([f"task {number % 11}" for number in range(40)])
    folds = grouped_folds(tasks, 4, np.random.default_rng(0))
    assert sorted(np.concatenate(folds).tolist()) == list(range(40))
    of_task = [{number for number, fold in enumerate(folds) if task in tasks[fold]} for task in set(tasks)]
    assert all(len(found) == 1 for found in of_task)
    sizes = [len(set(tasks[fold])) for fold in folds]
    assert max(sizes) - min(sizes) <= 1
    other = grouped_folds(tasks, 4, np.random.default_rng(1))
    assert any(not np.array_equal(one, two) for one, two in zip(folds, other, strict=True))


def test_one_task_cannot_be_split() -> None:
    with pytest.raises(DataError, match="1 tasks cannot be split into 2 folds"):
        grouped_folds(np.array(["a", "a"]), 2, np.random.default_rng(0))


def test_the_decision_at_a_share_of_an_attempt(data: tuple[StepFeatures, SegmentDataset]) -> None:
    """Of 4 steps the first quarter is 1 action, a half 2, and even 1 % is one."""
    attempts = Attempts.of(*data)
    rows = data[0].row_of()
    name = attempts.trajectory_ids[5]
    for fraction, step in ((0.01, 0), (0.25, 0), (0.26, 1), (0.5, 1), (0.75, 2), (1.0, 3)):
        assert attempts.decision(5, fraction) == (step, rows[name, step])


def test_a_step_outside_the_dataset_gives_way_to_the_one_before() -> None:
    attempts = Attempts(["a", "b"], np.array(["a", "b"]), np.array([True, False]), [{1: 7, 3: 8}, {0: 9}], [4, 1])
    assert attempts.decision(0, 0.25) == (1, 7)
    assert attempts.decision(0, 0.75) == (1, 7)
    assert attempts.decision(0, 1.0) == (3, 8)


def test_attempts_that_all_ended_alike_are_refused(tmp_path: Path) -> None:
    rows = [transition_row(f"a{number}", 2, ending="terminated") for number in range(3)]
    with pytest.raises(DataError, match="3 attempts have a verdict and all the same one"):
        Attempts.of(features_of(rows), toy_dataset(tmp_path / "data", rows, kind="transitions"))


@pytest.mark.parametrize("predictor", ["iql", "behavior", "probe"])
def test_a_planted_signal_is_found_when_it_is_there_and_not_before(
    predictor: str, data: tuple[StepFeatures, SegmentDataset]
) -> None:
    features, dataset = data
    attempts = Attempts.of(features, dataset)
    folds = grouped_folds(attempts.tasks, 4, np.random.default_rng(0))
    fractions = (0.5, 0.75)
    if predictor == "probe":
        inputs = probe_inputs(attempts, features, fractions)
        scores = regression_scores(inputs, attempts, folds, generator=np.random.default_rng(0))
    else:
        config = IQLConfig(**QUICK) if predictor == "iql" else BehaviorValuesConfig(**QUICK)
        scores = value_scores(features, dataset, attempts, folds, config, fractions=fractions, seed=0)
    assert not np.isnan(scores).any()
    areas, _ = auc_estimates(
        {predictor: scores}, attempts, folds, reference=predictor, generator=np.random.default_rng(0), resamples=100
    )
    before, after = areas[predictor]
    assert before.low < 0.5 < before.high
    assert after.estimate > 0.95


def test_scores_come_from_other_tasks_alone(data: tuple[StepFeatures, SegmentDataset]) -> None:
    """An attempt's own verdict does not move its score: turned over for one task, only the others' scores change."""
    features, dataset = data
    attempts = Attempts.of(features, dataset)
    folds = grouped_folds(attempts.tasks, 4, np.random.default_rng(0))
    inputs = probe_inputs(attempts, features, (1.0,))
    turned = attempts.success.copy()
    turned[folds[0]] = ~turned[folds[0]]
    scores = [
        regression_scores(inputs, replace(attempts, success=success), folds, generator=np.random.default_rng(0))[:, 0]
        for success in (attempts.success, turned)
    ]
    assert np.array_equal(scores[0][folds[0]], scores[1][folds[0]])
    assert not np.array_equal(scores[0][folds[1]], scores[1][folds[1]])


def test_counts_are_regressed_by_name() -> None:
    """The second half of the tasks calls a tool that no training fold may know: unknown names are passed over."""
    generator = np.random.default_rng(0)
    success = generator.random(40) < 0.5
    tasks = np.array([f"task {number // 2}" for number in range(40)])
    attempts = Attempts([str(n) for n in range(40)], tasks, success, [{0: n} for n in range(40)], [1] * 40)
    counts = [
        {"errors": 1.0 - float(good) + 0.1 * generator.random(), f"calls of {number}": 1.0}
        for number, good in enumerate(success)
    ]
    folds = grouped_folds(tasks, 4, generator)
    scores = regression_scores([counts], attempts, folds, generator=generator)
    assert auc_within(scores[:, 0], success, _fold_of(folds)) > 0.95


def test_noise_is_at_chance_and_not_below_it() -> None:
    """Across folds the scores of a predictor without any signal follow the rate of success of the other folds, and
    the area over all of them together lies below a half (0.40 on average here).
    """
    within, together = [], []
    for seed in range(12):
        generator = np.random.default_rng(seed)
        tasks = np.array([f"task {number // 3}" for number in range(60)])
        success = generator.random(60) < 0.5
        attempts = Attempts([str(n) for n in range(60)], tasks, success, [{0: n} for n in range(60)], [1] * 60)
        folds = grouped_folds(tasks, 4, generator)
        noise = generator.normal(size=(60, 2)).astype(np.float32)
        scores = regression_scores([noise], attempts, folds, generator=generator)[:, 0]
        within.append(auc_within(scores, success, _fold_of(folds)))
        together.append(auc(scores, success))
    assert abs(np.mean(within) - 0.5) < 0.07
    assert np.mean(together) < np.mean(within) - 0.03


def _fold_of(folds: list[np.ndarray]) -> np.ndarray:
    return np.array([number for at in range(sum(map(len, folds))) for number, fold in enumerate(folds) if at in fold])


def test_attempts_that_are_not_in_the_store_are_an_error(data: tuple[StepFeatures, SegmentDataset]) -> None:
    with pytest.raises(DataError, match=r"trajectory 0-0 is not in the store"):
        surface_inputs(Attempts.of(*data), {}, (1.0,))


def test_gains_are_paired_over_tasks() -> None:
    """Two predictors that agree but for noise: the interval of the difference is far narrower than those of both."""
    generator = np.random.default_rng(0)
    success = generator.random(300) < 0.5
    tasks = np.array([f"task {number // 3}" for number in range(300)])
    attempts = Attempts([str(n) for n in range(300)], tasks, success, [{0: n} for n in range(300)], [1] * 300)
    common = success + generator.normal(size=300)
    scores = {"a": common[:, None], "b": (common + 0.01 * generator.normal(size=300))[:, None]}
    whole = [np.arange(300)]
    areas, gains = auc_estimates(scores, attempts, whole, reference="b", generator=generator, resamples=200)
    assert areas["a"][0].estimate == auc(common, success)
    assert list(gains) == ["a"]
    (gain,) = gains["a"]
    assert gain.low < 0 < gain.high
    assert gain.high - gain.low < 0.1 * (areas["a"][0].high - areas["a"][0].low)
    assert gain.n == 300


def test_features_stay_where_they_are(data: tuple[StepFeatures, SegmentDataset]) -> None:
    """The probe reads state and action of the decision, side by side."""
    features, dataset = data
    attempts = Attempts.of(features, dataset)
    (matrix,) = probe_inputs(attempts, features, (1.0,))
    row = attempts.decision(7, 1.0)[1]
    assert np.array_equal(matrix[7], torch.cat([features.states[row], features.actions[row]]).numpy())
