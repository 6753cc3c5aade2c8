"""Chat models on the other side: as the user an agent talks to, and as agents that an agent can ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from offline_arl.environments.endpoints import Endpoint
from offline_arl.environments.protocol import Task
from offline_arl.environments.tools import Tool
from offline_arl.errors import DataError, UsageError
from offline_arl.trajectories.schema import Message, text_message

_SYSTEM = (
    "You play the user of an assistant. Your goal:\n{goal}\n"
    "Say one short message at a time, as that user would, and tell only what you are asked for. "
    'Answer with JSON: {{"done": false, "text": "..."}}; "done" is true when your goal is met, or never will be.'
)
_OPEN = "(The assistant waits for your first message.)"


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    done: bool
    text: str


class ModelUser:
    """A user with a goal, played by a model; satisfies `tool_environment.User`.

    The task's payload has the `goal`, and may have a `prompt` that the user begins with. The model sees what a user
    sees: texts, no tool calls and no results.

    Args:
        endpoint: The model.
        max_turns: The user leaves after so many messages.
    """

    def __init__(self, endpoint: Endpoint, *, max_turns: int = 10) -> None:
        self._endpoint = endpoint
        self._max_turns = max_turns
        self._turns = 0
        self._goal = ""
        self.schema: dict[str, Any] = {
            "type": "object",
            "properties": {"done": {"type": "boolean"}, "text": {"type": "string"}},
            "required": ["done", "text"],
            "additionalProperties": False,
        }

    def open(self, task: Task) -> list[Message]:
        """The first message.

        Raises:
            UsageError: The payload has no goal.
            DataError: The model gave no answer that fits.
        """
        goal = task.payload.get("goal")
        if not isinstance(goal, str):
            raise UsageError(f"task {task.task_id}: its payload has no text 'goal' for the user to pursue")
        self._goal, self._turns = goal, 1
        prompt = task.payload.get("prompt")
        text = prompt if isinstance(prompt, str) else self._line([]).text
        return [self._message(text)]

    def reply(self, messages: Sequence[Message]) -> list[Message] | None:
        """What the user says next, or None where they have what they want, or have had enough.

        Raises:
            DataError: The model gave no answer that fits: the episode cannot go on, and that is not the agent's doing.
        """
        if self._turns >= self._max_turns:
            return None
        self._turns += 1
        line = self._line(messages)
        return None if line.done else [self._message(line.text)]

    def _line(self, messages: Sequence[Message]) -> _Line:
        # Seen from the other side: what the agent says is said to the user.
        turned = {"user": "assistant", "assistant": "user"}
        said = [
            {"role": turned[message.role], "content": message.text}
            for message in messages
            if message.role in turned and message.text
        ]
        if not said or said[0]["role"] != "user":
            said = [{"role": "user", "content": _OPEN}, *said]
        conversation = [{"role": "system", "content": _SYSTEM.format(goal=self._goal)}, *said]
        answer = self._endpoint.complete(conversation, schema=self.schema, fits=lambda text: _line(text) is not None)
        line = _line(answer)
        if line is None:
            raise DataError(f"the user's model answered with something else than a line to say: {answer[:100]!r}")
        return line

    def _message(self, text: str) -> Message:
        return text_message("user", text, kind="model", name=self._endpoint.config.model)


def _line(answer: str) -> _Line | None:
    """What the model said, if it fits."""
    try:
        return msgspec.json.decode(answer, type=_Line)
    except (msgspec.DecodeError, RecursionError):
        return None


def agent_tool(endpoint: Endpoint, *, name: str, description: str, instructions: str, timeout_s: float = 120.0) -> Tool:
    """Another agent as a tool: the agent asks it something, and gets its answer.

    Each call is a conversation of its own. Put several into one environment, and an episode has several agents.

    Args:
        endpoint: The other agent's model.
        name: Of the tool.
        description: For the agent that asks.
        instructions: The other agent's system prompt.
        timeout_s: Of a call.
    """
    parameters = {
        "type": "object",
        "properties": {"message": {"type": "string", "minLength": 1}},
        "required": ["message"],
        "additionalProperties": False,
    }

    def ask(arguments: dict[str, Any]) -> str:
        messages = [
            {"role": "system", "content": instructions},
            {"role": "user", "content": str(arguments["message"])},
        ]
        return endpoint.complete(messages)

    return Tool(name, description, parameters, ask, timeout_s=timeout_s)
