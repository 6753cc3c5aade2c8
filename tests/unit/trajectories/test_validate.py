"""What keeps a trajectory out of a store, and what is only worth a warning."""

from __future__ import annotations

import pytest

from offline_arl.trajectories.schema import (
    Branch,
    Context,
    Message,
    Outcome,
    Score,
    Source,
    TokenRecord,
    Trajectory,
    text_message,
    tool_call,
)
from offline_arl.trajectories.validate import errors_of, problems_of

MESSAGES = [text_message("user", "Hi"), text_message("assistant", "Hello")]


def record(**changes: object) -> Trajectory:
    return Trajectory(**{"trajectory_id": "t", "messages": MESSAGES, "source": Source("test"), **changes})  # type: ignore[arg-type]


def with_tokens(logprobs: list[float]) -> list[Message]:
    return [*MESSAGES, Message("assistant", tokens=TokenRecord([5, 6], "f", logprobs))]


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        ({"trajectory_id": ""}, "trajectory_id: is empty"),
        ({"messages": []}, "messages: there are none"),
        ({"terminated": True, "truncated": True}, "terminated: a trajectory cannot be both terminated and truncated"),
        ({"outcome": Outcome("scored", score=float("nan"))}, "outcome, score: nan is not a finite number"),
        ({"outcome": Outcome("scored", components={"a": float("inf")})}, "outcome, a: inf is not a finite number"),
        ({"scores": [Score("a"), Score("b", float("nan"))]}, "scores[1].value: nan is not a finite number"),
        ({"scores": [Score("a", 1.0, message_index=2)]}, "scores[0].message_index: 2 is no message"),
        ({"branch": Branch("other", 3)}, "branch.message_index: 3 is outside of the messages"),
        ({"contexts": [Context(1), Context(1)]}, "contexts[1].start: 1 is out of order or outside of the messages"),
        ({"contexts": [Context(9)]}, "contexts[0].start: 9 is out of order or outside of the messages"),
        ({"contexts": [Context(0, tools="{}")]}, "contexts[0].tools: is not the JSON text of a list of tools"),
        ({"contexts": [Context(0, tools='[{"name": "f"}]')]}, "contexts[0].tools: is not the JSON text"),
        ({"messages": with_tokens([-1.0])}, "messages[2].tokens.logprobs: 1 values for 2 token ids"),
        ({"messages": with_tokens([-1.0, float("-inf")])}, "messages[2].tokens.logprobs: a value is not a finite"),
    ],
)
def test_errors_name_the_place(changes: dict[str, object], finding: str) -> None:
    (problem,) = errors_of(record(**changes))
    assert str(problem).startswith(finding)


def test_a_sound_trajectory_has_no_findings() -> None:
    assert problems_of(record(contexts=[Context(0, tools="[]")], terminated=True)) == []


def test_what_real_logs_do_is_a_warning() -> None:
    messages = [
        Message("tool", tool_call_id="gone"),
        Message("tool"),
        Message("user", tool_calls=[tool_call("f", {}, id="open")]),
    ]
    found = problems_of(record(messages=messages))
    assert {problem.severity for problem in found} == {"warning"}
    assert [str(problem) for problem in found] == [
        "messages[0].tool_call_id: a tool result answers 'gone', which no earlier message called",
        "messages[1]: a tool result names no call",
        "messages: 1 tool calls have no result",
        "messages: no message was made by the policy under study",
    ]
    assert errors_of(record(messages=messages)) == []
