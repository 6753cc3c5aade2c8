"""Evaluation measures of hand-made trajectories, each counted by hand."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from offline_arl.errors import DataError
from offline_arl.evaluation.intervals import Estimate, wilson_interval
from offline_arl.evaluation.policy import count_calls, evaluate, paired_difference, success_by_task
from offline_arl.trajectories.schema import (
    Context,
    Message,
    MessageError,
    Outcome,
    Source,
    TextPart,
    ToolCall,
    Trajectory,
    text_message,
    tool_call,
)

TOOLS = json.dumps(
    [
        {
            "type": "function",
            "function": {
                "name": "look",
                "parameters": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
            },
        }
    ]
)


def assistant(*calls: ToolCall, text: str = "ok") -> Message:
    return Message(role="assistant", content=[TextPart(text)], tool_calls=list(calls))


def answer(identifier: str | None, *, error: str | None = None) -> Message:
    return Message(
        role="tool",
        content=[TextPart("{}")],
        tool_call_id=identifier,
        error=None if error is None else MessageError(error),
    )


def trajectory(*messages: Message, identifier: str = "t", success: bool | None = True, **fields: Any) -> Trajectory:
    status = fields.pop("status", "unscored" if success is None else "scored")
    return Trajectory(
        trajectory_id=identifier,
        messages=[text_message("user", "hello"), *messages],
        source=Source("test"),
        contexts=[Context(start=0, tools=TOOLS)],
        outcome=Outcome(status, success=success),
        **fields,
    )


def generator() -> np.random.Generator:
    return np.random.default_rng(0)


LOOK = tool_call("look", {"id": "1"}, id="a")


def test_a_call_is_accurate_when_valid_and_answered_without_an_error() -> None:
    counted = count_calls(
        trajectory(
            assistant(LOOK),
            answer("a"),  # accurate
            assistant(tool_call("look", {"id": "2"}, id="b")),
            answer("b", error="not_found"),  # valid, answered with an error
            assistant(tool_call("look", {"id": 3}, id="c")),
            answer("c"),  # breaks the schema: id is a number
            assistant(tool_call("gaze", {}, id="d")),
            answer("d"),  # unknown tool
            assistant(tool_call("look", "{id", id="e")),
            answer("e"),  # invalid JSON
            assistant(text="done"),
        )
    )
    assert counted == (5, 1, 6, 3, 5)


def test_a_call_that_nothing_answers_counts_only_where_it_ends_the_trajectory() -> None:
    unanswered = trajectory(assistant(LOOK), text_message("user", "well?"), assistant(text="hm"))
    ended = trajectory(assistant(LOOK))
    assert count_calls(unanswered)[:2] == (1, 0)
    assert count_calls(ended)[:2] == (1, 1)


def test_answers_are_matched_by_id_and_by_order_without_ids() -> None:
    swapped = trajectory(assistant(LOOK, tool_call("look", {"id": 2}, id="b")), answer("b", error="bad"), answer("a"))
    anonymous = [tool_call("look", {"id": "1"}), tool_call("look", {"id": "2"})]
    ordered = trajectory(assistant(*anonymous), answer(None, error="not_found"), answer(None), assistant())
    assert count_calls(swapped)[:2] == (2, 1)
    assert count_calls(ordered)[:2] == (2, 1)


def test_demonstrations_are_not_steps() -> None:
    shown = text_message("assistant", "an example", kind="demonstration")
    assert count_calls(trajectory(shown, assistant())).steps == 1


def test_measures_counted_by_hand() -> None:
    records = [
        trajectory(assistant(LOOK), answer("a"), assistant(), task_type="look", task_id="1", terminated=True),
        trajectory(assistant(), success=False, task_type="look", task_id="2", truncated=True),
        trajectory(assistant(tool_call("gaze", {})), success=False, task_type="talk", task_id="3"),
        trajectory(assistant(), success=None, task_type="talk", task_id="4"),
        trajectory(success=None, status="infrastructure_error", task_type="talk", task_id="5"),
    ]
    measures = evaluate(records, generator=generator())
    assert measures["success"] == wilson_interval(1, 3)
    assert measures["success/look"] == wilson_interval(1, 2)
    assert measures["success/talk"] == wilson_interval(0, 1)
    assert measures["steps"].estimate == pytest.approx(5 / 4)
    assert measures["call_rate"] == wilson_interval(2, 5)
    assert measures["tool_call_accuracy"] == wilson_interval(1, 2)
    assert measures["invalid_action_rate"] == wilson_interval(1, 5)
    assert measures["truncation_rate"] == wilson_interval(1, 4)
    assert measures["infrastructure_errors"] == Estimate(1, 1, 1, 5)
    # Rewards 1, 0 and -0.05: the outcome, and the penalty of the third; the fourth was not judged.
    assert measures["return"].estimate == pytest.approx(0.95 / 3)
    assert measures["return"].n == 3


def test_actions_that_the_environment_marked_are_invalid() -> None:
    marked = Message(role="assistant", content=[], metadata={"invalid_action": True})
    assert count_calls(trajectory(marked, assistant())) == (0, 0, 2, 1, 0)


def test_without_calls_there_is_no_accuracy() -> None:
    measures = evaluate([trajectory(assistant())], generator=generator())
    assert measures["tool_call_accuracy"].as_dict() == {"estimate": None, "low": 0.0, "high": 1.0, "n": 0}
    assert measures["invalid_action_rate"].estimate == 0.0


def test_nothing_to_evaluate_is_an_error() -> None:
    with pytest.raises(DataError, match="there are none"):
        evaluate([], generator=generator())
    failed = trajectory(success=None, status="infrastructure_error")
    with pytest.raises(DataError, match="failed in all 2"):
        evaluate([failed, failed], generator=generator())


def measured(**components: float) -> Trajectory:
    found = trajectory(assistant(), identifier=repr(components))
    return msgspec.structs.replace(found, outcome=Outcome("scored", success=True, components=components))


def test_components_of_the_outcome_are_measures_of_their_own() -> None:
    """Two of three records measure optimality; the mean is over those two."""
    records = [measured(optimality=1.0, warmth=0.5), measured(optimality=0.5), trajectory(assistant())]
    measures = evaluate(records, generator=generator())
    assert (measures["optimality"].estimate, measures["optimality"].n) == (0.75, 2)
    assert 0.5 <= measures["optimality"].low <= measures["optimality"].high <= 1.0
    assert (measures["warmth"].estimate, measures["warmth"].n) == (0.5, 1)


def test_a_measured_return_is_the_return_and_no_other_component_replaces_a_measure() -> None:
    """The outcome says -7 and 1; without a component the success of 1 is the return. (-7 + 1 + 1) / 3."""
    records = [measured(**{"return": -7.0, "success": 0.0}), measured(**{"return": 1.0}), trajectory(assistant())]
    measures = evaluate(records, generator=generator())
    assert measures["return"].estimate == pytest.approx(-5 / 3)
    assert measures["success"] == wilson_interval(3, 3)


def test_success_by_task_averages_attempts() -> None:
    records = [
        trajectory(task_id="1", success=True),
        trajectory(task_id="1", success=False),
        trajectory(task_id="2", success=False),
        trajectory(task_id="3", success=None),
    ]
    assert success_by_task(records) == {"1": 0.5, "2": 0.0}
    with pytest.raises(DataError, match="no task_id"):
        success_by_task([trajectory(success=True)])


def test_paired_difference_uses_shared_tasks_only() -> None:
    better = [trajectory(task_id=str(task), success=True) for task in range(20)]
    worse = [trajectory(task_id=str(task), success=task % 2 == 0) for task in range(10, 30)]
    difference = paired_difference(better, worse, generator=generator())
    assert difference.n == 10
    assert difference.estimate == pytest.approx(0.5)
    assert difference.low > 0
    with pytest.raises(DataError, match="share no judged task"):
        paired_difference(better[:5], worse, generator=generator())
