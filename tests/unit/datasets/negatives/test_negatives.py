"""Tool-call negatives: how good steps go wrong, and who proves it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from pair_examples import attempt, look, result, say, user

from offline_arl.datasets.negatives import (
    Candidate,
    Judge,
    NegativeMaker,
    Verdict,
    call_pressure,
    is_good_step,
    log_judge,
    schema_judge,
)
from offline_arl.datasets.pairs.pair import Pair
from offline_arl.rewards.preferences import NegativesConfig
from offline_arl.trajectories.schema import Message, MessageError, Outcome, Trajectory, tool_call

CONVICTED = Verdict("jury", "because")


def made(
    trajectory: Trajectory, *kinds: str, judges: Sequence[Judge] | None = None, **settings: Any
) -> tuple[list[Pair], Counter[str]]:
    counts: Counter[str] = Counter()
    config = NegativesConfig.model_validate({"kinds": kinds, "per_step": 10, **settings})
    return NegativeMaker(config, judges)([trajectory], counts), counts


def rejected(pair: Pair) -> Message:
    return pair.rejected.messages[-1]


def test_malformed_calls_differ_from_the_good_one_in_one_way_each() -> None:
    trajectory = attempt("a", look("x7"), result("found"), say("yes"), success=True)
    pairs, _ = made(trajectory, "wrong_type", "missing_argument", "unknown_tool")
    found = {pair.evidence["negative"]: rejected(pair).tool_calls[0] for pair in pairs}
    assert not isinstance(found["wrong_type"].arguments["id"], str)
    assert (found["missing_argument"].name, found["missing_argument"].arguments) == ("look", {})
    assert found["unknown_tool"].name != "look"
    assert found["unknown_tool"].arguments == {"id": "x7"}
    for pair in pairs:
        assert pair.chosen.messages[-1] == trajectory.messages[2]
        assert pair.rejected.messages[:-1] == pair.chosen.messages[:-1]
        assert (pair.kind, pair.scorer, pair.margin, pair.weight) == ("negative", "schema", 1.0, 1.0)
        assert msgspec.json.decode(rejected(pair).tool_calls[0].arguments_raw) == rejected(pair).tool_calls[0].arguments


@pytest.mark.parametrize(
    "trajectory",
    [
        attempt("failed", look("x7"), result("found"), say("no"), success=False),
        attempt("unscored", look("x7"), result("found"), say("no")),
        attempt("crashed", look("x7"), outcome=Outcome("infrastructure_error", success=True)),
        attempt("refused", look("x7"), result('{"error": "no such thing"}'), success=True),
        attempt("malformed", Message("assistant", tool_calls=[tool_call("look", {"id": 7})]), success=True),
        attempt("toolless", look("x7"), result("found"), success=True, contexts=[]),
    ],
    ids=lambda trajectory: trajectory.trajectory_id,
)
def test_only_good_steps_with_a_schema_make_malformed_negatives(trajectory: Trajectory) -> None:
    assert made(trajectory, "wrong_type", "missing_argument", "unknown_tool")[0] == []


def test_unscored_attempts_are_a_source_on_request() -> None:
    assert len(made(attempt("a", look("x7"), result("found")), "unknown_tool", source="all")[0]) == 1


def test_what_no_judge_convicts_is_not_used() -> None:
    trajectory = attempt("a", look("x7"), result("fine"), say("yes"), success=True)
    pairs, counts = made(trajectory, "missing_call", "wrong_order", "needless_call", judges=())
    assert pairs == []
    assert counts["negative_without_proof"] > 0
    everything, _ = made(trajectory, "missing_call", "needless_call", judges=(lambda candidate: CONVICTED,))
    assert {pair.scorer for pair in everything} == {"jury"}


def test_an_answer_that_names_what_a_call_would_have_told_lacks_the_call() -> None:
    trajectory = attempt("a", look("x7"), result("It is in room b42."), say("It is in b42."), success=True)
    (pair,), _ = made(trajectory, "missing_call")
    assert (rejected(pair).text, pair.chosen.start, pair.scorer) == ("It is in b42.", 2, "log")
    assert pair.evidence["why"] == "'b42' is not known before the answer to a later step"
    # What the agent says first, it may have worked out.
    computed = attempt("b", look("x7"), say("So it is b42."), result("It is in room b42."), success=True)
    assert made(computed, "missing_call")[0] == []
    told = attempt("c", user("Is it in b42?"), look("x7"), result("It is in room b42."), say("In b42."), success=True)
    assert made(told, "missing_call")[0] == []


def test_a_call_before_the_one_that_it_needs_is_in_the_wrong_order() -> None:
    trajectory = attempt(
        "a", look("x7"), result("Ask for k99."), look("k99", id="c2"), result("yes", id="c2"), say("done"), success=True
    )
    (pair,), _ = made(trajectory, "wrong_order")
    assert (rejected(pair).tool_calls[0].arguments, pair.chosen.start, pair.margin) == ({"id": "k99"}, 2, 0.75)


def test_a_value_of_another_turn_is_wrong_where_it_cannot_be_known_yet() -> None:
    trajectory = attempt(
        "a", user("See x17."), look("x17"), result("Ask for k99."), look("k99", id="c2"), result("yes", id="c2"),
        success=True,
    )  # fmt: skip
    early, repeated = made(trajectory, "value_from_another_turn")[0]
    assert (early.chosen.start, rejected(early).tool_calls[0].arguments) == (3, {"id": "k99"})
    assert (repeated.chosen.start, rejected(repeated).tool_calls[0].arguments) == (5, {"id": "x17"})
    assert repeated.evidence["why"] == "the same call was just answered"


def test_a_call_that_was_just_answered_is_needless_and_needs_its_counterweight() -> None:
    trajectory = attempt("a", look("x7"), result("It is in room b42."), say("It is in b42."), success=True)
    alone, counts = made(trajectory, "needless_call")
    assert (alone, counts["negative_that_discourages_calls"]) == ([], 1)
    pairs, _ = made(trajectory, "missing_call", "needless_call")
    missing, needless = pairs
    assert rejected(needless).tool_calls[0].arguments == {"id": "x7"}
    assert needless.evidence["why"] == "the same call was just answered"
    assert (call_pressure(missing), call_pressure(needless)) == (1, -1)
    assert sum(pair.weight * call_pressure(pair) for pair in pairs) == 0.5


def test_somebody_who_spoke_since_may_want_the_call_again() -> None:
    again = attempt("a", look("x7"), result("fine"), user("And now?"), say("The same."), success=True)
    pairs, _ = made(again, "needless_call", judges=(log_judge,), grades={"needless_call": 0.0})
    assert pairs == []


def test_a_call_that_was_refused_wherever_it_stands_is_wrong() -> None:
    refusal = msgspec.structs.replace(result("none", id="c1"), error=MessageError("not_found", "no"))
    trajectory = attempt("a", look("x71"), refusal, look("x17", id="c2"), result("yes", id="c2"), success=True)
    (pair,), _ = made(trajectory, "value_from_another_turn")
    assert (pair.chosen.start, rejected(pair).tool_calls[0].arguments) == (4, {"id": "x71"})
    again = (user("And the other?"), look("x17", id="c2"), result("y", id="c2"))
    accepted = attempt("b", look("x71"), result("y"), *again, success=True)
    assert made(accepted, "value_from_another_turn")[0] == []


def test_rare_kinds_come_first_and_choices_depend_on_the_attempt_alone() -> None:
    family = [attempt(f"a{number}", look("x7"), result("found"), success=True) for number in range(30)]
    config = NegativesConfig(kinds=("wrong_type", "missing_argument", "unknown_tool"))
    maker = NegativeMaker(config)
    pairs = maker(family, Counter())
    assert maker.made == {"wrong_type": 10, "missing_argument": 10, "unknown_tool": 10}
    again = NegativeMaker(config)(family, Counter())
    assert [rejected(pair) for pair in pairs] == [rejected(pair) for pair in again]


def test_the_schema_judge_says_nothing_about_what_it_does_not_know() -> None:
    trajectory = attempt("a", look("x7"), success=True)
    unknown = attempt("b", look("x7"), success=True, contexts=[])
    wrong = Message("assistant", tool_calls=[tool_call("gaze", {})])
    assert schema_judge(Candidate(unknown, 2, wrong, 3)) is None
    assert schema_judge(Candidate(trajectory, 2, look("x8"), 3)) is None
    verdict = schema_judge(Candidate(trajectory, 2, wrong, 3))
    assert verdict == ("schema", "unknown_tool: no tool named 'gaze'; available: look")
    assert is_good_step(trajectory, 2)
