"""Each failure on made-up histories, on both sides of its threshold, and none of them in trainings that go well."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from toys.training_history import Fields, history, kinds, learning_history, step_record, symptoms

from offline_arl.online.config import GrpoConfig, MismatchConfig
from offline_arl.online.diagnosis import KINDS, History, Kind, diagnose
from offline_arl.online.diagnosis.figures import STEPS_NEEDED, undecided
from offline_arl.online.diagnosis.setup import Setup
from offline_arl.online.records import Validation


def late(start: int = 6, **fields: Any) -> Fields:
    """These fields from a step on."""
    return lambda step: fields if step >= start else {}


def test_a_steady_training_has_no_findings() -> None:
    assert diagnose(history(40)) == []


@pytest.mark.parametrize("episodes", [64, 128, 512])
@pytest.mark.parametrize("seed", range(8))
def test_noisy_trainings_that_learn_have_no_findings(seed: int, episodes: int) -> None:
    assert diagnose(learning_history(100, seed=seed, episodes=episodes)) == []


def test_a_training_without_steps_or_with_one_has_none() -> None:
    assert diagnose(History()) == []
    assert diagnose(history(1)) == []


SIDES: list[tuple[str, str, Fields, Fields]] = [
    # (kind, symptom, just short of it, just over it)
    ("reward_variance", "idle_groups", late(idle_groups=0.87), late(idle_groups=0.93)),
    ("reward_variance", "equal_returns", late(return_spread=2e-4), late(return_spread=5e-5)),
    ("loss_oscillation", "gradient_growth", late(gradient_norm=4.9), late(gradient_norm=5.1)),
    (
        "loss_oscillation",
        "gradient_swing",
        lambda step: {"gradient_norm": 0.5 * 2.6 ** (-1) ** step},  # log10: 0.41 * sqrt(8 / 7) = 0.44
        lambda step: {"gradient_norm": 0.5 * 3.2 ** (-1) ** step},  # log10: 0.51 * sqrt(8 / 7) = 0.54
    ),
    (
        "loss_oscillation",
        "loss_swing",
        lambda step: {"loss": 0.45 * (-1) ** step},
        lambda step: {"loss": 0.55 * (-1) ** step},
    ),
    ("kl_growth", "kl_bound", late(kl=0.45), late(kl=0.55)),
    (
        "kl_growth",
        "kl_acceleration",
        lambda step: {"kl": 0.03 * 2.5 ** ((step - 1) // 5)},  # 0.03, 0.075, 0.19, 0.47
        lambda step: {"kl": 0.03 * 3.2 ** ((step - 1) // 5) if step <= 15 else 0.3},  # 0.03, 0.096, 0.31
    ),
    ("kl_growth", "gibberish", late(kl=0.6, invalid_actions=0.55), late(kl=0.6, invalid_actions=0.65)),
    ("kl_growth", "gibberish", late(kl=0.6, truncated=0.28), late(kl=0.6, truncated=0.35)),
    ("kl_growth", "gibberish", late(kl=0.3, truncated=0.5), late(kl=0.6, truncated=0.5)),
    ("data_quality", "cloning_loss", late(cloning_loss=0.45), late(cloning_loss=0.55)),
    ("environment", "infrastructure_errors", late(infrastructure_errors=12), late(infrastructure_errors=13)),
    ("length_drift", "mean_tokens_up", late(mean_tokens=78), late(mean_tokens=82)),
    ("length_drift", "mean_tokens_down", late(mean_tokens=21), late(mean_tokens=19)),
    ("length_drift", "mean_steps_up", late(mean_steps=5.8), late(mean_steps=6.2)),
    ("mismatch", "logprobs", {"mismatch": 0.045}, {"mismatch": 0.055}),
    ("mismatch", "growing", late(mismatch=9e-4), late(mismatch=1.1e-3)),
    ("mismatch", "sync_difference", {"sync_difference": 0.9}, {"sync_difference": 1.1}),
    ("mismatch", "ratio_drift", {"ratio_drift": 0.17}, {"ratio_drift": 0.19}),
    ("mismatch", "clipped", {"clipped": 0.28}, {"clipped": 0.32}),
    ("success_drop", "steps", late(success=0.45), late(success=0.35)),
]


@pytest.mark.parametrize(
    ("kind", "symptom", "short", "over"), SIDES, ids=[f"{place}-{side[1]}" for place, side in enumerate(SIDES)]
)
def test_records_on_both_sides_of_a_threshold(kind: str, symptom: str, short: Fields, over: Fields) -> None:
    assert symptom not in symptoms(history(20, short))
    found = symptoms(history(20, over))[symptom]
    assert found.kind == kind
    assert found.step <= 20


FACT_SIDES: list[tuple[str, str, Fields, Fields]] = [
    ("data_quality", "identical_episodes", {"uniform_groups": 0.85}, {"uniform_groups": 0.95}),
    ("data_quality", "empty_episodes", {"empty_episodes": 0.08}, {"empty_episodes": 0.12}),
    ("data_quality", "unjudged", {"unjudged": 0.08}, {"unjudged": 0.12}),
    ("data_quality", "few_tasks", {"tasks": list(range(20))}, {"tasks": list(range(19))}),
    ("environment", "contradictions", {"contradictions": 0.08}, {"contradictions": 0.12}),
    ("environment", "idle_successes", {"idle_successes": 0.01}, {"idle_successes": 0.03}),
    ("entropy_collapse", "entropy", late(2, entropy=0.045), late(2, entropy=0.035)),
    (
        "environment",
        "failing_type:refund",
        {"types": {"refund": [1, 1, 0, 7], "status": [8, 64, 30, 0]}},
        {"types": {"refund": [1, 0, 0, 8], "status": [8, 64, 30, 0]}},
    ),
    (
        "environment",
        "unsolved_type:refund",
        {"types": {"refund": [4, 32, 0, 0], "status": [8, 64, 31, 0]}},  # others: 0.48
        {"types": {"refund": [4, 32, 0, 0], "status": [8, 64, 33, 0]}},  # others: 0.52
    ),
]


@pytest.mark.parametrize(("kind", "symptom", "short", "over"), FACT_SIDES, ids=[side[1] for side in FACT_SIDES])
def test_facts_on_both_sides_of_a_threshold(kind: str, symptom: str, short: Fields, over: Fields) -> None:
    assert symptom not in symptoms(history(20, facts=short))
    found = symptoms(history(20, facts=over))[symptom]
    assert found.kind == kind


def test_every_finding_names_numbers_and_a_setting_or_a_place_to_look() -> None:
    changes: list[tuple[Mapping[str, Any] | Fields, Fields]] = [(over, {}) for _, _, _, over in SIDES]
    changes += [({}, over) for _, _, _, over in FACT_SIDES]
    found = [finding for fields, facts in changes for finding in diagnose(history(20, fields, facts))]
    assert {finding.kind for finding in found} == set(KINDS)
    for finding in found:
        assert any(character.isdigit() for character in finding.evidence), finding
        assert any(character.isdigit() for character in finding.threshold), finding
        assert finding.remedy
        assert "nan" not in finding.evidence


SLOWEST: list[tuple[str, str, Fields, Fields]] = [
    # (kind, its symptom that takes longest, what is wrong from the second step on, in the facts)
    ("reward_variance", "idle_groups", {"idle_groups": 0.95, "n_episodes": 16}, {}),
    ("loss_oscillation", "loss_swing", lambda step: {"loss": 0.55 * (-1) ** step}, {}),
    ("kl_growth", "kl_acceleration", lambda step: {"kl": 0.03 * 3.2 ** ((step - 1) // 5)}, {}),
    ("data_quality", "few_tasks", {}, {"tasks": list(range(19))}),
    ("environment", "always_failing", {"infrastructure_errors": 128}, {}),
    ("entropy_collapse", "entropy", {}, late(2, entropy=0.001)),
    ("length_drift", "mean_tokens_up", late(2, mean_tokens=200), {}),
    ("mismatch", "ratio_drift", {"ratio_drift": 0.3}, {}),
    ("success_drop", "steps", late(6, success=0.0), {}),
]


@pytest.mark.parametrize(("kind", "symptom", "fields", "facts"), SLOWEST, ids=[case[0] for case in SLOWEST])
def test_so_many_steps_are_needed_for_a_kind(kind: Kind, symptom: str, fields: Fields, facts: Fields) -> None:
    """A healthy verdict on fewer steps says so."""
    found = history(20, fields, facts)
    first = symptoms(found)[symptom]
    assert (first.kind, first.step) == (kind, STEPS_NEEDED[kind])
    assert kind in undecided(history(first.step - 1))
    assert kind not in undecided(history(first.step))


def test_every_kind_needs_some_steps_and_a_drop_of_success_validations() -> None:
    assert set(STEPS_NEEDED) == set(KINDS)
    assert undecided(history(20)) == {}
    assert undecided(history(20, validations=[Validation(0, 0.9, 0.7, 100)])) == {"success_drop": "a second validation"}
    assert undecided(history(20, steady_tasks=False)) == {"success_drop": "validations"}


@pytest.mark.parametrize(
    ("success", "settings", "told", "not_told"),
    [
        (0.85, {}, ["intermediate difficulty (curriculum)", "(refill_rounds)", "group_gate: return"], ["harder"]),
        (0.85, {"curriculum": {}}, ["give harder tasks"], ["(curriculum)"]),
        (0.2, {"curriculum": {"levels": 2}}, ["give easier tasks", "curriculum.levels (now 2)"], ["(curriculum)"]),
        (0.02, {"curriculum": {"levels": 2}}, ["better policy", "more curriculum.levels than 2"], []),
        (0.02, {}, ["curriculum with levels"], ["more curriculum.levels"]),
        (0.85, {"refill_rounds": 2, "group_gate": "return"}, ["refill_rounds, now 2"], ["group_gate"]),
    ],
)
def test_remedies_name_what_the_training_does_not_do_already(
    success: float, settings: dict[str, Any], told: list[str], not_told: list[str]
) -> None:
    setup = Setup.of(GrpoConfig(**settings), critic=False, replay=False)
    silent = history(8, {"idle_groups": 0.95, "success": success}, setup=setup)
    remedy = symptoms(silent)["idle_groups"].remedy
    assert all(text in remedy for text in told), remedy
    assert not any(text in remedy for text in not_told), remedy


def test_ratios_that_are_corrected_already_are_no_remedy() -> None:
    for on_mismatch, expected in (("refuse", True), ("correct", False)):
        setup = Setup.of(GrpoConfig(mismatch=MismatchConfig(on_mismatch=on_mismatch)), critic=False, replay=False)
        found = symptoms(history(8, {"mismatch": 0.1}, setup=setup))["logprobs"]
        assert ("correct the ratios" in found.remedy) is expected


def test_groups_that_agree_because_all_is_solved_are_no_failure() -> None:
    solved = history(30, {"success": 0.97, "idle_groups": 1.0, "entropy": 0.001}, {"uniform_groups": 1.0})
    assert diagnose(solved) == []
    assert "reward_variance" in kinds(history(30, {"success": 0.85, "idle_groups": 1.0}))


def test_so_many_steps_without_a_signal_are_fatal() -> None:
    silent = late(3, idle_groups=1.0)
    assert symptoms(history(11, silent)).get("no_signal") is None
    found = symptoms(history(12, silent))["no_signal"]
    assert (found.severity, found.step) == ("fatal", 12)
    assert symptoms(history(5, silent), dead_steps=3)["no_signal"].step == 5
    assert "no_signal" not in symptoms(history(60, silent), dead_steps=None)
    assert symptoms(history(40, silent), dead_steps=30)["no_signal"].step == 32  # more than rules look back otherwise
    broken = {7: {"idle_groups": 0.9}}
    assert symptoms(history(20, lambda step: broken.get(step, {"idle_groups": 1.0})))["no_signal"].step == 17


def test_a_loss_that_is_no_number_is_fatal_where_there_was_something_to_learn() -> None:
    for field in ("loss", "gradient_norm"):
        found = symptoms(history(3, late(3, **{field: math.nan})))["not_finite"]
        assert (found.severity, found.step) == ("fatal", 3)
    idle = {"loss": math.nan, "gradient_norm": math.nan, "entropy": math.nan, "idle_groups": 1.0}
    assert "not_finite" not in symptoms(history(3, idle))


def test_gibberish_is_fatal_where_half_of_the_success_is_lost_for_as_many_steps() -> None:
    for success, severities in ((0.35, ["warning"]), (0.2, ["warning", "fatal"])):
        found = diagnose(history(20, late(kl=1.5, invalid_actions=2.0, success=success)))
        gibberish = [finding for finding in found if finding.symptom == "gibberish"]
        assert [finding.severity for finding in gibberish] == severities
        assert all("kl_coefficient" in finding.remedy for finding in gibberish)
    # Success of ten steps: (2 * 0.6 + 8 * 0.2) / 10 = 0.28 at step 13 is the first below half of 0.6.
    assert gibberish[-1].step == 13
    back = history(20, lambda step: {"kl": 1.5, "invalid_actions": 2.0, "success": 0.1} if 2 < step < 8 else {})
    assert symptoms(back)["gibberish"].severity == "warning"


def test_a_kl_with_which_success_rises_is_what_learning_costs() -> None:
    for success, expected in ((0.64, {"kl_growth": 11}), (0.66, {})):
        found = history(30, late(9, kl=0.9, success=success))
        found.records[3:8] = [replace(record, success=success) for record in found.records[3:8]]
        assert kinds(found) == expected


def test_gibberish_without_a_reference_takes_two_signs_or_one_and_a_loss_of_success() -> None:
    def broken(**fields: Any) -> History:
        return history(12, lambda step: {"kl": None} | (fields if step > 5 else {}))

    assert "gibberish" not in symptoms(broken(invalid_actions=2.0))
    assert "gibberish" in symptoms(broken(invalid_actions=2.0, truncated=0.6))
    assert "gibberish" in symptoms(broken(invalid_actions=2.0, success=0.2))


def test_what_fillers_show_in_a_step_without_a_signal_counts_for_nothing() -> None:
    """In such a step, KL, entropy and loss are those of the tokens that stand for the episodes."""
    fillers = {"kl": 1e6, "entropy": 5.0, "loss": 90.0, "gradient_norm": 0.0, "idle_groups": 1.0}
    found = history(20, lambda step: fillers if step % 2 else {}, {"entropy": None})
    assert diagnose(found) == []


def test_a_policy_that_was_sure_from_the_start_has_no_entropy_to_lose() -> None:
    assert diagnose(history(20, facts=lambda step: {"entropy": 0.015 if step == 1 else 1e-4})) == []


def test_attempts_that_are_alike_because_entropy_collapsed_are_not_the_samplers_fault() -> None:
    alike: dict[str, Any] = {"uniform_groups": 1.0}
    collapsed = history(20, facts=lambda step: alike | {"entropy": 1e-3} if step > 5 else {})
    assert set(kinds(collapsed)) == {"entropy_collapse"}
    assert set(kinds(history(20, facts=alike))) == {"data_quality"}


def test_length_may_change_more_where_success_rises_with_it_or_tasks_change() -> None:
    longer = late(mean_tokens=100.0)
    rising = late(mean_tokens=100.0, success=0.75)
    assert "mean_tokens_up" in symptoms(history(20, longer))
    assert "mean_tokens_up" not in symptoms(history(20, rising))
    assert "mean_tokens_up" not in symptoms(history(20, longer, steady_tasks=False))
    assert "mean_tokens_up" in symptoms(history(20, late(mean_tokens=170.0, success=0.75)))


def test_one_word_more_is_no_drift() -> None:
    assert diagnose(history(20, lambda step: {"mean_tokens": 2.0 if step < 3 else 6.0})) == []
    assert diagnose(history(20, lambda step: {"mean_steps": 1.0 if step < 3 else 2.5})) == []


def test_success_of_steps_drops_by_more_than_the_draw_of_tasks_gives() -> None:
    """With four tasks a step, (0.6 * 0.4 * (1 / 20 + 1 / 40)) ** 0.5 = 0.13 is the spread, and 0.4 the bound."""
    few = {"types": {"refund": [2, 16, 8, 0], "status": [2, 16, 8, 0]}}
    assert diagnose(history(20, late(success=0.25), few)) == []
    assert kinds(history(20, late(success=0.15), few)) == {"success_drop": 15}
    assert diagnose(history(20, late(success=0.2), steady_tasks=False)) == []


def test_with_validations_they_alone_tell_a_drop_on_the_same_tasks() -> None:
    for sampled, expected in ((0.56, []), (0.54, [20])):
        found = history(20, late(success=0.2))
        found.validations = [
            Validation(0, 0.9, 0.7, 400, full=True),
            Validation(0, 0.9, 0.4, 100),
            Validation(20, 0.9, 0.3, 100),
            Validation(20, 0.9, sampled, 400, full=True),
        ]
        assert [finding.step for finding in diagnose(found)] == expected
    found.validations[-1] = Validation(20, 0.7, 0.7, 400, full=True)
    assert symptoms(found)["greedy"].kind == "success_drop"


def test_a_harness_that_fails_is_the_environments_and_not_the_rewards() -> None:
    away = {"infrastructure_errors": 128, "idle_groups": 1.0, "success": math.nan, "mean_return": math.nan}
    missing = {"entropy": None, "uniform_groups": 0.0, "types": {"refund": [16, 0, 0, 128]}}
    found = history(12, away, missing)
    assert set(kinds(found)) == {"environment"}
    assert symptoms(found)["always_failing"].step == 10
    assert symptoms(found)["infrastructure_errors"].step == 1


def test_a_type_that_is_hard_but_solved_now_and_then_is_no_bug() -> None:
    rare = {"types": {"refund": [8, 64, 1, 0], "status": [8, 64, 60, 0]}}
    assert diagnose(history(20, facts=rare)) == []


def test_without_facts_of_episodes_identical_ones_are_told_by_the_records() -> None:
    same = {"identical_episodes": 1.0, "idle_groups": 1.0}
    found = history(6, same)
    found.facts = [{} for _ in found.facts]
    assert "identical_episodes" in symptoms(found)
    assert step_record(1).identical_episodes < 0.99


def test_steps_of_few_episodes_are_averaged_over_twice_as_many() -> None:
    found = symptoms(history(20, {"idle_groups": 0.95, "n_episodes": 16}))
    assert found["idle_groups"].step == 10


def test_a_finding_is_told_once_and_again_when_it_becomes_fatal() -> None:
    found = diagnose(history(30, {"idle_groups": 1.0}))
    assert [(finding.symptom, finding.step) for finding in found] == [("idle_groups", 5), ("no_signal", 10)]
