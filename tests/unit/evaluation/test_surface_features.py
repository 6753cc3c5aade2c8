"""What can be counted in an attempt so far."""

from __future__ import annotations

from offline_arl.evaluation.surface_features import surface_features
from offline_arl.trajectories.schema import (
    Message,
    MessageError,
    Source,
    TextPart,
    Trajectory,
    text_message,
    tool_call,
)


def _result(text: str, error: MessageError | None = None) -> Message:
    return Message(role="tool", content=[TextPart(text)], error=error)


ATTEMPT = Trajectory(
    "t",
    [
        text_message("system", "Be kind."),
        text_message("user", "my order please"),
        Message(role="assistant", tool_calls=[tool_call("find", '{"id": 1}')]),
        _result("Error: no such order"),
        Message(role="assistant", tool_calls=[tool_call("find", '{"id": 1}'), tool_call("refund", "{")]),
        _result("ok"),
        _result("denied", MessageError("refused")),
        text_message("assistant", "It is on its way"),
        text_message("user", "thanks"),
    ],
    Source(format="test"),
)


def test_only_what_came_before_an_action_and_the_action_itself_counts() -> None:
    features = surface_features(ATTEMPT, 0)
    assert features["steps"] == 1
    assert features["messages"] == 3
    assert features["calls"] == features["calls of find"] == 1
    assert features["errors"] == features["result characters"] == 0
    assert features["last is a call"] == 1
    assert features["user words"] == features["user words first"] == features["user words last"] == 3
    assert "calls of refund" not in features


def test_counts_of_calls_and_errors() -> None:
    """Calls: find, find again, refund with broken arguments. Errors: one by its text, one by its mark."""
    features = surface_features(ATTEMPT, 2)
    assert features["steps"] == 3
    assert (features["calls"], features["different tools"], features["calls repeated"]) == (3, 2, 1)
    assert features["arguments not JSON"] == 1
    assert features["argument characters"] == 9 + 9 + 1
    assert features["errors"] == 2
    assert features["last result is an error"] == 1
    assert features["last is a call"] == 0
    assert (features["agent words"], features["agent words last"]) == (5, 5)
    assert features["agent words a message"] == 5 / 3
    assert features["user messages"] == 1  # the thanks came after the action


def test_an_error_that_was_mended_is_not_the_last_result() -> None:
    assert surface_features(ATTEMPT, 1)["last result is an error"] == 1
    mended = Trajectory("t", [*ATTEMPT.messages[:6], ATTEMPT.messages[7]], Source(format="test"))
    assert surface_features(mended, 2)["last result is an error"] == 0
    assert surface_features(mended, 2)["errors"] == 1
