"""Pairs by what became of attempts: whole attempts, and the first steps in which they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from statistics import fmean

from offline_arl.datasets.pairs.divergences import Attempt, Divergence
from offline_arl.datasets.pairs.pair import Pair, Side, is_trained_step, shared_length, whole_side
from offline_arl.datasets.segments import success_of
from offline_arl.rewards.components import step_rewards
from offline_arl.rewards.preferences import PairKind, PairsConfig
from offline_arl.trajectories.schema import Trajectory

ValueOf = Callable[[Attempt], float | None]
QValues = Mapping[tuple[str, int], float]  # (trajectory_id, step) -> Q


def attempt_value(trajectory: Trajectory, config: PairsConfig) -> float | None:
    """How good an attempt was: success as 1.0 or 0.0, or its return; None where nobody knows."""
    if config.compare_by == "success":
        success = success_of(trajectory.outcome)
        return None if success is None else float(success)
    rewards = step_rewards(trajectory, config.rewards)
    return None if rewards is None else sum(rewards)


def scorer_of(trajectory: Trajectory, config: PairsConfig) -> str:
    """What `attempt_value` is a number of."""
    return trajectory.outcome.scorer or ("outcome" if config.compare_by == "success" else "return")


def trajectory_pairs(
    attempts: Sequence[Attempt], value_of: ValueOf, config: PairsConfig, counts: Counter[str]
) -> list[Pair]:
    """Every better attempt of a group with every worse one, those with the largest margins first where there are many.

    What both sides share is no part of either: a side starts at the first message that differs. Attempts that are the
    same in every word are no pair, whatever became of them; `counts` has them as "equal_sides".
    """
    valued = [(value, attempt) for attempt in attempts if (value := value_of(attempt)) is not None]
    found: list[tuple[float, Pair]] = []
    for (left_value, left), (right_value, right) in combinations(valued, 2):
        gap = abs(left_value - right_value)
        if gap <= config.min_margin:
            counts["tie" if gap == 0 else "below_margin"] += 1
            continue
        better, worse = (left, right) if left_value > right_value else (right, left)
        if (better.trajectory.parent_trajectory_id is None) != (worse.trajectory.parent_trajectory_id is None):
            continue  # an agent and a sub-agent of the same task did different work
        start = shared_length(better.keys, worse.keys)
        if not all(_acts_from(attempt.trajectory, start) for attempt in (better, worse)):
            counts["equal_sides" if better.keys == worse.keys else "one_side_continues_the_other"] += 1
            continue
        high, low = max(left_value, right_value), min(left_value, right_value)
        pair = Pair(
            kind="trajectory",
            chosen=whole_side(better.trajectory, start),
            rejected=with_prefix_of(better.trajectory, worse.trajectory, start, len(worse.trajectory.messages)),
            scorer=scorer_of(better.trajectory, config),
            chosen_score=high,
            rejected_score=low,
        )
        found.append((gap, pair))
    limit = config.max_pairs_per_task
    if limit is not None and len(found) > limit:
        counts["over_the_task_limit"] += len(found) - limit
        found = sorted(found, key=lambda item: -item[0])[:limit]
    return [pair for _, pair in found]


def step_pairs(
    divergence: Divergence, value_of: ValueOf, config: PairsConfig, counts: Counter[str], kind: PairKind = "step"
) -> list[Pair]:
    """The steps of one state that led to better ends, each with those that led to worse ones.

    The value of a step is the mean over the attempts that took it, so that one lucky attempt does not turn the
    others' failures into praise.
    """
    valued = []
    for attempts in divergence.steps:
        values = {id(attempt): value for attempt in attempts if (value := value_of(attempt)) is not None}
        if values:
            valued.append((fmean(values.values()), [attempt for attempt in attempts if id(attempt) in values], values))
    found = []
    for left, right in combinations(valued, 2):
        if abs(left[0] - right[0]) <= config.min_margin:
            counts["tie_of_steps" if left[0] == right[0] else "below_margin_of_steps"] += 1
            continue
        better, worse = (left, right) if left[0] > right[0] else (right, left)
        chosen = max(better[1], key=lambda attempt: better[2][id(attempt)])
        rejected = min(worse[1], key=lambda attempt: worse[2][id(attempt)])
        found.append(
            step_pair(
                kind,
                chosen.trajectory,
                rejected.trajectory,
                divergence.position,
                scorer=scorer_of(chosen.trajectory, config),
                scores=(better[0], worse[0]),
                evidence={"chosen_attempts": len(better[1]), "rejected_attempts": len(worse[1])},
            )
        )
    return found


def value_pairs(divergence: Divergence, q_values: QValues, config: PairsConfig, counts: Counter[str]) -> list[Pair]:
    """Steps of one state whose Q, by a critic, differs by more than `config.value_margin`."""
    valued = []
    for attempts in divergence.steps:
        number = _step_number(attempts[0].trajectory, divergence.position)
        names = [(attempt.trajectory.trajectory_id, number) for attempt in attempts]
        found = [q_values[name] for name in names if name in q_values]
        if found:
            valued.append((fmean(found), attempts[0].trajectory))
    pairs = []
    for (left_q, left), (right_q, right) in combinations(valued, 2):
        if abs(left_q - right_q) <= config.value_margin:
            counts["below_value_margin"] += 1
            continue
        better, worse = (left, right) if left_q > right_q else (right, left)
        scores = max(left_q, right_q), min(left_q, right_q)
        pairs.append(step_pair("value", better, worse, divergence.position, scorer="critic", scores=scores))
    return pairs


def step_pair(
    kind: PairKind,
    chosen: Trajectory,
    rejected: Trajectory,
    position: int,
    *,
    scorer: str | None,
    scores: tuple[float, float] | None,
    evidence: dict[str, object] | None = None,
) -> Pair:
    """The pair of the steps at `position`, and nothing of what followed them."""
    return Pair(
        kind=kind,
        chosen=Side(chosen, chosen.messages[: position + 1], position, position),
        rejected=with_prefix_of(chosen, rejected, position, position + 1),
        scorer=scorer,
        chosen_score=None if scores is None else scores[0],
        rejected_score=None if scores is None else scores[1],
        evidence=dict(evidence or {}),
    )


def with_prefix_of(chosen: Trajectory, rejected: Trajectory, start: int, end: int) -> Side:
    """The rejected side with the very messages of the chosen one before `start`, where a step stands there.

    They say the same; but ids of calls and recorded tokens may differ, and then the prompts would differ too. Between
    a call and its result the prefix stays its own, because the result names the call.
    """
    if start < len(rejected.messages) and is_trained_step(rejected.messages[start]):
        return Side(rejected, [*chosen.messages[:start], *rejected.messages[start:end]], start, start)
    return Side(rejected, rejected.messages[:end], start, start)


def _acts_from(trajectory: Trajectory, start: int) -> bool:
    return any(is_trained_step(message) for message in trajectory.messages[start:])


def _step_number(trajectory: Trajectory, position: int) -> int:
    return trajectory.step_indices().index(position)
