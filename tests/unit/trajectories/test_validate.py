"""What keeps a trajectory out of a store, and what is only worth a warning."""

from __future__ import annotations

import pytest

from offline_arl.trajectories.schema import (
    Branch,
    Context,
    Message,
    MessageError,
    Outcome,
    Producer,
    ReasoningPart,
    Score,
    Source,
    TextPart,
    TokenRecord,
    ToolCall,
    Trajectory,
    parse_arguments,
    text_message,
    tool_call,
)
from offline_arl.trajectories.validate import CODES, errors_of, problems_of

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
        ({"outcome": Outcome("scored", score=float("nan"))}, "outcome, score: is not a finite number"),
        ({"outcome": Outcome("scored", score=10**400)}, "outcome, score: is not a finite number"),
        ({"outcome": Outcome("scored", components={"a": float("inf")})}, "outcome, a: is not a finite number"),
        ({"scores": [Score("a"), Score("b", float("nan"))]}, "scores[1].value: is not a finite number"),
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


def told(messages: list[Message], **changes: object) -> list[str]:
    """The warnings as `code where`; there must be no errors."""
    found = problems_of(record(messages=messages, **changes))
    assert {problem.severity for problem in found} <= {"warning"}
    assert {problem.code for problem in found} <= set(CODES)
    assert errors_of(record(messages=messages, **changes)) == []
    return [f"{problem.code} {problem.where}" for problem in found]


def call(name: str | None, arguments: str = "{}", tool: str = "f") -> ToolCall:
    return tool_call(tool, arguments, id=name)


def result(name: str | None) -> Message:
    return Message("tool", [TextPart("done")], tool_call_id=name)


def test_results_are_paired_with_calls() -> None:
    messages = [
        Message("assistant", tool_calls=[call("a"), call("b"), call(None)]),
        result("a"),
        result("a"),
        result(None),
        result("gone"),
        Message("assistant", tool_calls=[call("c"), call("a")]),
        result("a"),
        Message("assistant", tool_calls=[call("last")]),
    ]
    assert told(messages) == [
        "repeated_result messages[2].tool_call_id",
        "unnamed_result messages[3]",
        "orphan_result messages[4].tool_call_id",
        "reused_call_id messages[5].tool_calls[1].id",
        "unanswered_call messages[0].tool_calls[1]",
        "unanswered_call messages[5].tool_calls[0]",
    ]


def test_calls_are_judged_by_the_tools_in_force() -> None:
    tools = (
        '[{"function": {"name": "f", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}}},'
        ' {"function": {"name": "g"}}]'
    )
    messages = [
        Message("assistant", tool_calls=[call(None, '{"n": 1}'), call(None, '{"n": "1"}'), call(None, '{"n": ')]),
        Message("assistant", tool_calls=[call(None, tool="g"), call(None, tool="h")]),
        Message("assistant", tool_calls=[call(None, tool="h")], producer=Producer("demonstration")),
        Message("assistant", tool_calls=[call(None, tool="f")]),
    ]
    assert told(messages, contexts=[Context(0, tools), Context(3, "[]")]) == [
        "invalid_arguments messages[0].tool_calls[1]",
        "invalid_json messages[0].tool_calls[2]",
        "unknown_tool messages[1].tool_calls[1]",
        "unknown_tool messages[3].tool_calls[0]",
    ]


def test_time_runs_forward() -> None:
    def at(*times: str | None) -> list[str]:
        return told([Message("assistant", [TextPart("x")], timestamp=time) for time in times])

    assert at("2026-01-01T00:00:00Z", None, "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z") == []
    assert at("2026-01-01T00:00:01Z", None, "2026-01-01T00:00:00Z", "2026-01-01T00:00:00.5Z") == [
        "time_reversal messages[2].timestamp"
    ]
    assert at("2026-01-01T10:00:00+02:00", "2026-01-01T08:00:00Z") == []
    assert at("2026-01-01T10:00:00+02:00", "2026-01-01T07:59:59Z") == ["time_reversal messages[1].timestamp"]
    assert at("2026-01-01T10:00:00", "2026-01-01T07:59:59Z", "yesterday", "") == []  # cannot be compared


@pytest.mark.parametrize(
    ("outcome", "possible"),
    [
        (Outcome(), True),
        (Outcome("infrastructure_error"), True),
        (Outcome("infrastructure_error", score=0.0), False),
        (Outcome("unscored", success=False), False),
        (Outcome("scored"), False),
        (Outcome("scored", success=True, score=1.0), True),
        (Outcome("scored", success=True, score=0.0), False),
        (Outcome("scored", success=False, score=1.0), False),
        (Outcome("scored", success=False, score=0.99), True),
        (Outcome("scored", score=-7.0), True),
    ],
)
def test_outcomes_that_contradict_themselves_are_told(outcome: Outcome, possible: bool) -> None:
    assert told(MESSAGES, outcome=outcome) == ([] if possible else ["impossible_reward outcome"])


def test_messages_that_hold_nothing_are_told() -> None:
    reasoning = ReasoningPart("hm")
    messages = [
        Message("assistant"),
        Message("assistant", []),
        Message("assistant", [reasoning]),
        Message("assistant", error=MessageError("timeout")),
        Message("user"),
    ]
    assert told(messages) == ["empty_message messages[0]", "empty_message messages[1]"]
    assert told([Message("user"), Message("assistant", [reasoning], producer=Producer("summary"))]) == [
        "no_policy_step messages"
    ]


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ("\ud800", "invalid JSON: half of a surrogate pair"),
        ("[" * 100_000, "invalid JSON: nested too deeply"),
        ("{", "invalid JSON: Input data was truncated"),
    ],
)
def test_arguments_that_cannot_be_parsed_are_kept_with_the_reason(raw: str, problem: str) -> None:
    assert parse_arguments(raw) == (None, problem)
