"""Does a return-conditioned policy get what it is asked for? The curve of achieved against target returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from offline_arl.errors import DataError
from offline_arl.evaluation.intervals import RESAMPLES, Estimate, bootstrap_mean
from offline_arl.rewards.components import RewardConfig, step_rewards
from offline_arl.rollouts.episode import Episode

_BLOCK = 500  # resamples at a time


def achieved_returns(episodes: Sequence[Episode], rewards: RewardConfig) -> list[float | None]:
    """The undiscounted return of each episode in the units that the policy was trained on; None where unknown.

    Args:
        episodes: In any order.
        rewards: Of the policy's `ReturnConditioning`: an environment may count other rewards than the training data.
    """
    earned = (step_rewards(episode.trajectory, rewards) for episode in episodes)
    return [None if values is None else float(sum(values)) for values in earned]


def calibration_metrics(
    achieved: Mapping[float, Sequence[float | None]], *, generator: np.random.Generator
) -> dict[str, Estimate]:
    """The calibration curve and its mean error, with 95 % bootstrap intervals over tasks.

    Args:
        achieved: For each target return, the returns of the episodes that were asked for it, one a task and in the
            same order of tasks for all targets; None where a return is unknown.
        generator: Of the resampling.

    Returns:
        `achieved_return/TARGET`: the mean achieved return, one entry a target, in ascending order.
        `calibration_error`: the mean distance between target and mean achieved return over the targets, on the tasks
        with a known return for every target.

    Raises:
        DataError: There is no target, or the targets have different numbers of episodes.
    """
    if not achieved or len({len(values) for values in achieved.values()}) != 1:
        raise DataError("a calibration curve needs the same tasks for every target return, and at least one target")
    measured: dict[str, Estimate] = {}
    for target in sorted(achieved):
        known = [value for value in achieved[target] if value is not None]
        measured[f"achieved_return/{target:g}"] = bootstrap_mean(known, generator=generator)
    targets = np.array(sorted(achieved))
    table = np.array([achieved[target] for target in targets], dtype=np.float64)  # [targets, tasks], None is NaN
    complete = table[:, ~np.isnan(table).any(axis=0)]
    measured["calibration_error"] = _mean_error(targets, complete, generator)
    return measured


def _mean_error(
    targets: NDArray[np.float64], achieved: NDArray[np.float64], generator: np.random.Generator
) -> Estimate:
    n = achieved.shape[1]
    if n == 0:
        return bootstrap_mean([], generator=generator)

    def error(means: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.abs(means - targets).mean(axis=-1))

    errors = []
    for _ in range(RESAMPLES // _BLOCK):
        shares = generator.multinomial(n, np.full(n, 1 / n), size=_BLOCK) / n
        errors.append(error(shares @ achieved.T))
    low, high = np.quantile(np.concatenate(errors), [0.025, 0.975])
    return Estimate(float(error(achieved.mean(axis=1))), float(low), float(high), n)
