"""The return that an episode is asked for, as it goes down by what was earned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from offline_arl.datasets.return_conditioning import ReturnConditioning
from offline_arl.errors import UsageError
from offline_arl.rewards.components import step_rewards
from offline_arl.trajectories.schema import Context, Message, Outcome, Source, Trajectory

TargetReturns = float | Sequence[float]
_UNDECIDED = Outcome("scored", score=0.0)


class EpisodeTarget:
    """The condition of one episode: written into the messages before each step, lowered after it.

    Args:
        conditioning: Of the policy.
        target: The return asked for at the first step.
    """

    def __init__(self, conditioning: ReturnConditioning, target: float) -> None:
        self._conditioning = conditioning
        self._writer = conditioning.writer
        self._every_step = conditioning.conditioning.scope == "step"
        self.target = target
        self.remaining = target

    def start(self, messages: Sequence[Message]) -> list[Message]:
        """The first messages of an episode, with the target."""
        return self._writer.write(messages, self.target)

    def follow(self, messages: Sequence[Message]) -> list[Message]:
        """Messages that arrived after a step, with what is left of the target, where each step has a condition."""
        return self._writer.write(messages, self.remaining) if self._every_step else list(messages)

    def earn(self, message: Message, tools: Sequence[dict[str, Any]]) -> None:
        """Subtract the reward of a step that is not the last.

        It is the reward that the step has in the training data: `step_rewards` of the step alone, an outcome of 0
        standing for the one that only the end will bring.

        Args:
            message: The step, with the environment's reward and verdict in its metadata.
            tools: In force at the step.
        """
        contexts = [Context(0, tools=msgspec.json.encode(tools).decode())]
        alone = Trajectory("step", [message], Source("rollout"), contexts=contexts, outcome=_UNDECIDED)
        rewards = step_rewards(alone, self._conditioning.rewards)
        self.remaining -= sum(rewards or ())


def episode_targets(
    conditioning: ReturnConditioning | None, targets: TargetReturns | None, *, tasks: int, group_size: int
) -> list[float] | None:
    """The target of each episode, the attempts at one task next to one another; None without conditioning.

    Args:
        conditioning: Of the policy; None for one that reads no returns.
        targets: One number for all, one a task or one an episode; None is the best of the training data.
        tasks: Number of tasks.
        group_size: Attempts at each.

    Raises:
        UsageError: Targets are given for a policy that reads none, or their number fits neither tasks nor episodes.
    """
    if conditioning is None:
        if targets is not None:
            raise UsageError("target returns are given for a policy that reads none; leave them out, or train dt")
        return None
    if targets is None:
        targets = conditioning.default_target
    if isinstance(targets, int | float):
        return [float(targets)] * (tasks * group_size)
    if len(targets) == tasks * group_size:
        return [float(target) for target in targets]
    if len(targets) == tasks:
        return [float(target) for target in targets for _ in range(group_size)]
    raise UsageError(
        f"{len(targets)} target returns for {tasks} tasks of {group_size} attempts; give one number, one a task or "
        "one an episode"
    )
