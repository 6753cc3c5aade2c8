"""The seams between environments and the code that acts in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from offline_arl.trajectories.schema import Message, Outcome


@dataclass(frozen=True)
class Task:
    """One problem. `payload` is the environment's own description, JSON-serializable."""

    task_id: str
    task_type: str
    payload: dict[str, Any]


@dataclass(frozen=True)
class EpisodeStart:
    """What the agent sees first."""

    messages: list[Message]  # system prompt and the first user message
    tools: list[dict[str, Any]]  # OpenAI form


@dataclass(frozen=True)
class StepResult:
    """What follows one assistant message."""

    messages: list[Message]  # tool results and user replies, in order; may be empty at the end
    reward: float  # what this step earned, the outcome's reward included at the last step
    terminated: bool
    truncated: bool
    stop_reason: str | None = None  # set exactly when the episode ended
    info: dict[str, Any] = field(default_factory=dict)  # e.g. {"invalid_actions": 1}


class Environment(Protocol):
    """One episode at a time; cheap to construct, no shared state between instances."""

    max_steps: int

    def reset(self, task: Task) -> EpisodeStart:
        """Start an episode."""
        ...

    def step(self, message: Message) -> StepResult:
        """Take the assistant's message; never raises on anything the assistant says."""
        ...

    def outcome(self) -> Outcome:
        """The judge's verdict on the episode as it stands; final once the episode ended."""
        ...


class EnvironmentFamily(Protocol):
    """An environment with its tasks, as found by name (`environments.load(name)`)."""

    name: str

    def make(self) -> Environment:
        """A fresh environment."""
        ...

    def tasks(self, split: str, count: int, *, seed: int) -> list[Task]:
        """`count` tasks of "train", "validation" or "test"; the splits never share a task."""
        ...
