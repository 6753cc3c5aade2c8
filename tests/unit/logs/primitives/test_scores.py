"""Values, labels and directions of scores."""

from __future__ import annotations

import pytest

from offline_arl.logs.primitives.scores import direction_of, make_score, scorer_kind_of

HIGHER = "correctness helpfulness reward thumbs thumbs_up user-feedback score quality_score is_correct exact_match F1"
LOWER = "toxicity hallucination latency_ms cost error_rate refusal bias thumbs_down incorrect negative_feedback"


@pytest.mark.parametrize("name", [*HIGHER.split(), "answerRelevancy", "non_toxic", "error-free", "error_recovery"])
def test_more_is_better(name: str) -> None:
    assert direction_of(name) == "higher_is_better"


@pytest.mark.parametrize("name", [*LOWER.split(), "time_to_first_token", "attack_success_rate", "harmful_compliance"])
def test_less_is_better(name: str) -> None:
    assert direction_of(name) == "lower_is_better"


@pytest.mark.parametrize("name", ["", "tau_bench", "completion_tokens", "answer_length", "follow_up", "judge", "👍"])
def test_a_name_that_does_not_tell_gives_no_direction(name: str) -> None:
    assert direction_of(name) == "unknown"


def test_values_of_any_type() -> None:
    assert make_score("passed", True).value == 1.0
    assert make_score("passed", False).value == 0.0
    assert make_score("reward", 7).value == 7.0
    assert (make_score("tone", "polite").value, make_score("tone", "polite").label) == (None, "polite")
    assert make_score("tone", 2, label="polite").label == "polite"
    judged = make_score("judge", {"score": 0.5, "label": "half", "explanation": "why"})
    assert (judged.value, judged.label, judged.comment) == (0.5, "half", "why")
    assert judged.metadata == {"value": {"score": 0.5, "label": "half", "explanation": "why"}}


def test_no_verdict_is_not_zero() -> None:
    assert make_score("correctness", None).value is None
    assert make_score("correctness", None).metadata == {}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400])
def test_numbers_that_are_none_are_kept_as_text(value: float) -> None:
    score = make_score("reward", value)
    assert score.value is None
    assert score.metadata == {"value": str(value)}


def test_a_correction_is_json_text() -> None:
    assert make_score("answer", None, correction={"a": "é"}).correction == '{"a":"é"}'
    assert make_score("answer", None, correction="yes").correction == '"yes"'


def test_scorers_of_several_platforms() -> None:
    kinds = {name: scorer_kind_of(name) for name in ("ANNOTATION", "EVAL", "API", "app", "LLM_JUDGE", "CODE")}
    assert kinds == {
        "ANNOTATION": "human",
        "EVAL": "model",
        "API": "unknown",
        "app": "human",
        "LLM_JUDGE": "model",
        "CODE": "code",
    }
    assert scorer_kind_of(None) == "unknown"
