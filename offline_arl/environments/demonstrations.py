"""Trajectories from the examples of tasks, so that what a policy fails at becomes something to learn from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from offline_arl.environments.protocol import (
    Environment,
    EnvironmentFamily,
    HasExamples,
    Task,
    closing,
    task_metadata,
    task_of,
)
from offline_arl.errors import UsageError
from offline_arl.trajectories.schema import Context, Message, Source, Trajectory


def demonstration(family: EnvironmentFamily, task: Task, messages: Sequence[Message], *, agent: str) -> Trajectory:
    """The trajectory of playing given assistant messages in a task, with the environment's answers and its verdict.

    Args:
        family: Of the task.
        task: The task.
        messages: What the agent says; those after the end of the episode are left out.
        agent: Name of the agent in the trajectory.
    """
    with closing(family.make()) as environment:
        return _demonstration(environment, family.name, task, messages, agent)


def _demonstration(
    environment: Environment, name: str, task: Task, messages: Sequence[Message], agent: str
) -> Trajectory:
    start = environment.reset(task)
    said = list(start.messages)
    terminated = truncated = False
    stop_reason: str | None = None
    for message in messages:
        result = environment.step(message)
        rewarded = msgspec.structs.replace(message, metadata={**message.metadata, "reward": result.reward})
        said += [rewarded, *result.messages]
        terminated, truncated, stop_reason = result.terminated, result.truncated, result.stop_reason
        if terminated or truncated:
            break
    identity = msgspec.json.encode([name, task.task_id, agent, [message.text for message in said]])
    digest = hashlib.sha256(identity).hexdigest()
    return Trajectory(
        trajectory_id=f"demonstration-{digest[:32]}",
        messages=said,
        source=Source(format="demonstration", sha256=digest),
        task_id=task.task_id,
        group_id=task.task_id,
        task_type=task.task_type,
        agent=agent,
        contexts=[Context(start=0, tools=msgspec.json.encode(start.tools).decode())],
        terminated=terminated,
        truncated=truncated,
        stop_reason=stop_reason,
        outcome=environment.outcome(),
        metadata={"task": task_metadata(task)},
    )


def training_cases(family: EnvironmentFamily, episodes: Iterable[Trajectory]) -> Iterator[Trajectory]:
    """Each failed episode with the example of success at its task beside it, in one group.

    What comes out is a set of pairs to learn preferences from; its successes alone are a set to clone.

    Args:
        family: With examples.
        episodes: Of any policies, with their tasks in their metadata (as rollouts have them). Those that succeeded, or
            were not judged, are passed over.

    Raises:
        UsageError: The family has no examples.
    """
    if not isinstance(family, HasExamples):
        raise UsageError(f"the environment {family.name!r} has no examples of how its tasks are solved")
    solved: dict[str, Trajectory | None] = {}
    for episode in episodes:
        task = task_of(episode)
        if task is None or episode.outcome.status != "scored" or episode.outcome.success is not False:
            continue
        if task.task_id not in solved:
            success = family.examples(task).success
            example = None if success is None else demonstration(family, task, success, agent="example")
            solved[task.task_id] = example
            if example is not None:
                yield example
        if solved[task.task_id] is not None:
            yield msgspec.structs.replace(episode, group_id=task.task_id)
