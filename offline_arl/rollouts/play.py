"""One episode while it is played: tokens, messages and environment side by side."""

from __future__ import annotations

import hashlib
import logging
import math
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from offline_arl.datasets.return_conditioning import ReturnConditioning
from offline_arl.environments.protocol import Environment, EpisodeStart, StepResult, Task, abandon, close, task_metadata
from offline_arl.errors import DataError, TemplateError
from offline_arl.rollouts.conditioning import EpisodeTarget
from offline_arl.rollouts.episode import Episode
from offline_arl.rollouts.sampler import Completion, SamplingConfig
from offline_arl.trajectories.calls import call_problem
from offline_arl.trajectories.schema import Context, Message, Outcome, Producer, Source, TokenRecord, Trajectory
from offline_arl.trajectories.segment import Segment

if TYPE_CHECKING:
    from offline_arl.rendering.renderer import Renderer

logger = logging.getLogger(__name__)

EnvironmentFactory = Callable[[], Environment]


class Settings(NamedTuple):
    """What all episodes of one call share."""

    renderer: Renderer
    factory: EnvironmentFactory
    seed: int
    config: SamplingConfig
    max_total_tokens: int
    policy: str | None
    group_size: int
    conditioning: ReturnConditioning | None = None
    targets: Sequence[float] = ()  # the return that each episode is asked for, where there is conditioning


