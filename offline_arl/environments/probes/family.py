"""What all probes share as families: tasks that start states make, scripted play, and its logs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np

from offline_arl.environments.probes.dynamic_programming import FloatArray
from offline_arl.environments.probes.environment import Probe
from offline_arl.environments.protocol import Examples, Task
from offline_arl.environments.splits import require_split
from offline_arl.errors import UsageError
from offline_arl.trajectories.files import write_atomically
from offline_arl.trajectories.schema import Message, text_message

Policy = Callable[[Sequence[str], np.random.Generator], str]  # the states seen so far -> the next action


class Start(NamedTuple):
    """A start state. `label` names it in task ids."""

    label: str
    task_type: str
    payload: dict[str, Any]


class Behavior(NamedTuple):
    """A scripted agent."""

    name: str
    policy: Policy


class ExamplePolicies(NamedTuple):
    """Scripted agents that succeed and fail at a task; None where none is known."""

    success: Policy | None
    failure: Policy | None


class ProbeFamily(ABC):
    """A probe with its tasks; satisfies `environments.protocol.EnvironmentFamily` and `HasExamples`, and can write
    logs.

    A task is a start state. Where a probe has few of them, every split has them all: the question is whether a policy
    that learned from logs acts best in the same problem. Task ids name the split, so tasks of two splits never
    share an id. More tasks than start states are further rounds of the same ones, with a number behind the id.
    """

    name: ClassVar[str]

    @abstractmethod
    def make(self) -> Probe:
        """A fresh environment."""

    @abstractmethod
    def starts(self, split: str, *, seed: int) -> Sequence[Start]:
        """The start states of a split, in the order in which tasks take them."""

    @abstractmethod
    def behavior(self, start: Start, generator: np.random.Generator) -> Behavior:
        """The scripted agent that plays an episode of the logs."""

    @abstractmethod
    def example_policies(self, task: Task) -> ExamplePolicies:
        """Agents that succeed and fail at a task."""

    def examples(self, task: Task) -> Examples:
        """What the example policies do in a task; None where they do not come to the end that they are meant to."""
        policies = self.example_policies(task)
        return Examples(self._played(task, policies.success, True), self._played(task, policies.failure, False))

    def _played(self, task: Task, policy: Policy | None, success: bool) -> list[Message] | None:
        """The actions of an episode, if it ends so."""
        if policy is None:
            return None
        environment = self.make()
        record = play(environment, task, Behavior("example", policy), np.random.default_rng(0))
        if environment.outcome().success is not success:
            return None
        return [
            text_message("assistant", said["content"]) for said in record["messages"] if said["role"] == "assistant"
        ]

    def tasks(self, split: str, count: int, *, seed: int) -> list[Task]:
        """`count` tasks of "train", "validation" or "test"; a longer list extends a shorter one.

        Raises:
            UsageError: `split` is none of the three.
        """
        starts = self._starts(split, seed=seed)
        return [
            self._task(split, starts[index % len(starts)], repetition=index // len(starts)) for index in range(count)
        ]

    def write_logs(
        self, path: Path, count: int, *, seed: int, progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Write `count` episodes of scripted agents from random training starts as OpenAI chat JSONL; atomic.

        Attempts from the same start share `task_id` and `group_id`. Episode i depends on (seed, i) alone.

        Args:
            path: The file to make.
            count: Number of episodes (lines).
            seed: Decides starts, agents and actions.
            progress: Called with (done, total).

        Raises:
            UsageError: `count` is not positive.
        """
        if count < 1:
            raise UsageError(f"count must be positive, not {count}")

        def write(temporary: Path) -> None:
            with temporary.open("wb") as file:
                for done, record in enumerate(self.records(count, seed=seed), start=1):
                    file.write(msgspec.json.encode(record) + b"\n")
                    if progress is not None:
                        progress(done, count)

        write_atomically(path, write)

    def records(self, count: int, *, seed: int) -> Iterator[dict[str, Any]]:
        """The log records of `write_logs`, one an episode."""
        starts = self._starts("train", seed=seed)
        for index in range(count):
            generator = np.random.default_rng([seed, 7, index])
            start = starts[int(generator.integers(len(starts)))]
            task = self._task("train", start)
            record = play(self.make(), task, self.behavior(start, generator), generator)
            yield {"id": f"{task.task_id}/{index}", **record}

    def _starts(self, split: str, *, seed: int) -> Sequence[Start]:
        require_split(split)
        return self.starts(split, seed=seed)

    def _task(self, split: str, start: Start, *, repetition: int = 0) -> Task:
        suffix = f"-{repetition}" if repetition else ""
        return Task(f"{self.name}-{split}-{start.label}{suffix}", start.task_type, start.payload)


def play(environment: Probe, task: Task, behavior: Behavior, generator: np.random.Generator) -> dict[str, Any]:
    """Let a scripted agent play one task; returns the log record in OpenAI chat form."""
    start = environment.reset(task)
    states = [start.messages[-1].text]
    messages: list[dict[str, Any]] = [{"role": message.role, "content": message.text} for message in start.messages]
    while True:
        action = behavior.policy(states, generator)
        result = environment.step(text_message("assistant", action))
        said: dict[str, Any] = {"role": "assistant", "content": action, "reward": result.reward}
        if result.info["invalid_actions"]:
            said["invalid_action"] = True
        messages.append(said)
        messages += [{"role": message.role, "content": message.text} for message in result.messages]
        if result.terminated or result.truncated:
            break
        states.append(result.messages[-1].text)
    outcome = environment.outcome()
    return {
        "task_id": task.task_id,
        "group_id": task.task_id,
        "task_type": task.task_type,
        "agent": behavior.name,
        "messages": messages,
        "outcome": msgspec.to_builtins(outcome),
        "terminated": result.terminated,
        "truncated": result.truncated,
        "stop_reason": result.stop_reason,
    }


def tabular(states: Sequence[str], actions: Sequence[str], probabilities: FloatArray) -> Policy:
    """The policy that draws its action with the probabilities [S, A] of the state it sees."""
    rows = {state: np.cumsum(row) for state, row in zip(states, probabilities, strict=True)}

    def act(seen: Sequence[str], generator: np.random.Generator) -> str:
        bounds = rows[seen[-1]]
        return actions[int(np.searchsorted(bounds, generator.random() * bounds[-1], side="right"))]

    return act
