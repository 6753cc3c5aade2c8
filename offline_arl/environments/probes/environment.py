"""What all probes share as environments: a word in, a state out, endings told apart."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

from offline_arl.environments.protocol import EpisodeStart, StepResult, Task
from offline_arl.errors import UsageError
from offline_arl.trajectories.schema import Message, Outcome, Trajectory, text_message

OUT_OF_STEPS = "max_steps"


class Move(NamedTuple):
    """What an action did."""

    state: str  # what the agent sees next
    reward: float
    stop_reason: str | None = None  # set: the task came to its own end
    invalid: bool = False  # not an action that the rules know


class Probe(ABC):
    """One episode of a probe; satisfies `environments.protocol.Environment`.

    An action is the visible text of the assistant's message, without regard to case and to space around it. Anything
    else (other text, an empty message, a tool call) is an illegal move: it takes a step like any other, and what it
    costs is part of each probe's rules. Running out of steps truncates the episode and shows the state it stopped in.
    """

    name: ClassVar[str]
    instructions: ClassVar[str]  # the system prompt
    time_out_reward: ClassVar[float] = 0.0  # added to the last step when the steps run out

    def __init__(self, *, max_steps: int) -> None:
        if max_steps < 1:
            raise UsageError(f"max_steps must be at least 1, not {max_steps}")
        self.max_steps = max_steps
        self._running = False
        self._started = False

    def reset(self, task: Task) -> EpisodeStart:
        """Start an episode."""
        self._steps = 0
        self._return = 0.0
        self._running = self._started = True
        state = self._begin(task.payload)
        return EpisodeStart([text_message("system", self.instructions, kind="script"), self._show(state)], [])

    def step(self, message: Message) -> StepResult:
        """Take an action. Never raises on what the message says.

        Raises:
            UsageError: The episode has ended or was never started.
        """
        if not self._running:
            raise UsageError("the episode has ended: call reset before step")
        self._steps += 1
        move = self._act("" if message.tool_calls else message.text.strip().lower())
        terminated = move.stop_reason is not None
        truncated = not terminated and self._steps >= self.max_steps
        self._running = not (terminated or truncated)
        reward = move.reward + (self.time_out_reward if truncated else 0.0)
        self._return += reward
        return StepResult(
            messages=[] if terminated else [self._show(move.state)],
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            stop_reason=OUT_OF_STEPS if truncated else move.stop_reason,
            info={"invalid_actions": int(move.invalid)},
        )

    def outcome(self) -> Outcome:
        """Whether the goal is reached, the score, and the measures of the episode, its return among them."""
        if not self._started:
            return Outcome()
        success, score, measures = self._judge()
        components = {"return": self._return, **measures}
        return Outcome("scored", success=success, score=score, components=components, scorer=self.name)

    def _show(self, state: str) -> Message:
        return text_message("user", state, kind="environment", name=self.name)

    @abstractmethod
    def _begin(self, payload: dict[str, Any]) -> str:
        """Set the state up and return what the agent sees of it."""

    @abstractmethod
    def _act(self, action: str) -> Move:
        """Take an action, in lower case; "" is none."""

    @abstractmethod
    def _judge(self) -> tuple[bool, float, dict[str, float]]:
        """(success, score, further measures) of the episode as it stands."""


def episode_measures(trajectory: Trajectory) -> dict[str, float]:
    """The measures of an episode, logged or played: `return`, `success` and what else the probe measures.

    The return is the sum of the rewards in the messages, so it also holds for an episode that was cut short.
    """
    rewards = [trajectory.messages[index].metadata.get("reward", 0.0) for index in trajectory.step_indices()]
    measures = {**trajectory.outcome.components, "return": float(sum(rewards))}
    if trajectory.outcome.success is not None:
        measures["success"] = float(trajectory.outcome.success)
    return measures
