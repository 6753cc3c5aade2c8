"""Step rewards: the outcome at the end, penalties at the step that earned them."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from offline_arl.rewards.components import RewardConfig, outcome_reward, step_rewards
from offline_arl.trajectories.schema import (
    Context,
    Message,
    Outcome,
    OutcomeStatus,
    Producer,
    Source,
    ToolCall,
    Trajectory,
    text_message,
    tool_call,
)

PARAMETERS = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
TOOLS = json.dumps([{"type": "function", "function": {"name": "get", "parameters": PARAMETERS}}])
CONFIG = RewardConfig(outcome_weight=2.0, invalid_action_penalty=0.25, step_cost=0.125)

GOOD = tool_call("get", '{"id": "7"}')
WRONG_TYPE = tool_call("get", '{"id": 7}')
UNKNOWN_TOOL = tool_call("fly", "{}")
BROKEN_JSON = tool_call("get", '{"id": ')


def attempt(*steps: Message | list[ToolCall], tools: str | None = TOOLS, outcome: Outcome | None = None) -> Trajectory:
    messages = [text_message("user", "Hi")]
    for step in steps:
        messages.append(step if isinstance(step, Message) else Message("assistant", tool_calls=step))
        messages.append(text_message("tool", "ok"))
    outcome = Outcome("scored", success=True) if outcome is None else outcome
    return Trajectory("t", messages, Source("test"), contexts=[Context(0, tools=tools)], outcome=outcome)


def test_every_invalid_step_is_penalized_once_where_it_happened() -> None:
    """Per step -0.125; invalid steps -0.25 more; success 2 * 1 at the last step."""
    trajectory = attempt([GOOD], [WRONG_TYPE, UNKNOWN_TOOL], [BROKEN_JSON], text_message("assistant", "Done"))
    assert step_rewards(trajectory, CONFIG) == [-0.125, -0.375, -0.375, 1.875]


def test_without_logged_tools_only_json_is_judged() -> None:
    trajectory = attempt([WRONG_TYPE], [UNKNOWN_TOOL], [BROKEN_JSON], tools=None)
    assert step_rewards(trajectory, CONFIG) == [-0.125, -0.125, 2.0 - 0.375]


def test_messages_that_the_environment_marked_are_invalid() -> None:
    marked = Message("assistant", [], metadata={"invalid_action": True})
    unmarked = Message("assistant", [], metadata={"invalid_action": False})
    assert step_rewards(attempt(marked, unmarked), CONFIG) == [-0.375, 1.875]


def test_only_the_policys_messages_are_steps() -> None:
    demonstration = Message("assistant", tool_calls=[BROKEN_JSON], producer=Producer("demonstration"))
    assert step_rewards(attempt(demonstration, [GOOD]), CONFIG) == [1.875]


def test_tools_that_change_midway_are_judged_where_they_are_in_force() -> None:
    trajectory = attempt([UNKNOWN_TOOL], [UNKNOWN_TOOL])
    other = json.dumps([{"type": "function", "function": {"name": "fly"}}])
    changed = Trajectory(
        "t",
        trajectory.messages,
        Source("test"),
        contexts=[Context(0, tools=TOOLS), Context(3, tools=other)],
        outcome=trajectory.outcome,
    )
    assert step_rewards(changed, CONFIG) == [-0.375, 1.875]


@pytest.mark.parametrize(
    ("status", "success", "score", "expected"),
    [
        ("scored", True, 0.2, 1.0),
        ("scored", False, 0.9, 0.0),
        ("scored", None, 0.2, 0.2),
        ("scored", None, None, None),
        ("unscored", None, None, None),
        ("infrastructure_error", False, 0.0, None),
    ],
)
def test_outcome_reward(
    status: OutcomeStatus, success: bool | None, score: float | None, expected: float | None
) -> None:
    trajectory = attempt([GOOD], outcome=Outcome(status, success, score))
    assert outcome_reward(trajectory) == expected
    rewards = step_rewards(trajectory, CONFIG)
    assert rewards == (None if expected is None else [2 * expected - 0.125])


def test_no_steps_no_rewards() -> None:
    assert step_rewards(attempt(), CONFIG) == []


def test_the_default_is_the_outcome_and_a_small_penalty() -> None:
    assert step_rewards(attempt([BROKEN_JSON], [GOOD]), RewardConfig()) == [-0.05, 1.0]


def earned(reward: object, *, invalid: bool = False) -> Message:
    return Message("assistant", [], metadata={"reward": reward, **({"invalid_action": True} if invalid else {})})


LOGGED = RewardConfig(source="logged")


def test_logged_rewards_are_those_of_the_messages_and_the_outcome_adds_nothing() -> None:
    trajectory = attempt(earned(-1), earned(0.5), outcome=Outcome("scored", success=True, score=7.0))
    assert step_rewards(trajectory, LOGGED) == [-1.0, 0.5]
    assert step_rewards(trajectory, RewardConfig(source="logged", outcome_weight=3.0)) == [-1.0, 0.5]


def test_a_step_without_a_logged_reward_earns_nothing_where_another_has_one() -> None:
    assert step_rewards(attempt([GOOD], earned(2.0), [GOOD]), LOGGED) == [0.0, 2.0, 0.0]


@pytest.mark.parametrize("reward", [None, "1", True, [1.0]])
def test_what_is_no_number_is_no_logged_reward(reward: object) -> None:
    assert step_rewards(attempt(earned(reward)), LOGGED) is None


def test_logged_rewards_need_no_outcome_but_a_crash_has_none() -> None:
    assert step_rewards(attempt(earned(1.0), outcome=Outcome()), LOGGED) == [1.0]
    assert step_rewards(attempt(earned(1.0), outcome=Outcome("infrastructure_error")), LOGGED) is None


def test_where_nothing_was_logged_the_reward_is_unknown_not_zero() -> None:
    assert step_rewards(attempt([GOOD], [GOOD]), LOGGED) is None
    demonstrated = Message("assistant", [], producer=Producer("demonstration"), metadata={"reward": 1.0})
    assert step_rewards(attempt(demonstrated, [GOOD]), LOGGED) is None


def test_an_invalid_action_is_charged_once_what_the_environment_charged_is_in_the_logged_reward() -> None:
    trajectory = attempt(earned(-4.0, invalid=True), earned(-1.0))
    assert step_rewards(trajectory, LOGGED) == [-4.0, -1.0]
    both = RewardConfig(source="logged", invalid_action_penalty=0.25, step_cost=0.125)
    assert step_rewards(trajectory, both) == [-4.375, -1.125]


@pytest.mark.parametrize("wrong", [{"invalid_action_penalty": -0.1}, {"step_cost": -1.0}, {"unknown": 1.0}])
def test_configuration_is_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        RewardConfig(**wrong)
