"""The seams between environments and the code that acts in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, runtime_checkable

from offline_arl.trajectories.schema import Message, Outcome, ToolCall, Trajectory


class StopReason(StrEnum):
    """Why episodes end, as far as this package ends them; an environment may have reasons of its own."""

    ANSWERED = "answered"  # terminated: the agent gave its final answer
    GOAL = "goal"  # terminated: the task's own end
    MAX_STEPS = "max_steps"  # truncated from here on
    CONTEXT_LENGTH = "context_length"
    CALL_LIMIT = "call_limit"
    COST_LIMIT = "cost_limit"
    TIME_LIMIT = "time_limit"
    FORBIDDEN_ACTION = "forbidden_action"  # terminated: what follows is worth nothing
    INFRASTRUCTURE_ERROR = "infrastructure_error"  # the harness failed; no reward, not a reward of 0


@dataclass(frozen=True)
class Task:
    """One problem. `payload` is the environment's own description, JSON-serializable.

    `allowed_tools`: the tools that solving this task may need; None: all of the environment's. Wrapped in
    `safety.Guarded`, an environment shows and runs no others.
    """

    task_id: str
    task_type: str
    payload: dict[str, Any]
    allowed_tools: tuple[str, ...] | None = None


def task_metadata(task: Task) -> dict[str, Any]:
    """What a trajectory's metadata keep of its task under "task", so that the task can be played again."""
    allowed = {} if task.allowed_tools is None else {"allowed_tools": list(task.allowed_tools)}
    return {"payload": task.payload, **allowed}


def task_of(trajectory: Trajectory) -> Task | None:
    """The task of an episode, from its metadata; None where they have none."""
    kept = trajectory.metadata.get("task")
    if not isinstance(kept, dict) or not isinstance(kept.get("payload"), dict) or trajectory.task_id is None:
        return None
    allowed = kept.get("allowed_tools")
    tools = tuple(str(name) for name in allowed) if isinstance(allowed, list) else None
    return Task(trajectory.task_id, trajectory.task_type or "unknown", kept["payload"], tools)


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

    @property
    def name(self) -> str:
        """As `environments.load` takes it."""
        ...

    def make(self) -> Environment:
        """A fresh environment."""
        ...

    def tasks(self, split: str, count: int, *, seed: int) -> list[Task]:
        """`count` tasks of "train", "validation" or "test"; the splits never share a task."""
        ...


@runtime_checkable
class KnowsTargetReturns(Protocol):
    """An environment family that says for each task what a return-conditioned policy is asked for."""

    def target_return(self, task: Task) -> float:
        """The return to ask for, for example the best that logged agents get at the task."""
        ...


@runtime_checkable
class Reversible(Protocol):
    """An environment whose state can be kept and taken back, so that writes can be undone and searches can branch."""

    def snapshot(self) -> bytes:
        """The whole state of the episode; a later `restore` brings it back exactly, as often as wanted."""
        ...

    def restore(self, state: bytes) -> None:
        """Take back a state that `snapshot` of the same episode gave."""
        ...


@runtime_checkable
class HasCosts(Protocol):
    """An environment whose tools say what their calls cost."""

    def tool_costs(self) -> dict[str, float]:
        """Of one call of each tool of this episode, in units that the limits of `safety` count."""
        ...


class Compensation(Protocol):
    """The way back of one call."""

    @property
    def call(self) -> ToolCall:
        """The call."""
        ...

    def run(self) -> str | None:
        """Take the call back. Never raises; returns what went wrong, None where nothing did."""
        ...


@runtime_checkable
class Compensating(Protocol):
    """An environment that cannot keep its state, but can take back the calls that changed it, one by one."""

    def write_tools(self) -> dict[str, bool]:
        """The tools of this episode that change something, and whether their calls can be taken back."""
        ...

    def written(self) -> int:
        """How many calls of this episode may have changed something and were not taken back."""
        ...

    def compensations(self, since: int) -> Sequence[Compensation]:
        """The calls after the first `since`, newest first, each to be taken back once; they no longer count then."""
        ...


class Examples(NamedTuple):
    """Assistant messages that play an episode: one way to succeed, and one to fail; None where none is known."""

    success: Sequence[Message] | None
    failure: Sequence[Message] | None


@runtime_checkable
class HasExamples(Protocol):
    """A family whose tasks carry an example of success and one of failure; this is how bugs of judges are found."""

    def examples(self, task: Task) -> Examples:
        """Both examples of a task."""
        ...


@runtime_checkable
class NamesTools(Protocol):
    """A family whose tasks speak of tools, in rules of a judge or in examples: a name that is misspelt is found so."""

    def named_tools(self, task: Task) -> set[str]:
        """The tools that a task's rules and examples name."""
        ...


def tool_names(start: EpisodeStart) -> list[str]:
    """The names of an episode's tools, in their order."""
    return [str(tool.get("function", tool).get("name")) for tool in start.tools]


def abandon(environment: Environment, reason: str) -> None:
    """Tell an environment that wants to know (`safety.Guarded`) that its episode does not go on."""
    told = getattr(environment, "abandon", None)
    if callable(told):
        told(reason)


def close(environment: Environment) -> None:
    """Let an environment that holds something (a server, a sandbox) let go of it."""
    release = getattr(environment, "close", None)
    if callable(release):
        release()


@contextmanager
def closing(environment: Environment) -> Iterator[Environment]:
    """Close an environment afterwards."""
    try:
        yield environment
    finally:
        close(environment)
