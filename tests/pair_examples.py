"""Short attempts for tests of pairs: a system prompt, a request, and what the agent and the world did."""

from __future__ import annotations

import json
from typing import Any

from offline_arl.trajectories.schema import (
    Context,
    Message,
    Outcome,
    Producer,
    Score,
    Source,
    TextPart,
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
                "parameters": {
                    "type": "object",
                    "properties": {"id": {"type": "string"}},
                    "required": ["id"],
                    "additionalProperties": False,
                },
            },
        }
    ]
)


def say(text: str, **fields: Any) -> Message:
    """A message of the agent."""
    return Message("assistant", [TextPart(text)], producer=Producer("model"), **fields)


def look(name: str, *, id: str | None = "c1") -> Message:
    """A call of the agent."""
    return Message("assistant", tool_calls=[tool_call("look", {"id": name}, id=id)], producer=Producer("model"))


def result(text: str, *, id: str | None = "c1") -> Message:
    """What the tool answers."""
    return Message("tool", [TextPart(text)], tool_call_id=id, name="look", producer=Producer("environment"))


def user(text: str, **fields: Any) -> Message:
    """A message of a person."""
    return Message("user", [TextPart(text)], producer=Producer("human"), **fields)


def attempt(
    name: str, *messages: Message, success: bool | None = None, scores: tuple[Score, ...] = (), **fields: Any
) -> Trajectory:
    """An attempt at the task "task" that begins with a system prompt and the request "Find it."."""
    outcome = Outcome() if success is None else Outcome("scored", success=success, scorer="judge")
    settings = {"task_id": "task", "contexts": [Context(0, TOOLS)], "outcome": outcome, "scores": list(scores)}
    start = [text_message("system", "Be brief."), user("Find it.")]
    return Trajectory(name, [*start, *messages], Source("test", record=0), **{**settings, **fields})
