"""Compare policies over several runs of one pipeline (its seeds), paired over tasks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from offline_arl.errors import DataError, UsageError
from offline_arl.evaluation.intervals import Estimate, bootstrap_mean, paired_bootstrap

EPISODES = ("stages/*/episodes.parquet", "episodes.parquet")  # of a pipeline's run, and of an evaluation alone


class Comparison(NamedTuple):
    """How two policies differ in success. `seeds` holds the difference of each run, in the order of the runs."""

    after: str
    before: str
    mode: str  # "greedy" or "sampled"
    difference: Estimate  # after - before, over the tasks of all runs
    seeds: list[float]


class RunComparison(NamedTuple):
    """Success of each (policy, mode) over the tasks of all runs, its value in each run, and all differences."""

    success: dict[tuple[str, str], tuple[Estimate, list[float]]]
    differences: list[Comparison]


def compare_runs(runs: Sequence[str | Path], *, seed: int = 0) -> RunComparison:
    """Compare every pair of policies that all runs evaluated.

    A policy of a run is paired with another policy of the same run, task by task. Tasks are resampled within the
    pool of all runs, so the interval says how sure the difference is over tasks and the runs at hand; how much the
    runs differ among themselves is in the values by seed.

    Args:
        runs: Output folders of `offline-arl run`, each with an evaluation stage, or of `offline-arl evaluate`.
        seed: Of the bootstrap.

    Raises:
        UsageError: No runs are given.
        DataError: A folder holds no evaluation, or the runs share no policy.
    """
    if not runs:
        raise UsageError("name at least one output folder of offline-arl run")
    frames = [_episodes(Path(run)) for run in runs]
    keys = [set(frame.select("policy", "sampled").unique().rows()) for frame in frames]
    shared = set.intersection(*keys)
    if not shared:
        raise DataError(
            "the runs share no policy; compare runs of the same pipeline, or evaluate the policies in one command"
        )
    order = [key for key in frames[0].select("policy", "sampled").unique(maintain_order=True).rows() if key in shared]
    generator = np.random.default_rng(seed)
    success: dict[tuple[str, str], tuple[Estimate, list[float]]] = {}
    values = {key: [_by_task(frame, key) for frame in frames] for key in order}
    for key in order:
        pooled = np.concatenate([np.array(list(tasks.values())) for tasks in values[key]])
        means = [float(np.mean(list(tasks.values()))) for tasks in values[key]]
        success[key[0], _mode(key[1])] = (bootstrap_mean(pooled, generator=generator), means)
    differences = [
        _compare(after, before, values[after], values[before], generator)
        for before, after in combinations(order, 2)
        if before[1] == after[1]
    ]
    return RunComparison(success, differences)


def _episodes(run: Path) -> pl.DataFrame:
    found = sorted(path for pattern in EPISODES for path in run.glob(pattern))
    if not found:
        raise DataError(
            f"{run}: no evaluation there; give the output folder of a run with an evaluate stage, or of evaluate"
        )
    return pl.concat([pl.read_parquet(path) for path in found]).filter(pl.col("success").is_not_null())


def _by_task(frame: pl.DataFrame, key: tuple[str, bool]) -> dict[str, float]:
    """Mean success of each task over its attempts."""
    chosen = frame.filter((pl.col("policy") == key[0]) & (pl.col("sampled") == key[1]))
    means = chosen.group_by("task_id").agg(pl.col("success").cast(pl.Float64).mean()).sort("task_id")
    return dict(means.iter_rows())


def _compare(
    after: tuple[str, bool],
    before: tuple[str, bool],
    values_after: Sequence[dict[str, float]],
    values_before: Sequence[dict[str, float]],
    generator: np.random.Generator,
) -> Comparison:
    left: list[float] = []
    right: list[float] = []
    seeds: list[float] = []
    for tasks_after, tasks_before in zip(values_after, values_before, strict=True):
        common = sorted(tasks_after.keys() & tasks_before.keys())
        left += [tasks_after[task] for task in common]
        right += [tasks_before[task] for task in common]
        seeds.append(float(np.mean([tasks_after[task] - tasks_before[task] for task in common])))
    difference = paired_bootstrap(left, right, generator=generator)
    return Comparison(after[0], before[0], _mode(after[1]), difference, seeds)


def _mode(sampled: bool) -> str:
    return "sampled" if sampled else "greedy"
