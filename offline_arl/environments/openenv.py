"""Environments that run as OpenEnv servers: `openenv:http://localhost:8000`.

The server's schemas say how an agent acts: where an action is one text, the agent's message is that text; else there is
one tool, `act`, whose arguments are the action. The protocol is JSON over a WebSocket, an episode a connection.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Sequence
from typing import Any

import msgspec

from offline_arl import optional
from offline_arl.environments.protocol import EpisodeStart, StepResult, StopReason, Task
from offline_arl.environments.splits import SPLITS, require_split
from offline_arl.errors import DataError, UsageError, reason_of
from offline_arl.trajectories.calls import call_problem
from offline_arl.trajectories.schema import Message, MessageError, Outcome, Producer, TextPart, text_message

_OF_THE_PROTOCOL = frozenset({"done", "reward", "metadata"})
_TEXT_LIMIT = 20_000


class OpenEnvText:
    """One episode of an OpenEnv environment; satisfies `environments.protocol.Environment`.

    Args:
        url: Of the server.
        schemas: As its `/schema` gives them.
        max_steps: Of an episode.
        threshold: Return from which on an episode is a success; None: it ends well if its last reward is positive.
        timeout_s: Of one answer.
    """

    def __init__(
        self, url: str, schemas: dict[str, Any], *, max_steps: int, threshold: float | None, timeout_s: float = 60.0
    ) -> None:
        self.max_steps = max_steps
        self._connect = optional.require("websockets.sync.client", extra="environments").connect
        self._url = "ws" + url.rstrip("/").removeprefix("http") + "/ws"
        self._threshold = threshold
        self._timeout_s = timeout_s
        self._field, self._tools = _how_to_act(schemas.get("action", {}))
        self._socket: Any = None
        self._running = False
        self._return = self._last = 0.0
        self._scored = False

    def reset(self, task: Task) -> EpisodeStart:
        """Start an episode.

        Raises:
            DataError: The server does not answer, or with an error.
        """
        self.close()
        try:
            self._socket = self._connect(self._url, open_timeout=self._timeout_s, max_size=None)
        except Exception as error:
            raise DataError(f"{self._url}: no OpenEnv server answers ({type(error).__name__}: {error})") from error
        self._return = self._last = 0.0
        self._steps = 0
        self._scored = False
        seed = task.payload.get("seed")
        answer = self._ask("reset", {} if seed is None else {"seed": seed})
        self._running = True
        return EpisodeStart([text_message("user", _told(answer), kind="environment", name="openenv")], self._tools)

    def step(self, message: Message) -> StepResult:
        """Take the agent's action.

        Raises:
            UsageError: The episode has ended or was never started.
            DataError: The server fails: a fault of the harness.
        """
        if not self._running:
            raise UsageError("the episode has ended: call reset before step")
        self._steps += 1
        action, problem = self._action(message)
        if action is None:
            replies = self._replies(message, json.dumps({"error": problem}), MessageError("invalid_action", problem))
            return self._result(replies, 0.0, over=False, invalid=1)
        answer = self._ask("step", action)
        reward = answer.get("reward")
        if not isinstance(reward, int | float | None):
            raise DataError(f"{self._url}: a reward that is no number: {reward!r:.100}")
        self._last = float(reward or 0.0)
        self._scored = self._scored or reward is not None
        over = bool(answer.get("done"))
        self._return += self._last
        return self._result(self._replies(message, _told(answer), None), self._last, over=over, invalid=0)

    def outcome(self) -> Outcome:
        """The return as the score; unscored where the server gave no reward."""
        if not self._scored:
            return Outcome()
        success = self._last > 0 if self._threshold is None else self._return >= self._threshold
        return Outcome("scored", success, self._return, {"return": self._return}, "openenv")

    def close(self) -> None:
        """End the session."""
        socket, self._socket = self._socket, None
        self._running = False
        if socket is not None:
            socket.close()

    def _action(self, message: Message) -> tuple[dict[str, Any] | None, str]:
        if self._field is not None:
            if message.tool_calls or not message.text.strip():
                return None, "answer with text"
            return {self._field: message.text}, ""
        if len(message.tool_calls) != 1:
            return None, "call act, once"
        problem = call_problem(message.tool_calls[0], self._tools)
        return (message.tool_calls[0].arguments, "") if problem is None else (None, problem.text)

    def _replies(self, message: Message, text: str, error: MessageError | None) -> list[Message]:
        producer = Producer("environment", "openenv")
        if not message.tool_calls:
            return [Message("user", [TextPart(text)], error=error, producer=producer)]
        return [
            Message("tool", [TextPart(text)], tool_call_id=call.id, name=call.name, error=error, producer=producer)
            for call in message.tool_calls
        ]

    def _result(self, replies: list[Message], reward: float, *, over: bool, invalid: int) -> StepResult:
        truncated = not over and self._steps >= self.max_steps
        reason = StopReason.GOAL if over else StopReason.MAX_STEPS if truncated else None
        if over or truncated:
            self.close()
        return StepResult(replies, reward, over, truncated, reason, {"invalid_actions": invalid})

    def _ask(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        try:
            self._socket.send(json.dumps({"type": kind, "data": data}))
            answer = json.loads(self._socket.recv(timeout=self._timeout_s))
        except Exception as error:
            raise DataError(f"{self._url}: the OpenEnv server fails ({type(error).__name__}: {error})") from error
        if not isinstance(answer, dict) or answer.get("type") == "error":
            raise DataError(f"{self._url}: the OpenEnv server refuses {kind}: {_message(answer)}")
        found = answer.get("data", {})
        return found if isinstance(found, dict) else {}


class OpenEnvFamily:
    """A server's environment with its tasks, which are seeds: found by the name `openenv:URL`.

    Args:
        url: Of the server.
        max_steps: Of an episode.
        threshold: Return from which on an episode is a success; None: it ends well if its last reward is positive.

    Raises:
        MissingDependencyError: The package websockets is not installed.
        UsageError: It is no address.
        DataError: No OpenEnv server answers.
    """

    def __init__(self, url: str, *, max_steps: int = 50, threshold: float | None = None) -> None:
        self.name = f"openenv:{url}"
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"{self.name}: give the server's address, as in openenv:http://localhost:8000")
        self._url, self._max_steps, self._threshold = url, max_steps, threshold
        try:
            with urllib.request.urlopen(f"{url.rstrip('/')}/schema", timeout=30) as reply:
                self._schemas = json.loads(reply.read())
            _how_to_act(self._schemas["action"])
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"{url}: no OpenEnv server answers ({reason_of(error)})") from error
        except (LookupError, AttributeError, TypeError) as error:
            raise DataError(f"{url}: /schema tells no action; is this an OpenEnv server?") from error

    def make(self) -> OpenEnvText:
        """A fresh environment."""
        return OpenEnvText(self._url, self._schemas, max_steps=self._max_steps, threshold=self._threshold)

    def tasks(self, split: str, count: int, *, seed: int) -> list[Task]:
        """`count` seeds of "train", "validation" or "test"; other ones in each split.

        Raises:
            UsageError: `split` is none of the three.
        """
        require_split(split)
        first = SPLITS.index(split) * 1_000_000 + seed % 1000 * 1000
        return [Task(f"openenv-{number}", "openenv", {"seed": number}) for number in range(first, first + count)]


def _how_to_act(schema: dict[str, Any]) -> tuple[str | None, list[dict[str, Any]]]:
    """The name of the one text that an action is, or the tool whose arguments are an action."""
    properties = {name: value for name, value in schema.get("properties", {}).items() if name not in _OF_THE_PROTOCOL}
    required: Sequence[str] = [name for name in schema.get("required", []) if name in properties]
    texts = [name for name in required or properties if properties[name].get("type") == "string"]
    if len(texts) == 1 and len(required or properties) == 1 and "enum" not in properties[texts[0]]:
        return texts[0], []
    parameters = {
        **{name: value for name, value in schema.items() if name == "$defs"},
        "type": "object",
        "properties": properties,
        "required": list(required),
    }
    function = {"name": "act", "description": schema.get("description", "Act."), "parameters": parameters}
    return None, [{"type": "function", "function": function}]


def _message(answer: Any) -> str:
    data = answer.get("data") if isinstance(answer, dict) else answer
    text = str(data.get("message") if isinstance(data, dict) else data)
    return " ".join(text.split())[:200]


def _told(answer: dict[str, Any]) -> str:
    """An observation as text: its one text, else JSON."""
    observation = answer.get("observation", {})
    if not isinstance(observation, dict):
        return str(observation)[:_TEXT_LIMIT]
    kept = {name: value for name, value in observation.items() if name not in _OF_THE_PROTOCOL}
    texts = list(kept.values())
    text = texts[0] if len(texts) == 1 and isinstance(texts[0], str) else msgspec.json.encode(kept).decode()
    return text[:_TEXT_LIMIT]
