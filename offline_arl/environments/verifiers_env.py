"""Environments of the verifiers library: `verifiers:ID`, the id of an installed taskset, or `verifiers:FILE.toml`.

Its tools, users and rubric run as they are, in a process of their own (`verifiers_worker`), whose Python may be that of
another installation: the variable OFFLINE_ARL_VERIFIERS_PYTHON names it. The policy is the model that the environment
speaks with; the sum of the rubric's weighted rewards is the score.

A file has the table `env`, as verifiers' own configuration files do, and what is only said here:

    max_steps = 20
    success_threshold = 0.5
    [env.taskset]
    id = "gsm8k-v1"
    [env.agent.harness]
    id = "bash"
"""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from offline_arl import optional
from offline_arl.environments.protocol import EpisodeStart, StepResult, StopReason, Task
from offline_arl.environments.splits import require_split, split_of_content
from offline_arl.environments.verifiers_process import WorkerProcess
from offline_arl.errors import DataError, MissingDependencyError, UsageError, reason_of
from offline_arl.trajectories.schema import Message, Outcome, Producer, TextPart, ToolCall, tool_call

PYTHON_VARIABLE = "OFFLINE_ARL_VERIFIERS_PYTHON"
_TEXT_LIMIT = 20_000
_BATCH = 64  # tasks listed at once
_LISTED = 20_000  # tasks looked through for those of a split; some tasksets have no end


class VerifiersFile(BaseModel):
    """What a file may say."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    env: dict[str, Any]
    max_steps: int = Field(50, ge=1)
    success_threshold: float = 1.0  # score from which on an episode is a success
    timeout_s: float = Field(600.0, gt=0)  # that one answer of the environment may take


class VerifiersText:
    """One episode; satisfies `environments.protocol.Environment`.

    Args:
        worker: Plays it.
        name: For the messages' producer.
        max_steps: Of an episode.
        threshold: Score from which on an episode is a success.
    """

    def __init__(self, worker: WorkerProcess, *, name: str, max_steps: int, threshold: float) -> None:
        self.max_steps = max_steps
        self._worker = worker
        self._name = name
        self._threshold = threshold
        self._episode: str | None = None
        self._outcome = Outcome()

    def reset(self, task: Task) -> EpisodeStart:
        """Start an episode.

        Raises:
            DataError: The environment cannot be set up.
        """
        self.close()
        self._outcome = Outcome()
        self._seen: list[dict[str, Any]] = []
        self._ids: dict[str, str | None] = {}
        self._steps = 0
        self._episode, event = self._worker.start(task.payload["data"])
        if event["event"] != "turn":
            self.close()
            raise DataError(f"{self._name}: {task.task_id} ended before the policy was asked ({event.get('error')})")
        self._seen = event["messages"]
        return EpisodeStart([self._message(wire) for wire in self._seen], event["tools"])

    def step(self, message: Message) -> StepResult:
        """Take the agent's message.

        Raises:
            UsageError: The episode has ended or was never started.
            DataError: The environment fails: a fault of the harness.
        """
        if self._episode is None:
            raise UsageError("the episode has ended: call reset before step")
        self._steps += 1
        event = self._worker.say(self._episode, self._wire(message))
        if event["event"] == "turn":
            return StepResult(self._news(event["messages"]), 0.0, terminated=False, truncated=False)
        score = self._judged(event)
        truncated = bool(event["truncated"])
        stop = str(event["stop"] or StopReason.GOAL)
        reason = {"max_turns": StopReason.MAX_STEPS, "agent_completed": StopReason.ANSWERED}.get(stop, stop)
        return StepResult([], score, terminated=not truncated, truncated=truncated, stop_reason=str(reason))

    def outcome(self) -> Outcome:
        """The rubric's verdict; unscored before the episode's end."""
        return self._outcome

    def abandon(self, reason: str) -> None:
        """End an episode that does not go on (the context is full): the rubric judges what there is."""
        if self._episode is None:
            return
        event = self._worker.stop(self._episode, reason)
        if event["event"] == "turn":  # of a program that asks on, although its run is over
            self.close()
            raise DataError(f"{self._name}: the environment cannot be stopped")
        self._judged(event)

    def _judged(self, event: dict[str, Any]) -> float:
        """Take the verdict at the end of an episode; returns the score."""
        self.close()
        if event["error"] is not None:
            raise DataError(f"{self._name}: {event['error']}")
        score = float(event["reward"])
        parts = {name: float(value) for name, value in event["parts"].items()}
        self._outcome = Outcome("scored", score >= self._threshold, score, parts, self._name)
        return score

    def close(self) -> None:
        """Let go of the episode."""
        episode, self._episode = self._episode, None
        if episode is not None:
            self._worker.abandon(episode)

    def _news(self, messages: list[dict[str, Any]]) -> list[Message]:
        """What was added to the conversation since the agent spoke."""
        known = len(self._seen)
        goes_on = [_spoken(wire) for wire in messages[:known]] == [_spoken(wire) for wire in self._seen]
        if not goes_on or len(messages) <= known or messages[known].get("role") != "assistant":
            self.close()
            raise DataError(
                f"{self._name}: its harness rewrites the conversation, and tokens that were sampled cannot follow; "
                "choose another harness in a file (see environments.verifiers_env)"
            )
        self._seen = messages
        return [self._message(wire) for wire in messages[known + 1 :]]

    def _wire(self, message: Message) -> dict[str, Any]:
        """The agent's message in OpenAI form, its calls with ids that no other call of the episode has."""
        wire: dict[str, Any] = {"role": "assistant", "content": _clean(message.text)}
        calls = []
        for place, call in enumerate(message.tool_calls):
            name = f"call_{self._steps}_{place}"
            self._ids[name] = call.id
            function = {"name": _clean(call.name), "arguments": _clean(call.arguments_raw)}
            calls.append({"id": name, "type": "function", "function": function})
        if calls:
            wire["tool_calls"] = calls
        return wire

    def _message(self, wire: dict[str, Any]) -> Message:
        calls: list[ToolCall] = [
            tool_call(call["function"]["name"], call["function"]["arguments"], id=call.get("id"))
            for call in wire.get("tool_calls") or ()
        ]
        name = wire.get("tool_call_id")
        return Message(
            wire["role"],
            [TextPart(_text(wire.get("content"))[:_TEXT_LIMIT])],
            tool_calls=calls,
            tool_call_id=None if name is None else self._ids.get(name, name),
            name=wire.get("name"),
            producer=Producer("environment", self._name),
        )


