"""Labels for KTO, and the balance of its classes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pair_examples import attempt, look, result, say

from offline_arl.datasets.pairs.judgements import thumb
from offline_arl.datasets.pairs.labels import Labeled, labels_of, recommended_weights
from offline_arl.errors import UsageError
from offline_arl.rewards.preferences import UnpairedConfig
from offline_arl.trajectories.schema import Outcome, Score, Trajectory


def labels(trajectory: Trajectory, **settings: Any) -> tuple[list[Labeled], Counter[str]]:
    counts: Counter[str] = Counter()
    return list(labels_of(trajectory, UnpairedConfig(**settings), counts)), counts


def test_an_outcome_labels_the_attempt_from_its_first_step_on() -> None:
    for success in (True, False):
        (label,), _ = labels(attempt("one", look("a"), result("found"), say("yes"), success=success))
        assert (label.label, label.source, label.side.start, len(label.side.messages)) == (success, "outcome", 2, 5)


def test_crashes_and_unscored_attempts_have_no_label() -> None:
    crashed = attempt("one", say("yes"), outcome=Outcome("infrastructure_error", success=False))
    assert labels(crashed) == ([], Counter(infrastructure_error=1))
    assert labels(attempt("one", say("yes"))) == ([], Counter(unlabeled=1))


@pytest.mark.parametrize(
    ("score", "said"),
    [
        (Score("anything", label="thumbs_up"), True),
        (Score("reaction", 0.0, label="👎🏽"), False),
        (Score("user-feedback", 1.0, scorer_kind="human"), True),
        (Score("user_thumb", -1.0, scorer_kind="human"), False),
        (Score("user-feedback", 0.5, scorer_kind="human"), None),  # a rating
        (Score("user-feedback", 1.0, scorer_kind="model"), None),  # nobody's thumb
        (Score("accuracy", 1.0, scorer_kind="human"), None),
        (Score("dislike", 1.0, scorer_kind="human", direction="lower_is_better"), None),
    ],
)
def test_what_a_thumb_is(score: Score, said: bool | None) -> None:
    assert thumb(score) is said


def test_a_thumb_for_a_message_labels_that_step_and_disagreement_nothing() -> None:
    up, down = (Score("user-feedback", value, scorer_kind="human", message_index=2) for value in (1.0, 0.0))
    (label,), _ = labels(attempt("one", look("a"), result("found"), say("yes"), scores=(up,)))
    assert (label.label, label.source, label.side.start, len(label.side.messages)) == (True, "thumb", 2, 3)
    found, counts = labels(attempt("one", look("a"), scores=(up, down)))
    assert (found, counts) == ([], Counter(contradictory_labels=1, unlabeled=1))
    stray = Score("user-feedback", 1.0, scorer_kind="human", message_index=1)
    assert labels(attempt("one", say("yes"), scores=(stray,)))[1]["label_of_no_step"] == 1


def test_a_score_labels_by_its_threshold_and_direction() -> None:
    rated = attempt("one", say("yes"), scores=(Score("quality", 0.5),))
    settings: dict[str, Any] = {"sources": ("score",), "score": "quality", "threshold": 0.5}
    for direction, label in (("higher_is_better", True), ("lower_is_better", True)):
        assert labels(rated, direction=direction, **settings)[0][0].label is label
    low = attempt("one", say("yes"), scores=(Score("quality", 0.25, direction="higher_is_better"),))
    assert labels(low, **settings)[0][0].label is False
    with pytest.raises(UsageError, match="does not say whether more is better"):
        labels(rated, **settings)
    with pytest.raises(UsageError, match="need its name and a threshold"):
        labels(rated, sources=("score",))


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_recommended_weights_balance_the_classes_and_touch_one_of_them(good: int, bad: int) -> None:
    weights = recommended_weights(good, bad)
    ratio = weights.desirable * good / (weights.undesirable * bad)
    assert 1 - 1e-9 <= ratio <= 4 / 3 + 1e-9
    assert min(weights) == 1.0


def test_the_weights_of_the_airline_logs() -> None:
    # 116 / 84, so that both classes weigh the same.
    assert recommended_weights(84, 116) == (pytest.approx(1.38095, abs=1e-5), 1.0)
    assert recommended_weights(10, 0) == (1.0, 1.0)
