"""Step-level value learning on cached features of a frozen language model: the loop that all algorithms share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from offline_arl.datasets.segments import SegmentDataset
from offline_arl.errors import DataError, UsageError
from offline_arl.models.features import StepFeatures
from offline_arl.models.value_heads import HeadShape, ValueHeads
from offline_arl.trainers.candidates import Candidates, StateActions
from offline_arl.trainers.checkpoint import require_finite
from offline_arl.trainers.config import BehaviorValuesConfig, CQLConfig, IQLConfig, ValueConfig
from offline_arl.trainers.transitions import TransitionTable, held_out_trajectories, join_transitions
from offline_arl.trainers.value_learners import BehaviorLearner, CQLLearner, IQLLearner, ValueLearner

Report = Callable[[int, dict[str, float]], None]


class ValueResult(NamedTuple):
    """Trained heads, diagnostics by name (held-out ones where tasks were held out) and the held-out trajectories."""

    heads: ValueHeads
    diagnostics: dict[str, float]
    held_out: frozenset[str]


def fit_values(
    features: StepFeatures,
    transitions: SegmentDataset,
    config: IQLConfig | CQLConfig | BehaviorValuesConfig,
    *,
    generator: torch.Generator,
    held_out: frozenset[str] | None = None,
    proposed: tuple[StepFeatures, SegmentDataset] | None = None,
    report: Report | None = None,
) -> ValueResult:
    """Fit twin critics and a value function to logged transitions, by the algorithm of the configuration's class.

    Args:
        features: Features of the dataset's steps (`step_features.compute_features`).
        transitions: A dataset of kind "transitions".
        config: Hyperparameters.
        generator: Of initial weights, batches and the held-out tasks.
        held_out: Trajectories that are not trained on; None draws a `holdout_fraction` of the tasks.
        proposed: Actions that a policy proposed in states of the dataset, as a dataset with one row an action and the
            features of that; candidates of conservative Q-learning beside the logged actions.
        report: Called with (update, losses) every `log_every` updates.

    Returns:
        Heads whose critics are the target critics (their Polyak average), diagnostics and the trajectories that were
        held out.

    Raises:
        DataError: A step has no features, a reward is not a number, every task was held out, or training diverged.
        UsageError: The dataset is of another kind, or proposals were given to another algorithm.
    """
    if proposed is not None and not isinstance(config, CQLConfig):
        raise UsageError("only conservative Q-learning reads proposed actions; leave them out")
    table = join_transitions(features, transitions, truncation=config.truncation, discount=config.discount)
    if held_out is None:
        held_out = held_out_trajectories(transitions, config.holdout_fraction, generator=generator)
    is_held_out = torch.tensor([features.trajectory_ids[row] in held_out for row in table.state_rows.tolist()])
    training = table.select(torch.nonzero(~is_held_out).flatten())
    validation = table.select(torch.nonzero(is_held_out).flatten())
    if len(training) == 0:
        raise DataError("every task is held out: lower holdout_fraction or add tasks")
    learner = _learner(config, features, transitions, training, proposed, generator)
    _fit(learner, training, config, generator=generator, report=report)
    final = learner.final_heads()
    require_finite(final)
    diagnostics = {"updates": float(config.steps), "transitions": float(len(training))}
    if isinstance(learner, CQLLearner):
        diagnostics["states_with_alternatives"] = learner.candidates.alternatives()
    for name, part in (("train", training), ("held_out", validation)):
        if len(part):
            diagnostics.update({f"{name}/{key}": value for key, value in learner.evaluate(part).items()})
    for name, value in diagnostics.items():
        if not math.isfinite(value):
            largest = float(table.rewards.abs().max())
            raise DataError(
                f"training diverged: {name} is {value} with rewards of up to {largest:g}; scale the rewards so that "
                "returns are about 1, or lower learning_rate"
            )
    return ValueResult(final, diagnostics, held_out)


def continue_values(
    learner: BehaviorLearner,
    features: StepFeatures,
    transitions: TransitionTable,
    *,
    updates: int,
    generator: torch.Generator,
) -> dict[str, float]:
    """More updates of a learner, on what a policy just did: how PPO trains the critic beside the policy.

    Args:
        learner: Its heads, targets and optimizer go on from where they are.
        features: Of the new steps.
        transitions: Their transitions; at least one.
        updates: How many, at the learning rate of the learner's configuration.
        generator: Of the batches.

    Returns:
        The mean of each loss and diagnostic over the updates; nothing without an update.

    Raises:
        DataError: Training diverged.
    """
    learner.turn_to(features)
    totals: dict[str, float] = {}
    for _ in range(updates):
        rows = torch.randint(len(transitions), (learner.config.batch_size,), generator=generator)
        for name, value in learner.update(transitions, rows, learner.config.learning_rate).items():
            totals[name] = totals.get(name, 0.0) + float(value.detach()) / updates
    require_finite(learner.heads)
    return totals


def _learner(
    config: IQLConfig | CQLConfig | BehaviorValuesConfig,
    features: StepFeatures,
    transitions: SegmentDataset,
    training: TransitionTable,
    proposed: tuple[StepFeatures, SegmentDataset] | None,
    generator: torch.Generator,
) -> ValueLearner:
    shape = HeadShape(
        state_size=features.states.shape[-1],
        action_size=features.actions.shape[-1],
        hidden_size=config.hidden_size,
        hidden_layers=config.hidden_layers,
        layer_norm=config.layer_norm,
        ensemble=config.ensemble if isinstance(config, IQLConfig) else 1,
    )
    heads = ValueHeads(shape, generator=generator)
    heads.set_normalization(features.pieces(training.state_rows))
    if isinstance(config, IQLConfig):
        return IQLLearner(heads, features, config)
    if isinstance(config, CQLConfig):
        tables = [(features, transitions), *([] if proposed is None else [proposed])]
        candidates = Candidates.of(
            StateActions.of(*tables),
            training.state_rows,
            max_candidates=config.max_candidates,
            proposed=None if proposed is None else len(features) + torch.arange(len(proposed[0])),
        )
        return CQLLearner(heads, features, config, candidates, None if proposed is None else proposed[0])
    return BehaviorLearner(heads, features, config)


def _fit(
    learner: ValueLearner,
    training: TransitionTable,
    config: ValueConfig,
    *,
    generator: torch.Generator,
    report: Report | None,
) -> None:
    """All updates. There is no early stopping: the losses are smallest before the rewards have moved back through
    the trajectories, when Q and V still agree on too little.
    """
    for update in range(1, config.steps + 1):
        rows = torch.randint(len(training), (config.batch_size,), generator=generator)
        losses = learner.update(training, rows, _learning_rate(config, update))
        if report is not None and update % config.log_every == 0:
            report(update, {name: float(value.detach()) for name, value in losses.items()})


def _learning_rate(config: ValueConfig, update: int) -> float:
    if config.learning_rate_decay == "none":
        return config.learning_rate
    return config.learning_rate * 0.5 * (1.0 + math.cos(math.pi * (update - 1) / config.steps))
