"""How well V tells attempts that will succeed."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given
from hypothesis import strategies as st
from toys.transitions import features_of, transition_row

from offline_arl.models.features import StepFeatures
from offline_arl.models.value_heads import HeadShape, ValueHeads
from offline_arl.trainers.value_quality import auc, value_quality


def _heads() -> ValueHeads:
    shape = HeadShape(state_size=4, action_size=4, hidden_size=8)
    return ValueHeads(shape, generator=torch.Generator().manual_seed(0))


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
