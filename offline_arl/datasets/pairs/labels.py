"""Labels of single answers for KTO (Ethayarajh et al. 2024), and the weights of its two classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from offline_arl.datasets.pairs.judgements import thumb
from offline_arl.datasets.pairs.pair import Side, is_trained_step
from offline_arl.datasets.segments import success_of
from offline_arl.errors import UsageError
from offline_arl.rewards.preferences import UnpairedConfig
from offline_arl.trajectories.schema import Score, Trajectory

# The range that the product of class weight and class size, desirable over undesirable, should lie in: section 4.2.
BALANCE = (1.0, 4 / 3)


@dataclass(frozen=True)
class Labeled:
    """An answer with a label; see `rows.UnpairedRow`."""

    side: Side
    label: bool
    source: str
    scorer: str | None
    score: float | None
    evidence: dict[str, Any]


class ClassWeights(NamedTuple):
    """Weights of the two classes in KTO's loss."""

    desirable: float
    undesirable: float


def recommended_weights(n_desirable: int, n_undesirable: int) -> ClassWeights:
    """The class weights closest to 1 that put the balance into the range of the paper.

    desirable * n_desirable / (undesirable * n_undesirable) has to lie between 1 and 4/3. The rarer class gets the
    larger weight; the other one stays at 1. Where a class is empty no weight helps, and both stay at 1.

    >>> recommended_weights(84, 116)
    ClassWeights(desirable=1.380952380952381, undesirable=1.0)
    >>> recommended_weights(120, 100)
    ClassWeights(desirable=1.0, undesirable=1.0)
    >>> recommended_weights(200, 100)
    ClassWeights(desirable=1.0, undesirable=1.5)
    """
    if not n_desirable or not n_undesirable:
        return ClassWeights(1.0, 1.0)
    ratio = n_desirable / n_undesirable
    if ratio < BALANCE[0]:
        return ClassWeights(BALANCE[0] / ratio, 1.0)
    return ClassWeights(1.0, max(1.0, ratio / BALANCE[1]))


def labels_of(trajectory: Trajectory, config: UnpairedConfig, counts: Counter[str]) -> Iterator[Labeled]:
    """The labels that a trajectory has, by the sources of `config` in turn.

    A crash of the harness is no failure of the agent: such an attempt has no labels at all. Thumbs for one message are
    of that step, others of the whole attempt; where people disagree about the same thing, it has no label.

    Args:
        trajectory: With its judgements.
        config: Which sources.
        counts: Gets why there is none: "infrastructure_error", "unlabeled", "contradictory_labels".

    Raises:
        UsageError: "score" is among the sources, and its name or threshold or direction is missing.
    """
    if trajectory.outcome.status == "infrastructure_error":
        counts["infrastructure_error"] += 1
        return
    found: list[Labeled] = []
    for source in config.sources:
        if source == "outcome":
            found += _of_outcome(trajectory)
        else:
            found += _of_scores(trajectory, source, config, counts)
    if not found:
        counts["unlabeled"] += 1
    yield from found


def _of_outcome(trajectory: Trajectory) -> list[Labeled]:
    success = success_of(trajectory.outcome)
    side = _side(trajectory, None)
    if success is None or side is None:
        return []
    outcome = trajectory.outcome
    return [Labeled(side, success, "outcome", outcome.scorer, outcome.score, {})]


def _of_scores(trajectory: Trajectory, source: str, config: UnpairedConfig, counts: Counter[str]) -> list[Labeled]:
    labels: dict[int | None, list[tuple[bool, Score]]] = {}
    for score in trajectory.scores:
        label = thumb(score) if source == "thumb" else _judged(score, config)
        if label is not None:
            labels.setdefault(score.message_index, []).append((label, score))
    found = []
    for index, given in labels.items():
        side = _side(trajectory, index)
        if side is None:
            counts["label_of_no_step"] += 1
        elif len({label for label, _ in given}) > 1:
            counts["contradictory_labels"] += 1
        else:
            label, score = given[-1]
            known = {"scorer": score.scorer, "comment": score.comment, "judgements": len(given)}
            evidence = {key: value for key, value in known.items() if value is not None}
            found.append(Labeled(side, label, source, score.name, score.value, evidence))
    return found


def _judged(score: Score, config: UnpairedConfig) -> bool | None:
    if config.score is None or config.threshold is None:
        raise UsageError("labels by a score need its name and a threshold: set score and threshold")
    if score.name != config.score or score.value is None:
        return None
    direction = config.direction if config.direction != "unknown" else score.direction
    if direction == "unknown":
        raise UsageError(
            f"{config.score}: the log does not say whether more is better; set direction to higher_is_better or "
            "lower_is_better"
        )
    return score.value <= config.threshold if direction == "lower_is_better" else score.value >= config.threshold


def _side(trajectory: Trajectory, index: int | None) -> Side | None:
    """What a label is of: the step at `index`, or the attempt from its first step on; None where there is no step."""
    messages = trajectory.messages
    if index is not None:
        is_step = 0 <= index < len(messages) and is_trained_step(messages[index])
        return Side(trajectory, messages[: index + 1], index, index) if is_step else None
    first = next((at for at, message in enumerate(messages) if is_trained_step(message)), None)
    return None if first is None else Side(trajectory, messages, first, first)
