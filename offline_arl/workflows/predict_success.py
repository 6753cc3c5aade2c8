"""The stage that asks how early an attempt's success can be told."""

from __future__ import annotations

from offline_arl.datasets.segments import SegmentDataset
from offline_arl.evaluation.intervals import Estimate
from offline_arl.evaluation.success_prediction import (
    Attempts,
    auc_estimates,
    grouped_folds,
    probe_inputs,
    regression_scores,
    surface_inputs,
    value_scores,
)
from offline_arl.models.feature_cache import load_features
from offline_arl.trajectories.store import open_store
from offline_arl.workflows.context import StageContext, StageOutputs
from offline_arl.workflows.stages import PredictSuccess
from offline_arl.workflows.stores import told_damage

SURFACE = "surface"


def predict_success(config: PredictSuccess, context: StageContext) -> StageOutputs:
    """Cross-validate the value heads and the baselines.

    Metrics are `success_auc_25/iql_values` (at 25 % of the attempt) and so on for the predictors `behavior_values`,
    `probe` and `surface`; `success_auc_gain_25/iql_values-surface` is the paired difference to the surface baseline.

    Raises:
        DataError: Too few tasks, no verdicts, or verdicts that are all alike.
    """
    dataset = SegmentDataset.load(context.path(config.dataset, "dataset"))
    features = load_features(context.path(config.values, "values") / "features")
    store = open_store(context.path(config.store, "store"))
    with told_damage(store):
        trajectories = {trajectory.trajectory_id: trajectory for trajectory in store.iter_trajectories()}
    attempts = Attempts.of(features, dataset)
    folds = grouped_folds(attempts.tasks, config.folds, context.generator("folds"))
    scores = {
        name: value_scores(
            features,
            dataset,
            attempts,
            folds,
            settings,
            fractions=config.fractions,
            seed=context.integer_seed(name),
            report=lambda done, name=name: context.progress(f"{name}, folds", done, config.folds),  # type: ignore[misc]
        )
        for name, settings in (("iql_values", config.iql), ("behavior_values", config.behavior))
    }
    for name, inputs in (
        ("probe", probe_inputs(attempts, features, config.fractions)),
        (SURFACE, surface_inputs(attempts, trajectories, config.fractions)),
    ):
        context.progress(name, 0, None)
        scores[name] = regression_scores(inputs, attempts, folds, generator=context.generator(name))
    areas, gains = auc_estimates(scores, attempts, folds, reference=SURFACE, generator=context.generator("bootstrap"))
    marks = [f"{100 * fraction:g}" for fraction in config.fractions]
    metrics: dict[str, Estimate] = {}
    for name, estimates in areas.items():
        metrics.update({f"success_auc_{mark}/{name}": value for mark, value in zip(marks, estimates, strict=True)})
    for name, estimates in gains.items():
        pair = f"{name}-{SURFACE}"
        metrics.update({f"success_auc_gain_{mark}/{pair}": value for mark, value in zip(marks, estimates, strict=True)})
    tasks = len(set(attempts.tasks.tolist()))
    note = (
        f"{len(attempts)} attempts at {tasks} tasks, {100 * attempts.success.mean():.1f} % of them successes; "
        f"{config.folds} folds by task"
    )
    return StageOutputs(metrics=metrics, notes=(note,))
