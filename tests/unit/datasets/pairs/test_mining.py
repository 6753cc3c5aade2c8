"""Which pairs are made of attempts, and on what evidence."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from pair_examples import attempt, look, result, say, user

from offline_arl.datasets.pairs.mining import families_of, mine
from offline_arl.datasets.pairs.pair import Pair
from offline_arl.rewards.components import RewardConfig
from offline_arl.rewards.preferences import PairsConfig
from offline_arl.trajectories.schema import Branch, Outcome, Score, Source, Trajectory, text_message


def mined(*family: Trajectory, q_values: Any = None, **settings: Any) -> tuple[list[Pair], Counter[str]]:
    counts: Counter[str] = Counter()
    return mine(family, PairsConfig(**settings), counts, q_values=q_values), counts


def names(pair: Pair) -> tuple[str, str]:
    return pair.chosen.trajectory.trajectory_id, pair.rejected.trajectory.trajectory_id


def texts(pair: Pair) -> tuple[list[str], list[str]]:
    """What either side says from its start on."""
    sides = [[message.text for message in side.messages[side.start :]] for side in (pair.chosen, pair.rejected)]
    return sides[0], sides[1]


GOOD = attempt("good", look("a"), result("found"), say("yes"), success=True)
BAD = attempt("bad", say("no"), success=False)


def test_each_success_is_paired_with_each_failure_of_its_task() -> None:
    other = attempt("other", say("maybe"), success=False)
    pairs, counts = mined(GOOD, BAD, other, attempt("unknown", say("hm")), pair_kinds=("trajectory",))
    assert [names(pair) for pair in pairs] == [("good", "bad"), ("good", "other")]
    assert [(pair.kind, pair.margin, pair.scorer) for pair in pairs] == [("trajectory", 1.0, "judge")] * 2
    assert (counts["tie"], counts["compared_groups"], counts["mixed_groups"]) == (1, 1, 1)


def test_crashes_and_other_tasks_are_never_a_side() -> None:
    crashed = attempt("crashed", say("oops"), outcome=Outcome("infrastructure_error", success=False))
    elsewhere = attempt("elsewhere", say("no"), success=False, task_id="other")
    assert mined(GOOD, crashed)[0] == []
    assert [len(family) for family in families_of([GOOD, elsewhere, BAD], PairsConfig())] == [2, 1]
    assert mined(GOOD, elsewhere)[0] == []


def test_what_both_sides_share_is_part_of_neither() -> None:
    better = attempt("better", look("a"), result("found"), say("yes"), success=True)
    worse = attempt("worse", look("a"), result("found"), say("no"), success=False)
    (pair,), _ = mined(better, worse, pair_kinds=("trajectory",))
    assert (pair.chosen.start, pair.rejected.start) == (4, 4)
    assert texts(pair) == (["yes"], ["no"])


def test_attempts_that_do_the_same_are_no_pair_whatever_became_of_them() -> None:
    lucky = attempt("lucky", look("a", id="x"), result("found", id="x"), say("yes"), success=False)
    pairs, counts = mined(GOOD, lucky)
    assert (pairs, counts["equal_sides"]) == ([], 1)
    stopped = attempt("stopped", look("a"), success=False)
    pairs, counts = mined(GOOD, stopped)
    assert (pairs, counts["one_side_continues_the_other"]) == ([], 1)


def test_returns_pair_attempts_that_success_cannot_tell() -> None:
    clumsy = attempt("clumsy", look("a"), result("found"), look("a"), result("found"), say("yes"), success=True)
    settings: dict[str, Any] = {
        "pair_kinds": ("trajectory",), "compare_by": "return", "rewards": RewardConfig(step_cost=0.125),
    }  # fmt: skip
    assert mined(GOOD, clumsy, pair_kinds=("trajectory",))[0] == []
    (pair,), _ = mined(GOOD, clumsy, **settings)
    # One step less: 1 - 2/8 against 1 - 3/8.
    assert (names(pair), pair.chosen_score, pair.rejected_score, pair.margin) == (
        ("good", "clumsy"),
        0.75,
        0.625,
        0.125,
    )
    pairs, counts = mined(GOOD, clumsy, min_margin=0.125, **settings)
    assert (pairs, counts["below_margin"]) == ([], 1)


def test_the_largest_margins_stay_where_a_task_has_too_many_pairs() -> None:
    family = [
        attempt(f"a{number}", say(f"answer {number}"), outcome=Outcome("scored", score=number / 4))
        for number in range(5)
    ]
    settings: dict[str, Any] = {"pair_kinds": ("trajectory",), "compare_by": "return", "max_pairs_per_task": 3}
    pairs, counts = mined(*family, **settings)
    assert sorted((pair.margin for pair in pairs), reverse=True) == [1.0, 0.75, 0.75]
    assert counts["over_the_task_limit"] == 7


def test_a_step_pair_is_the_first_difference_alone() -> None:
    better = attempt("better", look("a"), result("found"), look("b"), result("more"), say("yes"), success=True)
    worse = attempt("worse", look("a", id="other"), result("found", id="other"), say("no"), success=False)
    (pair,), counts = mined(better, worse, pair_kinds=("step",))
    assert (names(pair), pair.chosen.start, pair.margin) == (("better", "worse"), 4, 1.0)
    assert [message.tool_calls[0].arguments for message in pair.chosen.messages[4:]] == [{"id": "b"}]
    assert texts(pair)[1] == ["no"]
    assert counts["shared_states"] == 1
    # The rejected step stands after the very messages of the chosen one, call ids included.
    assert pair.rejected.messages[:4] == pair.chosen.messages[:4]


def test_a_step_is_worth_the_mean_of_the_attempts_that_took_it() -> None:
    family = [
        attempt("a1", look("a"), result("x"), say("yes"), success=True),
        attempt("a2", look("a"), result("x"), say("no"), success=False),
        attempt("b1", say("sorry"), success=False),
        attempt("c1", look("c"), result("z"), say("yes"), success=True),
    ]
    pairs, _ = mined(*family, pair_kinds=("step",))
    found = {(pair.chosen.start, *names(pair)): (pair.chosen_score, pair.rejected_score) for pair in pairs}
    assert found == {
        (2, "a1", "b1"): (0.5, 0.0),
        (2, "c1", "a2"): (1.0, 0.5),
        (2, "c1", "b1"): (1.0, 0.0),
        (4, "a1", "a2"): (1.0, 0.0),
    }
    by_names = {(pair.chosen.start, *names(pair)): pair.evidence for pair in pairs}
    assert by_names[2, "a1", "b1"] == {"chosen_attempts": 2, "rejected_attempts": 1}


def test_where_the_world_answers_differently_there_is_no_step_pair() -> None:
    one = attempt("one", look("a"), result("found"), say("yes"), success=True)
    other = attempt("other", look("a"), result("gone"), say("no"), success=False)
    pairs, counts = mined(one, other, pair_kinds=("step",))
    assert (pairs, counts["shared_states"], counts["mixed_groups"]) == ([], 0, 1)
    asked = attempt("asked", say("yes"), success=True)
    differently = Trajectory(
        "d", [text_message("system", "Be brief."), user("Look!"), say("no")], Source("test"), task_id="task",
        outcome=Outcome("scored", success=False), contexts=asked.contexts,
    )  # fmt: skip
    assert mined(asked, differently, pair_kinds=("step",))[0] == []


def test_other_tools_make_another_state() -> None:
    without = msgspec.structs.replace(BAD, contexts=[])
    assert mined(GOOD, without, pair_kinds=("step",))[0] == []


def test_demonstrations_and_untrained_messages_are_no_steps() -> None:
    shown = attempt("shown", text_message("assistant", "no", kind="demonstration"), success=False)
    kept = attempt("kept", say("no", trainable=False), success=False)
    for other in (shown, kept):
        assert mined(GOOD, other, pair_kinds=("trajectory", "step"))[0] == []


def test_a_critic_tells_steps_that_outcomes_cannot() -> None:
    unknown = [attempt("one", look("a")), attempt("other", say("no"))]
    q_values = {("one", 0): 0.75, ("other", 0): 0.25}
    (pair,), _ = mined(*unknown, pair_kinds=("step", "value"), q_values=q_values)
    assert (pair.kind, names(pair), pair.margin, pair.scorer) == ("value", ("one", "other"), 0.5, "critic")
    pairs, counts = mined(*unknown, pair_kinds=("value",), q_values=q_values, value_margin=0.5)
    assert (pairs, counts["below_value_margin"]) == ([], 1)
    # Outcomes come first, even against the critic.
    (pair,), _ = mined(GOOD, BAD, pair_kinds=("step", "value"), q_values={("good", 0): 0.0, ("bad", 0): 1.0})
    assert (pair.kind, names(pair)) == ("step", ("good", "bad"))


class TestBranches:
    ORIGIN = attempt("origin", say("first"), task_id=None)

    @staticmethod
    def branch(*messages: Any, relation: str | None, at: int = 2, **fields: Any) -> Trajectory:
        metadata = {} if relation is None else {"relation": relation}
        return attempt("branch", *messages, task_id=None, branch=Branch("origin", at), metadata=metadata, **fields)

    @pytest.mark.parametrize(("relation", "kind"), [("choice", "choice"), ("regenerated", "regeneration")])
    def test_the_answer_that_was_gone_on_with_is_chosen(self, relation: str, kind: str) -> None:
        branch = self.branch(say("second"), user("thanks"), say("welcome"), relation=relation)
        (pair,), _ = mined(self.ORIGIN, branch)
        assert (pair.kind, names(pair), pair.margin, pair.scorer) == (kind, ("branch", "origin"), None, "kept")
        assert texts(pair) == (["second"], ["first"])

    def test_where_both_or_neither_were_gone_on_with_nobody_knows(self) -> None:
        neither = self.branch(say("second"), relation="regenerated")
        pairs, counts = mined(self.ORIGIN, neither)
        assert (pairs, counts["regeneration_without_a_favorite"]) == ([], 1)

    def test_outcomes_tell_more_than_what_was_kept(self) -> None:
        origin = attempt("origin", say("first"), success=True, task_id=None)
        branch = self.branch(say("second"), user("thanks"), say("welcome"), relation="choice", success=False)
        (pair,), _ = mined(origin, branch, pair_kinds=("choice", "step"))
        assert (pair.kind, names(pair), pair.margin) == ("choice", ("origin", "branch"), 1.0)

    def test_of_a_fork_the_branch_that_was_gone_on_with_last_is_chosen(self) -> None:
        origin = attempt(
            "origin", say("first"), user("go on", timestamp="2026-01-01T10:00:00Z"), say("on"), task_id=None
        )
        messages = (say("second"), user("go on", timestamp="2026-01-01T12:00:00+01:00"), say("on"))
        (pair,), _ = mined(origin, self.branch(*messages, relation=None))
        assert (pair.kind, names(pair), texts(pair)) == ("fork", ("branch", "origin"), (["second"], ["first"]))

    def test_the_answer_to_a_request_that_was_taken_back_is_rejected_under_the_new_one(self) -> None:
        origin = attempt(
            "origin", say("Which one?"), user("The red.", timestamp="2026-01-01T10:00:00Z"), say("Here is red."),
            task_id=None,
        )  # fmt: skip
        branch = self.branch(
            say("Which one?"), user("No, blue.", timestamp="2026-01-01T10:05:00Z"), say("Here is blue."),
            user("Thanks."), relation=None, at=3,
        )  # fmt: skip
        (pair,), _ = mined(origin, branch)
        assert (pair.kind, names(pair), texts(pair)) == (
            "fork",
            ("branch", "origin"),
            (["Here is blue."], ["Here is red."]),
        )
        assert [message.text for message in pair.rejected.messages[2:4]] == ["Which one?", "No, blue."]
        assert pair.evidence == {"rewritten_request": True, "request_taken_back": "The red."}

    def test_without_times_nobody_knows_which_request_stands(self) -> None:
        origin = attempt("origin", say("Which?"), user("Red."), say("Red it is."), task_id=None)
        branch = self.branch(say("Which?"), user("Blue."), say("Blue it is."), relation=None, at=3)
        pairs, counts = mined(origin, branch)
        assert (pairs, counts["fork_without_a_favorite"]) == ([], 1)


def preference(value: float, comparison: str = "c", **fields: Any) -> Score:
    settings = {"direction": "higher_is_better", "comparison_id": comparison, "scorer_kind": "human"}
    return Score("preference", value, **{**settings, **fields})


def test_what_was_compared_is_paired_across_tasks() -> None:
    one = attempt("one", say("a"), task_id="t1", scores=(preference(0.0),))
    other = attempt("other", say("b"), task_id="t2", scores=(preference(1.0),))
    ((left, right),) = [family for family in families_of([one, BAD, other], PairsConfig()) if len(family) > 1]
    (pair,), _ = mined(left, right)
    assert (pair.kind, names(pair), pair.margin, pair.scorer) == ("comparison", ("other", "one"), 1.0, "preference")
    assert pair.evidence == {"comparison": "c", "scorer_kind": "human"}


def test_lower_is_better_turns_a_comparison_round_and_ties_are_counted() -> None:
    lower = {"direction": "lower_is_better"}
    one = attempt("one", say("a"), task_id=None, scores=(preference(0.25, **lower), preference(1.0, "tied")))
    other = attempt("other", say("b"), task_id=None, scores=(preference(0.5, **lower), preference(1.0, "tied")))
    (pair,), counts = mined(one, other)
    assert (names(pair), pair.margin, counts["comparison_tie"]) == (("one", "other"), 0.25, 1)


@pytest.mark.parametrize(
    ("correction", "wanted"),
    [
        ('"yes"', ("yes", [])),
        ('{"output": "yes"}', ("yes", [])),
        ('{"role": "assistant", "content": "yes"}', ("yes", [])),
        ('[{"role": "user", "content": "?"}, {"role": "assistant", "content": [{"type": "text", "text": "yes"}]}]',
         ("yes", [])),
        ('{"content": null, "tool_calls": [{"function": {"name": "look", "arguments": "{\\"id\\": \\"b\\"}"}}]}',
         ("", [("look", {"id": "b"})])),
    ],
)  # fmt: skip
def test_a_correction_is_chosen_over_the_step_that_it_corrects(correction: str, wanted: tuple[str, Any]) -> None:
    score = Score("edit", correction=correction, scorer="ann", scorer_kind="human")
    (pair,), _ = mined(attempt("one", look("a"), result("found"), say("no"), task_id=None, scores=(score,)))
    assert (pair.kind, pair.scorer, pair.margin) == ("correction", "edit", None)
    chosen = pair.chosen.messages[-1]
    assert (chosen.text, [(call.name, call.arguments) for call in chosen.tool_calls]) == wanted
    assert texts(pair)[1] == ["no"]
    assert pair.evidence == {"chosen_is_written_by": "scorer", "scorer": "ann", "scorer_kind": "human"}


@pytest.mark.parametrize("correction", ["0.5", '{"score": 1}', "null", '{"output": {"score": 1}}', '""', "[]"])
def test_what_holds_no_answer_corrects_nothing(correction: str) -> None:
    scores = (Score("edit", correction=correction),)
    pairs, counts = mined(attempt("one", say("no"), task_id=None, scores=scores))
    assert (pairs, counts["correction_without_an_answer"]) == ([], 1)


def test_a_correction_of_an_earlier_step_stands_there_and_an_approval_is_no_pair() -> None:
    scores = (Score("edit", correction='"ask"', message_index=2), Score("edit", correction='"no"'))
    (pair,), counts = mined(attempt("one", look("a"), result("found"), say("no"), task_id=None, scores=scores))
    assert (pair.chosen.start, texts(pair)[0], len(pair.rejected.messages)) == (2, ["ask"], 3)
    assert counts["correction_equals_the_answer"] == 1
