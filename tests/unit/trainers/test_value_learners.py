"""The losses of each algorithm against the definitions, one transition at a time."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from toys import toy_dataset
from toys.transitions import features_of, transition_row

from offline_arl.datasets.segments import SegmentDataset, SegmentRow
from offline_arl.models.features import StepFeatures
from offline_arl.models.value_heads import HeadShape, ValueHeads
from offline_arl.trainers.candidates import Candidates, StateActions
from offline_arl.trainers.config import BehaviorValuesConfig, CQLConfig, IQLConfig
from offline_arl.trainers.transitions import TransitionTable, join_transitions
from offline_arl.trainers.value_learners import BehaviorLearner, CQLLearner, IQLLearner, ValueLearner, sum_of_losses

DISCOUNT = 0.5


def _rows() -> list[SegmentRow]:
    """Three attempts that begin in the same state: two with the same first action, which leads to the same state."""
    rows = []
    for name, actions, ending in (("a", (3, 4), "terminated"), ("b", (3, 6), "truncated"), ("c", (5, 4), "terminated")):
        tokens = np.array([2, actions[0], 7, actions[1]], dtype=np.int32)
        index = np.array([-1, 0, -1, 1], dtype=np.int32)
        row = transition_row(name, 2, ending=ending)
        rows.append(replace(row, token_ids=tokens, action_mask=index >= 0, step_index=index))
    return rows


@pytest.fixture
def data(tmp_path: Path) -> tuple[StepFeatures, SegmentDataset, TransitionTable]:
    rows = _rows()
    features = features_of(rows)
    # Equal tokens have equal features: the states and actions that attempts share.
    states, actions = features.states.clone(), features.actions.clone()
    states[2] = states[4] = states[0]
    states[3] = states[1]
    actions[2] = actions[0]
    features = replace(features, states=states, actions=actions)
    dataset = toy_dataset(tmp_path / "data", rows, kind="transitions")
    return features, dataset, join_transitions(features, dataset, truncation="bootstrap", discount=DISCOUNT)


def _heads(seed: int = 0) -> ValueHeads:
    return ValueHeads(
        HeadShape(state_size=4, action_size=4, hidden_size=8), generator=torch.Generator().manual_seed(seed)
    )


def _candidates(features: StepFeatures, dataset: SegmentDataset, table: TransitionTable) -> Candidates:
    return Candidates.of(StateActions.of((features, dataset)), table.state_rows, max_candidates=4)


def _moved_targets(learner: ValueLearner) -> None:
    """Targets of their own, so that a mix-up with the online critics shows."""
    learner.target.load_state_dict(_heads(seed=1).critics.state_dict())


def _q(learner: ValueLearner, state: int, action: int, *, target: bool) -> np.ndarray:
    critics = learner.target if target else learner.heads.critics
    with torch.no_grad():
        found: np.ndarray = critics(learner.q_inputs(torch.tensor([state]), torch.tensor([action])))[:, 0].numpy()
    return found


def _v(learner: ValueLearner, row: int) -> float:
    with torch.no_grad():
        return float(learner.v(torch.tensor([row]))[0])


ALL = torch.arange(6)
REWARDS = [1.0, 2.0] * 3
TERMINATED = [False, True, False, False, False, True]
HAS_TARGET = [True, True, True, False, True, True]  # step 1 of b was cut off and nothing followed
CANDIDATES = {0: [0, 4], 2: [2, 4], 4: [0, 4], 1: [1, 3], 3: [1, 3], 5: [5]}  # rows; a row's own action included


def test_members_of_an_ensemble_learn_as_if_they_were_alone(
    data: tuple[StepFeatures, SegmentDataset, TransitionTable],
) -> None:
    """The losses are the means of theirs, and five updates leave each where it comes to by itself.

    AdamW does not care for the scale of a gradient, so half of each loss moves a member as far as the whole.
    """
    features, _, table = data
    config = IQLConfig(expectile=0.8, discount=DISCOUNT, ensemble=2)
    shape = HeadShape(state_size=4, action_size=4, hidden_size=8, ensemble=2)
    together = IQLLearner(ValueHeads(shape, generator=torch.Generator().manual_seed(0)), features, config)
    alone = []
    for member in range(2):
        heads = _heads(seed=5)
        for ensemble, own, size in (
            (together.heads.critics, heads.critics, 2),
            (together.heads.value, heads.value, 1),
        ):
            for theirs, mine in zip(ensemble.parameters(), own.parameters(), strict=True):
                mine.data.copy_(theirs.data[member * size : (member + 1) * size])
        alone.append(IQLLearner(heads, features, config))
    for _ in range(5):
        losses = together.update(table, ALL, 0.01)
        each = [learner.update(table, ALL, 0.01) for learner in alone]
        for name in ("value_loss", "q_loss", "mean_q", "mean_v"):
            expected = np.mean([float(found[name].detach()) for found in each])
            assert float(losses[name].detach()) == pytest.approx(expected, rel=1e-4, abs=1e-6)
    states, actions = features.states[:4], features.actions[:4]
    expected_advantages = torch.stack([learner.final_heads().advantages(states, actions) for learner in alone])
    torch.testing.assert_close(
        together.final_heads().advantages(states, actions), expected_advantages.mean(dim=0), atol=1e-4, rtol=1e-3
    )


def test_iql_losses(data: tuple[StepFeatures, SegmentDataset, TransitionTable]) -> None:
    features, _, table = data
    learner = IQLLearner(_heads(), features, IQLConfig(expectile=0.8, discount=DISCOUNT))
    _moved_targets(learner)
    value_losses, q_losses = [], []
    for row in range(6):
        difference = _q(learner, row, row, target=True).min() - _v(learner, row)
        value_losses.append((0.8 if difference >= 0 else 0.2) * difference**2)
        if HAS_TARGET[row]:
            goal = REWARDS[row] + (0.0 if TERMINATED[row] else DISCOUNT * _v(learner, row + 1))
            q_losses.append(((_q(learner, row, row, target=False) - goal) ** 2).sum())
    losses = learner.losses(table, ALL)
    assert float(losses["value_loss"].detach()) == pytest.approx(np.mean(value_losses), rel=1e-5)
    assert float(losses["q_loss"].detach()) == pytest.approx(np.mean(q_losses), rel=1e-5)


@pytest.mark.parametrize("calibrated", [False, True])
def test_cql_losses(calibrated: bool, data: tuple[StepFeatures, SegmentDataset, TransitionTable]) -> None:
    features, dataset, table = data
    config = CQLConfig(conservative_weight=0.3, conservative_temperature=0.7, discount=DISCOUNT, calibrated=calibrated)
    learner = CQLLearner(_heads(), features, config, _candidates(features, dataset, table))
    _moved_targets(learner)
    # Attempt b was cut off, so what it would have earned is not known; at 0.5 the others return 1 + 0.5 * 2 and 2.
    returns = [2.0, 2.0, -math.inf, -math.inf, 2.0, 2.0]
    value_losses, q_losses, pushes = [], [], []
    for row in range(6):
        value_losses.append(0.5 * (_q(learner, row, row, target=True).min() - _v(learner, row)) ** 2)
        logged = _q(learner, row, row, target=False)
        if HAS_TARGET[row]:
            goal = REWARDS[row]
            if not TERMINATED[row]:
                options = CANDIDATES[row + 1]
                best = max(options, key=lambda action: _q(learner, row + 1, action, target=False).mean())
                goal += DISCOUNT * _q(learner, row + 1, best, target=True).min()
            q_losses.append(((logged - goal) ** 2).sum())
        soft = []
        for action in CANDIDATES[row]:
            value = _q(learner, row, action, target=False)
            soft.append(np.maximum(value, returns[row]) if calibrated and action != row else value)
        pushes.append((0.7 * np.log(np.exp(np.array(soft) / 0.7).sum(axis=0)) - logged).sum())
    losses = learner.losses(table, ALL)
    assert float(losses["value_loss"].detach()) == pytest.approx(np.mean(value_losses), rel=1e-5)
    assert float(losses["q_loss"].detach()) == pytest.approx(np.mean(q_losses), rel=1e-5)
    assert float(losses["conservative_gap"]) == pytest.approx(np.mean(pushes), rel=1e-5)
    assert float(losses["conservative_loss"].detach()) == pytest.approx(0.3 * np.mean(pushes), rel=1e-5)
    expected = np.mean(value_losses) + np.mean(q_losses) + 0.3 * np.mean(pushes)
    assert float(sum_of_losses(losses).detach()) == pytest.approx(expected, rel=1e-5)


def test_a_state_in_which_nobody_acted_has_the_value_of_v(tmp_path: Path) -> None:
    row = replace(transition_row("a", 1, ending="truncated", final_state=True))
    tokens = np.append(row.token_ids, np.int32(3))
    row = replace(
        row,
        token_ids=tokens,
        step_index=np.append(row.step_index, np.int32(-1)),
        action_mask=np.append(row.action_mask, False),
    )
    features = features_of([row])
    dataset = toy_dataset(tmp_path / "data", [row], kind="transitions")
    table = join_transitions(features, dataset, truncation="bootstrap", discount=DISCOUNT)
    config = CQLConfig(discount=DISCOUNT)
    learner = CQLLearner(_heads(), features, config, _candidates(features, dataset, table))
    goal = 1.0 + DISCOUNT * _v(learner, 1)
    expected = ((_q(learner, 0, 0, target=False) - goal) ** 2).sum()
    assert float(learner.losses(table, torch.tensor([0]))["q_loss"].detach()) == pytest.approx(expected, rel=1e-5)


def test_behavior_losses(data: tuple[StepFeatures, SegmentDataset, TransitionTable]) -> None:
    """Monte-Carlo at 0.5: 1 + 0.5 * 2 and 2; the cut attempt hands V of its second state to the first step."""
    features, _, table = data
    learner = BehaviorLearner(_heads(), features, BehaviorValuesConfig(discount=DISCOUNT))
    goals = [2.0, 2.0, 1.0 + DISCOUNT * _v(learner, 3), None, 2.0, 2.0]
    value_losses = [(_v(learner, row) - goal) ** 2 for row, goal in enumerate(goals) if goal is not None]
    q_losses = [
        ((_q(learner, row, row, target=False) - goal) ** 2).sum() for row, goal in enumerate(goals) if goal is not None
    ]
    found = learner.evaluate(table)
    assert found["value_loss"] == pytest.approx(np.mean(value_losses), rel=1e-5)
    assert found["q_loss"] == pytest.approx(np.mean(q_losses), rel=1e-5)


def test_targets_of_the_behavior_stay_until_they_are_refreshed(
    data: tuple[StepFeatures, SegmentDataset, TransitionTable],
) -> None:
    """With lambda 0 targets follow V: two updates see the same targets, the third sees those of the new V."""
    features, _, table = data
    config = BehaviorValuesConfig(trace_decay=0.0, refresh_every=2, discount=DISCOUNT, learning_rate=0.1)
    learner = BehaviorLearner(_heads(), features, config)

    def targets() -> list[float]:
        learner.update(table, ALL, 0.1)
        return learner._targets.tolist()

    first, second, third = targets(), targets(), targets()
    assert first == second != third


@pytest.mark.parametrize("algorithm", ["iql", "cql", "behavior"])
def test_the_target_critics_follow_at_their_rate(
    algorithm: str, data: tuple[StepFeatures, SegmentDataset, TransitionTable]
) -> None:
    features, dataset, table = data
    rate = {"target_update_rate": 0.25, "discount": DISCOUNT}
    learner: ValueLearner
    if algorithm == "iql":
        learner = IQLLearner(_heads(), features, IQLConfig(**rate))
    elif algorithm == "cql":
        learner = CQLLearner(_heads(), features, CQLConfig(**rate), _candidates(features, dataset, table))
    else:
        learner = BehaviorLearner(_heads(), features, BehaviorValuesConfig(**rate))
    before = [parameter.clone() for parameter in learner.target.parameters()]
    learner.update(table, ALL, 1e-2)
    after = [parameter.clone() for parameter in learner.heads.critics.parameters()]
    for slow, old, new in zip(learner.target.parameters(), before, after, strict=True):
        torch.testing.assert_close(slow, old + 0.25 * (new - old))
        assert not torch.equal(old, new) or old.numel() == 0
    for final, slow in zip(learner.final_heads().critics.parameters(), learner.target.parameters(), strict=True):
        assert torch.equal(final, slow)


@pytest.mark.parametrize("calibrated", [False, True])
def test_proposed_actions_are_candidates_with_features_of_their_own(
    calibrated: bool, data: tuple[StepFeatures, SegmentDataset, TransitionTable], tmp_path: Path
) -> None:
    """One action was proposed in the first state: it is in its log-sum-exp, and with calibration it alone counts as
    no less than the logged return of 2.
    """
    features, dataset, table = data
    index = np.array([-1, 0], dtype=np.int32)
    row = transition_row("proposed", 1, ending="terminated")
    row = replace(row, token_ids=np.array([2, 9], dtype=np.int32), action_mask=index >= 0, step_index=index)
    proposed = features_of([row], seed=5)
    names = StateActions.of((features, dataset), (proposed, toy_dataset(tmp_path / "proposed", [row])))
    candidates = Candidates.of(names, table.state_rows, max_candidates=4, proposed=torch.tensor([len(features)]))
    config = CQLConfig(discount=DISCOUNT, calibrated=calibrated)
    learner = CQLLearner(_heads(), features, config, candidates, proposed)
    with torch.no_grad():
        new = learner.heads.q(features.states[:1], proposed.actions)[:, 0].numpy()
    logged = _q(learner, 0, 0, target=False)
    options = [logged, _q(learner, 0, 4, target=False), np.maximum(new, 2.0) if calibrated else new]
    expected = (np.log(np.exp(np.array(options)).sum(axis=0)) - logged).sum()
    found = learner.losses(table, torch.tensor([0]))["conservative_gap"]
    assert float(found) == pytest.approx(expected, rel=1e-5)
