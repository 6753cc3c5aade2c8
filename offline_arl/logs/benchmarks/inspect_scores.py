"""Scores and the outcome of an Inspect sample.

`scores` maps a scorer's name to `{value, answer, explanation, reason, metadata, history}`. A value is "C", "I", "P"
or "N" (correct, incorrect, partial, no answer), a boolean, a number, a text, a list, or an object of such values; NaN
says that the scorer could not tell.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from offline_arl.logs.primitives.scores import direction_of, finite_number, make_score
from offline_arl.logs.primitives.values import as_object, as_text
from offline_arl.trajectories.schema import Outcome, Score, ScorerKind

# How Inspect counts its letters and words. A sample without an answer is a failed one; a partial one is neither.
_GRADES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
_NO_NUMBERS = ("NaN", "Infinity", "-Infinity")


def scores_of(sample: Mapping[str, Any], model_scorers: Collection[str]) -> list[Score]:
    """All scores of a sample: one for each scalar, so that an object or list gives several."""
    found = []
    for name, logged in logged_scores(sample).items():
        kind: ScorerKind = "model" if name in model_scorers else "code"
        extra = {key: value for key, value in logged.items() if key not in ("value", "explanation") and value}
        for key, value in _scalars(name, logged.get("value")):
            # NaN, which is read as text, is no label; it stays beside the verdict that is not there.
            is_number = value not in _NO_NUMBERS
            found.append(
                make_score(
                    key,
                    value if is_number else None,
                    scorer=name,
                    kind=kind,
                    direction="higher_is_better" if _grade(value) is not None else None,
                    comment=logged.get("explanation"),
                    metadata=extra if is_number else {**extra, "value": value},
                )
            )
    return found


def logged_scores(sample: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The scores by the scorer's name as logged; one score without a name, as in the oldest logs, is "score"."""
    old = sample.get("score")
    if isinstance(old, dict) and "scores" not in sample:
        return {"score": old}
    scores = as_object(sample.get("scores"))
    return {name: score for name, score in scores.items() if isinstance(score, dict)}


def outcome_of(sample: Mapping[str, Any], deciding: str | None) -> Outcome:
    """The outcome: the verdict of the deciding scorer, of the first where none is named.

    A sample that an error ended says nothing of the agent; one that was declared invalid is not scored. Neither is
    one of which the first thing measured is better the lower it is (toxicity): an outcome has no direction.
    """
    if sample.get("error") is not None:
        return Outcome("infrastructure_error")
    scores = logged_scores(sample)
    if not scores or sample.get("invalidation") is not None:
        return Outcome()
    name = deciding if deciding in scores else next(iter(scores))
    value = scores[name].get("value")
    grade = _grade(value)
    if grade is None and direction_of(name) == "lower_is_better":
        return Outcome(scorer=name)
    success = value if isinstance(value, bool) else None if grade not in (0.0, 1.0) else grade == 1.0
    score = finite_number(value) if grade is None else grade
    components = _components(scores)
    if score is None and not (isinstance(value, (dict, list)) and any(key.startswith(name) for key in components)):
        return Outcome(scorer=name)
    return Outcome("scored", success, score, components if len(components) > 1 else {}, name)


def _components(scores: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    found = {}
    for name, logged in scores.items():
        for key, value in _scalars(name, logged.get("value")):
            grade = _grade(value)
            number = finite_number(value) if grade is None else grade
            if number is not None:
                found[key] = number
    return found


def _grade(value: object) -> float | None:
    if not isinstance(value, str):
        return None
    return _GRADES.get(value, _GRADES.get(value.lower()) if len(value) > 1 else None)


def _scalars(name: str, value: object) -> Iterator[tuple[str, object]]:
    """The scalars of a value with their names: `scorer`, `scorer.key`, `scorer[0]`."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield f"{name}.{key}", item
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield f"{name}[{index}]", item
    else:
        yield name, value


def deciding_scorer(evaluation: Mapping[str, Any]) -> str | None:
    """The scorer that the task names as its headline; None where it names none."""
    return as_text(as_object(evaluation.get("headline_metric")).get("scorer"))
