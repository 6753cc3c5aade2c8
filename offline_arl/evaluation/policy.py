"""How good is a policy? Outcome and process measures of its episodes, or of logged trajectories."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from offline_arl.environments.replay.recording import MISS
from offline_arl.errors import DataError
from offline_arl.evaluation.intervals import Estimate, bootstrap_mean, paired_bootstrap, wilson_interval
from offline_arl.rewards.components import RewardConfig, step_rewards
from offline_arl.rollouts.episode import Episode
from offline_arl.trajectories.acceptance import checker_for
from offline_arl.trajectories.schema import Message, ToolCall, Trajectory
from offline_arl.trajectories.step_table import is_marked_invalid

Record = Episode | Trajectory

_REWARDS = RewardConfig()
_RETURN = "return"
_MISSES = "misses"  # component of the outcomes of replay environments


class CallCounts(NamedTuple):
    """What became of the tool calls of one trajectory."""

    calls: int
    accurate: int  # valid against the tools in force and answered without an error
    steps: int
    invalid_steps: int  # with a call that the tools in force do not accept, or marked invalid by the environment
    calling_steps: int  # with at least one call


def evaluate(
    records: Sequence[Record], *, generator: np.random.Generator, reward_config: RewardConfig = _REWARDS
) -> dict[str, Estimate]:
    """Measure a policy on its episodes, or a behavior policy on its logs. All intervals are 95 %.

    Trajectories whose harness failed are counted in `infrastructure_errors` and left out of everything else.

    Args:
        records: Episodes of `collect`, or logged trajectories. Shares have Wilson intervals, which take the records
            as independent: give one attempt a task, or read the intervals of repeated tasks as too narrow.
        generator: Of the bootstrap, which the intervals of means come from.
        reward_config: Rewards of logged trajectories; an episode has those of its environment.

    Returns:
        `success`: share of records that the judge passed; those it did not judge are left out.
        `success/TASK_TYPE`: the same for each task type, sorted; records without a task type appear in none.
        `return`: mean undiscounted return, the outcome's own component of that name where it has one, so that logs and
        episodes of an environment that measures it are compared by the same; records without an outcome are left out.
        `steps`: mean number of assistant messages.
        `call_rate`: share of steps with a tool call. Training against bad calls may teach a policy not to call at all:
        compare it with the rate before.
        `tool_call_accuracy`: share of calls that are valid against the tools in force and answered without an
        error. A call that nothing answers counts as answered where it ends its trajectory.
        `invalid_action_rate`: share of steps with a call that is malformed, unknown or breaks its schema, or that
        the environment marked as invalid.
        `truncation_rate`: share of records cut by a limit.
        `infrastructure_errors`: their number, with equal estimate, low and high.
        `judged`: share of records with a verdict, which `success` is of; only where some have none.
        `miss_rate`: share of calls that a replay environment has no recording of, each time that a call is made;
        `whole_rate`: share of records without such a call. Only where there is one.
        Further components of the outcomes: the mean of each, over the records that have it, under its own name (one
        that bears the name of a measure above is left out).
        A measure without observations has n = 0 (see `Estimate`).

    Raises:
        DataError: There are no records, or the harness failed in all of them.
    """
    trajectories = [_trajectory(record) for record in records]
    usable = [index for index, item in enumerate(trajectories) if item.outcome.status != "infrastructure_error"]
    if not usable:
        failed = f"the harness failed in all {len(records)} of them" if records else "there are none"
        raise DataError(f"no episodes to evaluate: {failed}; look at the log of the rollouts or raise the task count")
    kept = [trajectories[index] for index in usable]
    errors = len(records) - len(kept)
    measures = {"success": _success(kept)}
    judged = measures["success"].n
    if judged < len(kept):
        measures["judged"] = wilson_interval(judged, len(kept))
    by_type: dict[str, list[Trajectory]] = defaultdict(list)
    for item in kept:
        if item.task_type is not None:
            by_type[item.task_type].append(item)
    measures.update({f"success/{name}": _success(by_type[name]) for name in sorted(by_type)})
    returns = [_total_reward(records[index], reward_config) for index in usable]
    measures[_RETURN] = bootstrap_mean([value for value in returns if value is not None], generator=generator)
    measures.update(_process(kept, generator))
    if any(_MISSES in item.outcome.components for item in kept):
        measures["miss_rate"] = _miss_rate(kept)
        whole = sum(not item.outcome.components.get(_MISSES) for item in kept)
        measures["whole_rate"] = wilson_interval(whole, len(kept))
    measures["infrastructure_errors"] = Estimate(errors, errors, errors, len(records))
    measures.update(_components(kept, generator, known=measures.keys()))
    return measures


def success_by_task(records: Sequence[Record]) -> dict[str, float]:
    """Mean success of each task over its judged attempts; tasks without one are left out.

    Raises:
        DataError: A judged record has no task_id.
    """
    attempts: dict[str, list[bool]] = defaultdict(list)
    for item in map(_trajectory, records):
        if item.outcome.status != "scored" or item.outcome.success is None:
            continue
        if item.task_id is None:
            raise DataError(f"{item.trajectory_id}: no task_id; records can only be paired by task")
        attempts[item.task_id].append(item.outcome.success)
    return {task_id: float(np.mean(values)) for task_id, values in attempts.items()}


def paired_difference(
    records_a: Sequence[Record], records_b: Sequence[Record], *, generator: np.random.Generator
) -> Estimate:
    """How much more often a succeeds than b on the tasks that both attempted, with a paired bootstrap over tasks.

    Raises:
        DataError: A judged record has no task_id, or they share no task.
    """
    mean_a, mean_b = success_by_task(records_a), success_by_task(records_b)
    shared = sorted(mean_a.keys() & mean_b.keys())
    if not shared:
        raise DataError("the two policies share no judged task; evaluate both on the same tasks")
    return paired_bootstrap([mean_a[task] for task in shared], [mean_b[task] for task in shared], generator=generator)


def count_calls(trajectory: Trajectory) -> CallCounts:
    """Count calls and steps of one trajectory, as `evaluate` defines them."""
    steps = trajectory.step_indices()
    calls = accurate = invalid_steps = calling_steps = 0
    for position, index in enumerate(steps):
        message = trajectory.messages[index]
        end = steps[position + 1] if position + 1 < len(steps) else len(trajectory.messages)
        answers = [item for item in trajectory.messages[index + 1 : end] if item.role == "tool"]
        is_last = not trajectory.messages[index + 1 :]
        checker = checker_for(trajectory.context_at(index).tools)
        valid = [checker.problem(call) is None for call in message.tool_calls]
        matched = _match_answers(message.tool_calls, answers)
        calls += len(valid)
        calling_steps += bool(valid)
        accurate += sum(
            is_valid and (answer.error is None if answer is not None else is_last)
            for is_valid, answer in zip(valid, matched, strict=True)
        )
        invalid_steps += not all(valid) or is_marked_invalid(trajectory, index)
    return CallCounts(calls, accurate, len(steps), invalid_steps, calling_steps)


def _match_answers(calls: Sequence[ToolCall], answers: Sequence[Message]) -> list[Message | None]:
    """The answer of each call: by id where both have one, else the next answer that no id claims, in order."""
    ids = {call.id for call in calls if call.id is not None}
    by_id = {answer.tool_call_id: answer for answer in answers if answer.tool_call_id in ids}
    unclaimed = iter([answer for answer in answers if answer.tool_call_id not in ids])
    return [by_id[call.id] if call.id in by_id else next(unclaimed, None) for call in calls]


def _process(kept: Sequence[Trajectory], generator: np.random.Generator) -> dict[str, Estimate]:
    counts = [count_calls(item) for item in kept]
    return {
        "steps": bootstrap_mean([count.steps for count in counts], generator=generator),
        "call_rate": wilson_interval(sum(c.calling_steps for c in counts), sum(c.steps for c in counts)),
        "tool_call_accuracy": wilson_interval(sum(c.accurate for c in counts), sum(c.calls for c in counts)),
        "invalid_action_rate": wilson_interval(sum(c.invalid_steps for c in counts), sum(c.steps for c in counts)),
        "truncation_rate": wilson_interval(sum(item.truncated for item in kept), len(kept)),
    }


def _miss_rate(kept: Sequence[Trajectory]) -> Estimate:
    answers = [message.error for item in kept for message in item.messages if message.role == "tool"]
    calls = sum(len(item.messages[index].tool_calls) for item in kept for index in item.step_indices())
    return wilson_interval(sum(error is not None and error.type == MISS for error in answers), calls)


def _success(items: Sequence[Trajectory]) -> Estimate:
    verdicts = [item.outcome.success for item in items if item.outcome.success is not None]
    return wilson_interval(sum(verdicts), len(verdicts))


def _components(
    kept: Sequence[Trajectory], generator: np.random.Generator, *, known: Collection[str]
) -> dict[str, Estimate]:
    values: dict[str, list[float]] = defaultdict(list)
    for item in kept:
        for name, value in item.outcome.components.items():
            values[name].append(value)
    return {name: bootstrap_mean(values[name], generator=generator) for name in sorted(values) if name not in known}


def _total_reward(record: Record, config: RewardConfig) -> float | None:
    measured = _trajectory(record).outcome.components.get(_RETURN)
    if measured is not None:
        return measured
    if isinstance(record, Episode):
        return record.total_reward
    rewards = step_rewards(record, config)
    return None if rewards is None else sum(rewards)


def _trajectory(record: Record) -> Trajectory:
    return record.trajectory if isinstance(record, Episode) else record
