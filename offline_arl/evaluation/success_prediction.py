"""Can an attempt's success be told before it ends? Value heads against simple baselines, by cross-validation.

Tasks are split into folds, so no attempt is judged by what was trained on another attempt at its task. A fraction f
of an attempt of S steps is its first k = ceil(f * S) actions, and all predictors see just these: the value heads by
the smaller critic's Q of the k-th action, a linear probe by its hidden states, the surface baseline by what can be
counted (`surface_features`). Success is predicted for held-out tasks alone.

The area under the ROC curve compares successes and failures of the same fold, whose scores come from one model: a
fold with many successes leaves few to train on, so comparing across folds would pull every predictor below chance.
Intervals are from a bootstrap over tasks, with the same resamples for all predictors.

That k is a share of S tells all predictors how long the attempt will be. It is the same for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from offline_arl.datasets.segments import SegmentDataset
from offline_arl.errors import DataError
from offline_arl.evaluation.intervals import Estimate
from offline_arl.evaluation.surface_features import surface_features
from offline_arl.models.features import StepFeatures
from offline_arl.trainers.config import BehaviorValuesConfig, CQLConfig, IQLConfig
from offline_arl.trainers.value import fit_values
from offline_arl.trainers.value_quality import auc
from offline_arl.trajectories.schema import Trajectory

Scores = NDArray[np.float64]  # [attempts, fractions]
INNER_FOLDS = 4  # of the training tasks, to choose the strength of a regression's penalty
PENALTIES = tuple(10.0**power for power in range(-5, 3))


@dataclass(frozen=True, eq=False)
class Attempts:
    """Attempts with a verdict, and the feature row of each of their decisions.

    `rows[i]` maps the steps of attempt i to rows of the feature table.
    """

    trajectory_ids: list[str]
    tasks: NDArray[np.str_]
    success: NDArray[np.bool_]
    rows: list[dict[int, int]]
    n_steps: list[int]

    def __len__(self) -> int:
        return len(self.trajectory_ids)

    @classmethod
    def of(cls, features: StepFeatures, dataset: SegmentDataset) -> Attempts:
        """The attempts of a dataset whose success is known.

        Raises:
            DataError: There are none, or all of them ended alike.
        """
        rows: dict[str, dict[int, int]] = {}
        for (name, step), row in features.row_of().items():
            if features.has_action[row]:
                rows.setdefault(name, {})[step] = row
        columns = (dataset.column(name) for name in ("trajectory_id", "task_id", "success"))
        verdicts = {name: (task, success) for name, task, success in zip(*columns, strict=True) if success is not None}
        names = sorted(name for name in verdicts if rows.get(name))
        success = np.array([bool(verdicts[name][1]) for name in names], dtype=np.bool_)
        if len(set(success.tolist())) < 2:
            raise DataError(
                f"{len(names)} attempts have a verdict and all the same one: there is nothing to tell apart; "
                "take logs of successes and failures"
            )
        return cls(
            trajectory_ids=names,
            tasks=np.array([verdicts[name][0] or f"trajectory {name}" for name in names]),
            success=success,
            rows=[rows[name] for name in names],
            n_steps=[max(rows[name]) + 1 for name in names],
        )

    def decision(self, attempt: int, fraction: float) -> tuple[int, int]:
        """(step, feature row) of the last action within the first `fraction` of an attempt.

        Where a step is not in the dataset, the last one before it that is, or else the first one after it.
        """
        step = max(1, math.ceil(fraction * self.n_steps[attempt])) - 1
        there = sorted(self.rows[attempt])
        before = [known for known in there if known <= step]
        found = before[-1] if before else there[0]
        return found, self.rows[attempt][found]


def grouped_folds(tasks: NDArray[np.str_], folds: int, generator: np.random.Generator) -> list[NDArray[np.intp]]:
    """The attempts of each fold; all attempts at a task are in one. Folds differ by at most one task.

    Raises:
        DataError: There are fewer tasks than folds.
    """
    names = np.unique(tasks)
    if len(names) < folds:
        raise DataError(f"{len(names)} tasks cannot be split into {folds} folds; lower folds")
    fold_of = dict(zip(generator.permutation(names).tolist(), np.arange(len(names)) % folds, strict=True))
    fold = np.array([fold_of[task] for task in tasks.tolist()])
    return [np.flatnonzero(fold == number) for number in range(folds)]


def value_scores(
    features: StepFeatures,
    dataset: SegmentDataset,
    attempts: Attempts,
    folds: Sequence[NDArray[np.intp]],
    config: IQLConfig | CQLConfig | BehaviorValuesConfig,
    *,
    fractions: Sequence[float],
    seed: int,
    report: Callable[[int], None] | None = None,
) -> Scores:
    """The smaller critic's Q of each attempt's decisions, by heads that were fitted without its task."""
    scores = np.full((len(attempts), len(fractions)), np.nan)
    for number, members in enumerate(folds):
        held_out = frozenset(attempts.trajectory_ids[index] for index in members)
        generator = torch.Generator().manual_seed(seed + number)
        heads = fit_values(features, dataset, config, generator=generator, held_out=held_out).heads
        for column, fraction in enumerate(fractions):
            rows = torch.tensor([attempts.decision(index, fraction)[1] for index in members])
            with torch.inference_mode():
                values = heads.q(features.states[rows], features.actions[rows]).amin(dim=0)
            scores[members, column] = values.numpy()
        if report is not None:
            report(number + 1)
    return scores


def regression_scores(
    inputs: Sequence[Any], attempts: Attempts, folds: Sequence[NDArray[np.intp]], *, generator: np.random.Generator
) -> Scores:
    """Log-odds by a logistic regression a fraction, fitted without the attempt's task.

    Args:
        inputs: One matrix [attempts, inputs] a fraction, or one list of dicts from names to numbers.
        attempts: What to predict.
        folds: Of `grouped_folds`.
        generator: Of the inner folds, which choose the penalty from the training tasks.
    """
    scores = np.full((len(attempts), len(inputs)), np.nan)
    for members in folds:
        training = np.setdiff1d(np.arange(len(attempts)), members)
        for column, matrix in enumerate(inputs):
            inner = _inner_folds(attempts, training, generator)
            model = _regression(inner, of_dicts=isinstance(matrix, list))
            model.fit(_rows(matrix, training), attempts.success[training])
            scores[members, column] = model.decision_function(_rows(matrix, members))
    return scores


def surface_inputs(
    attempts: Attempts, trajectories: Mapping[str, Trajectory], fractions: Sequence[float]
) -> list[list[dict[str, float]]]:
    """`surface_features` of each attempt at each fraction.

    Raises:
        DataError: An attempt is not among the trajectories.
    """
    missing = [name for name in attempts.trajectory_ids if name not in trajectories]
    if missing:
        raise DataError(f"trajectory {missing[0]} is not in the store; name the store that the dataset was built from")
    return [
        [
            surface_features(trajectories[name], attempts.decision(index, fraction)[0])
            for index, name in enumerate(attempts.trajectory_ids)
        ]
        for fraction in fractions
    ]


def probe_inputs(attempts: Attempts, features: StepFeatures, fractions: Sequence[float]) -> list[NDArray[np.float32]]:
    """The hidden states of state and action of each attempt's decision at each fraction, side by side."""
    found = []
    for fraction in fractions:
        rows = torch.tensor([attempts.decision(index, fraction)[1] for index in range(len(attempts))])
        found.append(torch.cat([features.states[rows], features.actions[rows]], dim=-1).float().numpy())
    return found