class Rollout:
    """One episode while it is played."""

    def __init__(self, index: int, task: Task, settings: Settings, *, open_later: bool = False) -> None:
        """Begin an episode; with `open_later` the environment is not started yet (see `open` and `opened`)."""
        self.index = index
        self.task = task
        self.attempt = index % settings.group_size
        self.tokens: list[int] = []  # what the policy has seen and said; the next prompt while not ended
        self.n_steps = 0
        self.ended = False
        self._settings = settings
        conditioning = settings.conditioning
        self._target = None if conditioning is None else EpisodeTarget(conditioning, settings.targets[index])
        self._messages: list[Message] = []
        self._shown: list[Message] = []  # what the policy reads: the messages, with its conditions in them
        self._tools: list[dict[str, Any]] = []
        self._completions: list[tuple[int, Completion]] = []  # (start in the prompt's own segment, what was sampled)
        self._prompts: list[list[int]] = []  # of each step, kept where each step is a segment
        self._prompt_length = 0
        self._rewards: list[float] = []
        self._n_tool_calls = 0
        self._n_invalid = 0
        self._terminated = False
        self._truncated = False
        self._stop_reason: str | None = None
        self._outcome = Outcome()
        if not open_later:
            self.opened(self.open())

    def open(self) -> EpisodeStart | Exception:
        """Start the environment. Touches nothing else of the episode, so it may run in another thread."""
        try:
            self._environment = self._settings.factory()
            return self._environment.reset(self.task)
        except Exception as error:
            return error

    def opened(self, start: EpisodeStart | Exception) -> None:
        """Take what the environment shows first."""
        if isinstance(start, Exception):
            self._fail(start)
            return
        self._messages = list(start.messages)
        self._shown = self._messages[:] if self._target is None else self._target.start(self._messages)
        self._tools = start.tools
        self.tokens = self._settings.renderer.prompt(self._shown, self._tools)
        self._prompt_length = len(self.tokens)
        self._end_if_full()

    def take(self, completion: Completion) -> None:
        """Play one sampled step."""
        self.answered(self.act(self.said(completion)))

    def said(self, completion: Completion) -> Message:
        """Take note of a sampled step; returns the message that it spells."""
        self._record(completion)
        return self._messages[-1]

    def act(self, message: Message) -> StepResult | Exception:
        """Let the environment answer. Touches nothing else of the episode, so it may run in another thread."""
        try:
            return self._environment.step(message)
        except Exception as error:  # the harness failed, whatever it was: not the policy's doing
            return error

    def answered(self, result: StepResult | Exception) -> None:
        """Take the environment's answer."""
        if isinstance(result, Exception):
            self._fail(result)
            return
        if not math.isfinite(result.reward):
            self._fail(DataError(f"the environment gave a reward of {result.reward}"))
            return
        message = self._messages[-1]
        invalid = self._invalid_actions(message, result)
        self._messages[-1] = _with_result(message, result.reward, invalid)
        if self._target is not None:
            self._target.earn(self._messages[-1], self._tools)
        self._messages.extend(result.messages)
        self._rewards.append(result.reward)
        self._n_tool_calls += len(message.tool_calls)
        self._n_invalid += invalid
        if result.terminated or result.truncated:
            self._end(result.terminated, result.truncated, result.stop_reason)
        elif self.n_steps >= self._environment.max_steps:
            self._end(terminated=False, truncated=True, stop_reason="max_steps")
        else:
            self._next_prompt(result.messages)

    def episode(self) -> Episode:
        """The finished episode."""
        trajectory = self._trajectory()
        return Episode(
            task=self.task,
            attempt=self.attempt,
            trajectory=trajectory,
            segments=self._segments(trajectory.trajectory_id),
            prompt_length=self._prompt_length,
            rewards=self._rewards,
            n_steps=self.n_steps,
            n_tool_calls=self._n_tool_calls,
            n_invalid=self._n_invalid,
        )

    def _record(self, completion: Completion) -> None:
        renderer = self._settings.renderer
        if not renderer.prefix_preserving:
            self._prompts.append(self.tokens)
        self._completions.append((len(self.tokens), completion))
        self.tokens = [*self.tokens, *completion.token_ids]
        self.n_steps += 1
        known = not any(map(math.isnan, completion.logprobs))  # of steps that were chosen among several it is not
        record = TokenRecord(
            completion.token_ids, renderer.fingerprint, logprobs=completion.logprobs if known else None
        )
        message = msgspec.structs.replace(
            renderer.parse(completion.token_ids, self._tools),
            tokens=record,
            producer=Producer("model", self._settings.policy),
        )
        self._messages.append(message)
        self._shown.append(message)

    def _invalid_actions(self, message: Message, result: StepResult) -> int:
        counted = result.info.get("invalid_actions")
        if counted is not None:
            return int(counted)
        return sum(call_problem(call, self._tools) is not None for call in message.tool_calls)

    def _next_prompt(self, new_messages: list[Message]) -> None:
        renderer = self._settings.renderer
        if self._target is not None:
            new_messages = self._target.follow(new_messages)
        self._shown.extend(new_messages)
        if renderer.prefix_preserving:
            extended = renderer.extend(self.tokens, new_messages, self._tools)
            if extended[: len(self.tokens)] != self.tokens:
                raise TemplateError(
                    f"{self.task.task_id}: Renderer.extend changed tokens that were already sampled; "
                    "use a chat template that keeps earlier turns as they are"
                )
        else:
            extended = renderer.prompt(self._shown, self._tools)
        self.tokens = extended
        self._end_if_full()

    def _end_if_full(self) -> None:
        room = self._settings.max_total_tokens - len(self.tokens)
        if room < self._settings.config.max_tokens:
            self._end(terminated=False, truncated=True, stop_reason="context_length")

    def _end(self, terminated: bool, truncated: bool, stop_reason: str | None) -> None:
        try:
            abandon(self._environment, str(stop_reason))  # an episode that it ended itself is not
            self._outcome = self._environment.outcome()
        except Exception as error:
            self._fail(error)
            return
        self.ended = True
        self._terminated, self._truncated, self._stop_reason = terminated, truncated, stop_reason
        self._close()

    def _fail(self, error: Exception) -> None:
        logger.warning("%s: the environment failed: %s: %s", self.task.task_id, type(error).__name__, error)
        self.ended = True
        self._terminated, self._truncated, self._stop_reason = False, True, "infrastructure_error"
        self._outcome = Outcome(status="infrastructure_error")
        self._close()

    def _close(self) -> None:
        """Let environments that hold something (a server, a sandbox) let go of it."""
        if hasattr(self, "_environment"):
            try:
                close(self._environment)
            except Exception as error:
                logger.warning("%s: the environment cannot be closed: %s", self.task.task_id, error)

    def _trajectory(self) -> Trajectory:
        settings = self._settings
        sampled = [completion.token_ids for _, completion in self._completions]
        identity: list[Any] = [
            settings.policy,
            settings.seed,
            settings.config.temperature,
            self.task.task_id,
            self.attempt,
            sampled,
        ]
        metadata: dict[str, Any] = {
            "seed": settings.seed,
            "attempt": self.attempt,
            "temperature": settings.config.temperature,
            "task": task_metadata(self.task),
        }
        if self._target is not None:
            identity.append(self._target.target)
            metadata["target_return"] = self._target.target
        digest = hashlib.sha256(msgspec.json.encode([*identity, settings.renderer.fingerprint])).hexdigest()
        return Trajectory(
            trajectory_id=f"rollout-{digest[:32]}",
            messages=self._messages,
            source=Source(format="rollout", sha256=digest),
            task_id=self.task.task_id,
            group_id=f"{self.task.task_id}/{settings.seed}",
            task_type=self.task.task_type,
            model=settings.policy,
            contexts=[Context(start=0, tools=msgspec.json.encode(self._tools).decode())],
            terminated=self._terminated,
            truncated=self._truncated,
            stop_reason=self._stop_reason,
            outcome=self._outcome,
            metadata=metadata,
        )

    def _segments(self, trajectory_id: str) -> list[Segment]:
        fingerprint = self._settings.renderer.fingerprint
        if self._settings.renderer.prefix_preserving or not self._completions:
            last = self._completions[-1] if self._completions else None
            end = len(self.tokens) if last is None else last[0] + len(last[1].token_ids)
            return [_segment(trajectory_id, fingerprint, self.tokens[:end], self._completions, first_step=0)]
        return [
            _segment(trajectory_id, fingerprint, [*prompt, *sampled[1].token_ids], [sampled], first_step=step)
            for step, (prompt, sampled) in enumerate(zip(self._prompts, self._completions, strict=True))
        ]


