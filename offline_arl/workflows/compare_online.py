"""The stage that compares online trainings: environment steps to half of a gap, success at the end, the dip."""

from __future__ import annotations

from collections.abc import Sequence

from offline_arl.errors import DataError
from offline_arl.evaluation.intervals import Estimate
from offline_arl.online.diagnosis.metrics import read_history
from offline_arl.online.records import Validation
from offline_arl.workflows.context import StageContext, StageOutputs
from offline_arl.workflows.stages import CompareOnline

NAN = float("nan")


def compare_online(config: CompareOnline, context: StageContext) -> StageOutputs:
    """Compare the validations of several online trainings.

    Raises:
        DataError: A run was not validated, or on another number of tasks.
    """
    names = dict.fromkeys((config.baseline, *config.runs))
    runs = {name: _validations(name, context) for name in names}
    sizes = {validation.n_tasks for validations in runs.values() for validation in validations}
    if len(sizes) > 1:
        raise DataError(f"the runs were validated on {sorted(sizes)} tasks; give all stages the same validation_tasks")
    start = runs[config.baseline][0].sampled
    threshold = start + (config.target - start) / 2
    needed = {name: steps_to(validations, threshold) for name, validations in runs.items()}
    metrics: dict[str, Estimate] = {"half_gap": _point(threshold, sizes.pop())}
    for name, validations in runs.items():
        metrics |= _metrics(name, validations, needed[name], needed[config.baseline])
    notes = [
        f"half of the gap from {start:.3f} (sampled, at the start of {config.baseline}) to {config.target:g}: "
        f"{threshold:.3f}"
    ]
    notes += [_note(name, validations, needed[name]) for name, validations in runs.items()]
    return StageOutputs(metrics=metrics, notes=tuple(notes))


def steps_to(validations: Sequence[Validation], threshold: float) -> float:
    """Environment steps at which sampled success reached a threshold; NaN where it never did.

    Between two validations success is taken to change linearly with the steps.
    """
    before: Validation | None = None
    for validation in validations:
        if validation.sampled >= threshold:
            if before is None:
                return float(validation.environment_steps)
            share = (threshold - before.sampled) / (validation.sampled - before.sampled)
            return before.environment_steps + share * (validation.environment_steps - before.environment_steps)
        before = validation
    return NAN


def _validations(name: str, context: StageContext) -> list[Validation]:
    found = list(read_history(context.path(name, "history")).validations)
    if not found:
        raise DataError(f"the stage {name} was not validated; set validation_tasks")
    return found


def _metrics(name: str, validations: Sequence[Validation], steps: float, baseline_steps: float) -> dict[str, Estimate]:
    n, start, end = validations[0].n_tasks, validations[0], validations[-1]
    ratio = steps / baseline_steps if baseline_steps > 0 else NAN
    return {
        f"steps_to_half_gap/{name}": _point(steps, n),
        f"steps_ratio/{name}": _point(ratio, n),
        f"final_greedy/{name}": _point(end.greedy, n),
        f"final_sampled/{name}": _point(end.sampled, n),
        f"largest_drop_greedy/{name}": _point(max(start.greedy - found.greedy for found in validations), n),
        f"largest_drop_sampled/{name}": _point(max(start.sampled - found.sampled for found in validations), n),
        f"environment_steps_used/{name}": _point(float(end.environment_steps), n),
    }


def _note(name: str, validations: Sequence[Validation], steps: float) -> str:
    course = ", ".join(
        f"{found.environment_steps:,}: {found.greedy:.3f} / {found.sampled:.3f}" for found in validations
    )
    reached = "never reached" if steps != steps else f"reached after {steps:,.0f} environment steps"
    return f"{name}: half of the gap {reached}; greedy / sampled by environment steps: {course}"


def _point(value: float, n: int) -> Estimate:
    return Estimate(value, value, value, n)
