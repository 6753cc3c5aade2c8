"""Weights that give rare classes of returns their say in the training of a Decision Transformer."""

from __future__ import annotations

import numpy as np

from offline_arl.datasets.collate import StepWeights
from offline_arl.datasets.return_conditioning import ReturnConditioning
from offline_arl.datasets.segments import SegmentDataset
from offline_arl.errors import UsageError
from offline_arl.trainers.weighted_sampling import SampledRows, as_frequencies


def class_weights(conditioning: ReturnConditioning, *, balance: float) -> list[float]:
    """The weight of each class of returns, of mean 1 over the conditions of the training data.

    A class with the share p of the conditions weighs in proportion to p ** -balance: 0 weighs all alike, 1 gives each
    class the same sum of weights. The condition is in the context, so weights that depend on it alone do not change
    what the policy learns to do under each return in the limit; they decide how much of a short training goes into
    which return.

    Deviation: Chen et al. 2021 have weights of 1. With the few good attempts of a bad policy nearly all updates then
    say what to do under the returns that nobody will ask for.

    Args:
        conditioning: Of the training data.
        balance: From 0 to 1.

    Raises:
        UsageError: Returns are written as numbers, which have no classes.

    >>> from offline_arl.rendering.return_conditioning import ConditioningConfig
    >>> from offline_arl.rewards.components import RewardConfig
    >>> from offline_arl.datasets.return_conditioning import TrainingReturns
    >>> returns = TrainingReturns(attempts=4, minimum=0, maximum=1, mean=0.25, deciles=(0,) * 11)
    >>> fitted = ReturnConditioning(conditioning=ConditioningConfig(), rewards=RewardConfig(), edges=(1.0,),
    ...     class_counts=(3, 1), returns=returns, default_target=1.0)
    >>> [round(weight, 3) for weight in class_weights(fitted, balance=1.0)]
    [0.667, 2.0]
    """
    if balance and conditioning.conditioning.form == "number":
        raise UsageError("balance_returns needs classes of returns; set conditioning.form to one of the quantile forms")
    shares = np.array(conditioning.class_counts) / sum(conditioning.class_counts)
    weights = shares**-balance
    return [float(weight) for weight in weights / (shares * weights).sum()]


def balanced_rows(dataset: SegmentDataset, conditioning: ReturnConditioning, *, balance: float) -> SampledRows:
    """The weights of `return_step_weights`, as frequencies as far as the steps of a row weigh the same.

    Args:
        dataset: Of the kind return_conditioned.
        conditioning: Of the dataset.
        balance: See `class_weights`.

    Raises:
        UsageError: Returns are written as numbers, which have no classes.
    """
    return as_frequencies(dataset, return_step_weights(dataset, conditioning, balance=balance))


def return_step_weights(dataset: SegmentDataset, conditioning: ReturnConditioning, *, balance: float) -> StepWeights:
    """The weight of each (trajectory_id, step) of a return-conditioned dataset: that of the class it stands under.

    Args:
        dataset: Of the kind return_conditioned.
        conditioning: Of the dataset.
        balance: See `class_weights`.

    Raises:
        UsageError: Returns are written as numbers, which have no classes.
    """
    weights = class_weights(conditioning, balance=balance)
    edges = np.array(conditioning.edges, dtype=np.float32)  # as the returns of a dataset are
    whole = conditioning.conditioning.scope == "trajectory"
    found: dict[tuple[str, int], float] = {}
    first: dict[str, float] = {}  # the weight of an attempt's first step
    for row in dataset:
        assert row.steps is not None  # of this kind of dataset
        assert row.reward_to_go is not None
        for step, level in zip(row.steps, np.searchsorted(edges, row.reward_to_go, side="right"), strict=True):
            weight = weights[level]
            first.setdefault(row.trajectory_id, weight)
            found[row.trajectory_id, int(step)] = first[row.trajectory_id] if whole else weight
    return found
