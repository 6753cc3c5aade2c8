"""Trajectories that the tests of exports share."""

from __future__ import annotations

import msgspec

from offline_arl.trajectories.schema import (
    Branch,
    Context,
    ImagePart,
    Message,
    MessageError,
    Outcome,
    Producer,
    ReasoningPart,
    Score,
    Source,
    TextPart,
    TokenRecord,
    Trajectory,
    Usage,
    tool_call,
)

ADD = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}
FIND = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {"q": {}}}}}
MODEL = Producer("model", "tiny")
QUESTION = "What is 2 + 3, and what is 2 + 40? Please look at the picture too."
ANSWER = "The sums are 5 and 42; the picture shows an abacus."


def text(role: str, content: str, **fields: object) -> Message:
    return msgspec.convert({"role": role, "content": [{"type": "text", "text": content}], **fields}, Message)


def tools(*definitions: object) -> str:
    return msgspec.json.encode(list(definitions)).decode()


def rich() -> Trajectory:
    """Parallel calls, one of them invalid, an error, reasoning, a picture, tools that change, judgements."""
    return Trajectory(
        trajectory_id="t1",
        source=Source("test"),
        messages=[
            text("system", "You add.", producer={"kind": "script"}),
            Message("user", [TextPart(QUESTION), ImagePart("https://a.b/c.png")], producer=Producer("human")),
            Message(
                "assistant",
                [ReasoningPart("two sums at once")],
                [tool_call("add", '{"a": 2, "b": 3}', id="c1"), tool_call("add", "{2,", id="c2")],
                producer=MODEL,
                usage=Usage(20, 7, 0.5),
                tokens=TokenRecord([7, 8], "f", [-0.5, -1.0], [1, 2, 3]),
                timestamp="2026-01-02T03:04:05Z",
                id="call-1",
            ),
            text("tool", "5", tool_call_id="c1", producer={"kind": "environment"}),
            Message(
                "tool",
                [TextPart("no such sum")],
                tool_call_id="c2",
                error=MessageError("invalid", "not JSON"),
                producer=Producer("environment"),
            ),
            text("assistant", ANSWER, producer={"kind": "model", "name": "tiny"}, trainable=False),
        ],
        task_id="sums/1",
        group_id="g",
        session_id="s",
        user_id="u",
        task_type="sums",
        agent="adder",
        model="tiny",
        branch=Branch("t0", 2),
        contexts=[Context(0, tools(ADD)), Context(3, tools(ADD, FIND))],
        terminated=True,
        stop_reason="done",
        outcome=Outcome("scored", success=True, score=1.0, scorer="judge"),
        scores=[Score("helpful", 0.5, scorer="judge", message_index=5, direction="higher_is_better")],
    )


def compared() -> tuple[Trajectory, Trajectory]:
    """A chosen and a rejected trajectory that part after the question."""
    chosen = Trajectory(
        "chosen",
        [text("user", "2 + 3?"), text("assistant", "5", producer={"kind": "model"})],
        Source("test"),
        scores=[Score("preference", 1.0, comparison_id="pair", direction="higher_is_better")],
    )
    rejected = msgspec.structs.replace(
        chosen,
        trajectory_id="rejected",
        messages=[chosen.messages[0], text("assistant", "6", producer={"kind": "model"})],
        scores=[Score("preference", 0.0, comparison_id="pair", direction="higher_is_better")],
    )
    return chosen, rejected