def auc_within(values: NDArray[np.float64], labels: NDArray[np.bool_], groups: NDArray[np.intp]) -> float:
    """Probability that of a random success and a random failure of the same group the success has the higher value.

    NaN where no group has both.

    >>> values, labels = np.array([0.9, 0.8, 0.2, 0.1]), np.array([True, False, True, False])
    >>> auc_within(values, labels, np.array([0, 0, 1, 1])), auc_within(values, labels, np.zeros(4, dtype=int))
    (1.0, 0.75)
    """
    total, pairs = 0.0, 0
    for group in np.unique(groups):
        member = groups == group
        both = int(labels[member].sum()) * int((~labels[member]).sum())
        if both:
            total += both * auc(values[member], labels[member])
            pairs += both
    return total / pairs if pairs else math.nan


def auc_estimates(
    scores: Mapping[str, Scores],
    attempts: Attempts,
    folds: Sequence[NDArray[np.intp]],
    *,
    reference: str,
    generator: np.random.Generator,
    resamples: int = 1_000,
) -> tuple[dict[str, list[Estimate]], dict[str, list[Estimate]]]:
    """(AUC, AUC minus that of `reference`) of each predictor at each fraction, with 95 % intervals over tasks."""
    _, task = np.unique(attempts.tasks, return_inverse=True)
    members = [np.flatnonzero(task == number) for number in range(task.max() + 1)]
    drawn = [
        np.concatenate([members[number] for number in generator.integers(len(members), size=len(members))])
        for _ in range(resamples)
    ]
    areas: dict[str, list[Estimate]] = {}
    gains: dict[str, list[Estimate]] = {}
    fold = np.empty(len(attempts), dtype=np.intp)
    for number, rows in enumerate(folds):
        fold[rows] = number
    samples = (np.arange(len(attempts)), *drawn)
    found = {
        name: np.array(
            [[auc_within(column[rows], attempts.success[rows], fold[rows]) for column in table.T] for rows in samples]
        )
        for name, table in scores.items()
    }
    for name, table in found.items():
        areas[name] = [_estimate(column, len(attempts)) for column in table.T]
        if name != reference:
            gains[name] = [_estimate(column, len(attempts)) for column in (table - found[reference]).T]
    return areas, gains


def _estimate(values: NDArray[np.float64], n: int) -> Estimate:
    """The first value is the estimate, the others are resamples; those of one outcome alone have no area."""
    usable = values[1:][~np.isnan(values[1:])]
    low, high = np.quantile(usable, [0.025, 0.975]) if len(usable) else (math.nan, math.nan)
    return Estimate(float(values[0]), float(low), float(high), n)


def _inner_folds(
    attempts: Attempts, training: NDArray[np.intp], generator: np.random.Generator
) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """(training, validation) positions within `training`, by task; those that lack one outcome are left out."""
    count = min(INNER_FOLDS, len(np.unique(attempts.tasks[training])))
    pairs = []
    for validation in grouped_folds(attempts.tasks[training], count, generator):
        rest = np.setdiff1d(np.arange(len(training)), validation)
        if all(len(set(attempts.success[training[part]].tolist())) == 2 for part in (rest, validation)):
            pairs.append((rest, validation))
    return pairs


def _regression(inner: list[tuple[NDArray[np.intp], NDArray[np.intp]]], *, of_dicts: bool) -> Any:
    """Scaled inputs and a logistic regression whose penalty the inner folds choose; without any it is 1."""
    from sklearn.feature_extraction import DictVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    first = [DictVectorizer(sparse=False)] if of_dicts else []
    model = make_pipeline(*first, StandardScaler(), LogisticRegression(max_iter=1_000))
    if not inner:
        return model
    return GridSearchCV(model, {"logisticregression__C": list(PENALTIES)}, cv=inner, scoring="roc_auc")


def _rows(matrix: Any, rows: NDArray[np.intp]) -> Any:
    return [matrix[row] for row in rows] if isinstance(matrix, list) else matrix[rows]