class VerifiersFamily:
    """An environment of verifiers with its tasks: found by the name `verifiers:ID` or `verifiers:FILE.toml`.

    Args:
        source: The id, or the file.

    Raises:
        MissingDependencyError: verifiers is not installed, here or where the variable says.
        DataError: There is no such environment, or the file is none of these.
    """

    def __init__(self, source: str) -> None:
        self.name = f"verifiers:{source}"
        self._file = _read(source)
        self._python = os.environ.get(PYTHON_VARIABLE) or sys.executable
        if self._python == sys.executable and not optional.available("verifiers"):
            raise MissingDependencyError(
                "verifiers is not installed; install it with: pip install verifiers, or into an environment of its own "
                f"whose Python the variable {PYTHON_VARIABLE} names"
            )
        settings = {"env": self._file.env, "max_turns": self._file.max_steps}
        self._worker = WorkerProcess(self._python, settings, timeout_s=self._file.timeout_s)

    def make(self) -> VerifiersText:
        """A fresh environment; all of a family play in one process."""
        return VerifiersText(
            self._worker, name=self.name, max_steps=self._file.max_steps, threshold=self._file.success_threshold
        )

    def tasks(self, split: str, count: int, *, seed: int = 0) -> list[Task]:
        """The first `count` tasks of a split, fewer where there are no more, for any seed.

        A task's split follows from its content, so it stays what it is when others are added.

        Raises:
            UsageError: There is no such split, or no task of it.
            DataError: The tasks cannot be loaded.
        """
        require_split(split)
        found: list[Task] = []
        taken: set[str] = set()
        for number, item in enumerate(self._all()):
            if split_of_content(_content(item["data"])) == split:
                name = str(item["id"] or number)
                task_id = name if name not in taken else f"{name}/{number}"
                taken.add(task_id)
                found.append(Task(task_id, self.name, {"data": item["data"]}))
                if len(found) == count:
                    break
        if not found:
            raise UsageError(f"{self.name}: no task of the split {split!r}")
        return found

    def close(self) -> None:
        """End the process that plays the episodes."""
        self._worker.close()

    def _all(self) -> Iterator[dict[str, Any]]:
        for start in range(0, _LISTED, _BATCH):
            batch = self._worker.tasks(start, _BATCH)
            yield from batch
            if len(batch) < _BATCH:
                return


def _read(source: str) -> VerifiersFile:
    if not source.endswith(".toml"):
        return VerifiersFile(env={"taskset": {"id": source}})
    try:
        return VerifiersFile.model_validate(tomllib.loads(Path(source).read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise DataError(f"{source}: {'.'.join(map(str, first['loc']))}: {first['msg'].lower()}") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"{source}: no configuration of an environment ({reason_of(error)})") from error


def _content(data: dict[str, Any]) -> bytes:
    """What a task is, without its place among the others."""
    return json.dumps({name: value for name, value in data.items() if name != "idx"}, sort_keys=True).encode()


def _spoken(wire: dict[str, Any]) -> tuple[str, str]:
    return str(wire.get("role")), _text(wire.get("content"))


def _text(content: str | Sequence[dict[str, Any]] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(
        str(part.get("text", "")) if part.get("type") == "text" else f"[{part['type']}]" for part in content
    )


def _clean(text: str) -> str:
    """Without halves of surrogate pairs, which no request can carry."""
    return text.encode(errors="replace").decode()