def first_prompt(factory: EnvironmentFactory, task: Task, renderer: Renderer) -> list[int]:
    """What a policy reads first of a task, as a rollout renders it; empty where the environment fails to start."""
    settings = Settings(renderer, factory, 0, SamplingConfig(temperature=0.0, max_tokens=1), sys.maxsize, None, 1)
    rollout = Rollout(0, task, settings)
    if not rollout.ended:
        rollout._close()
    return rollout.tokens


def _with_result(message: Message, reward: float, invalid_actions: int) -> Message:
    """The message with what its step earned, where the derived step table looks for it."""
    marked = {"invalid_action": True} if invalid_actions else {}
    return msgspec.structs.replace(message, metadata={**message.metadata, "reward": reward, **marked})


def _segment(
    trajectory_id: str,
    fingerprint: str,
    tokens: list[int],
    completions: list[tuple[int, Completion]],
    *,
    first_step: int,
) -> Segment:
    action_mask = np.zeros(len(tokens), dtype=np.bool_)
    step_index = np.full(len(tokens), -1, dtype=np.int32)
    logprobs = np.full(len(tokens), np.nan, dtype=np.float32)
    for step, (start, completion) in enumerate(completions, start=first_step):
        span = slice(start, start + len(completion.token_ids))
        if completion.token_ids != tokens[span]:
            raise DataError(f"{trajectory_id}: step {step} does not lie where it was sampled")
        action_mask[span] = True
        step_index[span] = step
        logprobs[span] = completion.logprobs
    return Segment(
        trajectory_id=trajectory_id,
        token_ids=np.array(tokens, dtype=np.int32),
        action_mask=action_mask,
        step_index=step_index,
        fingerprint=fingerprint,
        logprobs=logprobs,
        rendered=False,
    )
