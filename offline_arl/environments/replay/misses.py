"""How much a replay environment does not know: the calls of agents that it was not recorded with.

Two agents that cost nothing bound what a policy will meet. `left_out`: each recorded attempt plays where only the other
attempts at its task were recorded, so it is another draw of the logged policy. `elsewhere`: each task is played with
what was said and called in the attempt at another task, which is as far from the logs as calls of these tools can be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from offline_arl.environments.protocol import Task
from offline_arl.environments.replay.environment import Replay
from offline_arl.environments.replay.recording import MISS, Recording
from offline_arl.trajectories.schema import Message


@dataclass
class MissCount:
    """What became of an agent's calls.

    `exact`: episodes that stayed a recording to their end; `whole`: episodes without a miss.
    """

    episodes: int = 0
    whole: int = 0
    exact: int = 0
    calls: Counter[str] = field(default_factory=Counter)  # by tool
    misses: Counter[str] = field(default_factory=Counter)

    @property
    def rate(self) -> float | None:
        """Share of all calls that nobody made in the recordings; None where there are no calls."""
        total = sum(self.calls.values())
        return sum(self.misses.values()) / total if total else None


def left_out(by_task: Mapping[str, Sequence[Recording]], *, writes: frozenset[str] | None, max_steps: int) -> MissCount:
    """Each attempt against the recordings of the others at its task; tasks with one attempt are passed over.

    Args:
        by_task: Recordings of each task.
        writes: As for `Replay`.
        max_steps: Of an episode.
    """

    def episodes() -> Iterator[tuple[Replay, Task, Sequence[Message]]]:
        for name, recordings in by_task.items():
            for recording in recordings:
                others = [other for other in recordings if other is not recording]
                alike = [other for other in others if other.opening_key == recording.opening_key] or others
                if alike:
                    yield (
                        Replay({name: others}, writes=writes, max_steps=max_steps),
                        _task(name, alike),
                        recording.steps,
                    )

    return _count(episodes())


def elsewhere(
    by_task: Mapping[str, Sequence[Recording]], *, writes: frozenset[str] | None, max_steps: int
) -> MissCount:
    """Each task, with the steps of the first attempt at the next one; for arguments see `left_out`."""

    def episodes() -> Iterator[tuple[Replay, Task, Sequence[Message]]]:
        names = list(by_task)
        for name, other in zip(names, [*names[1:], *names[:1]], strict=True):
            if other != name:
                replay = Replay(by_task, writes=writes, max_steps=max_steps)
                yield replay, _task(name, by_task[name]), by_task[other][0].steps

    return _count(episodes())


def _task(name: str, recordings: Sequence[Recording]) -> Task:
    named = [recording.trajectory_id for recording in recordings]
    return Task(name, recordings[0].task_type, {"task": name, "recordings": named})


def _count(episodes: Iterable[tuple[Replay, Task, Sequence[Message]]]) -> MissCount:
    count = MissCount()
    for replay, task, steps in episodes:
        replay.reset(task)
        missed = 0
        exact = False
        for step in steps:
            result = replay.step(step)
            exact = bool(result.info["exact"])
            count.calls.update(call.name for call in step.tool_calls)
            if result.info["misses"]:
                unknown = [message.name or "" for message in result.messages if _is_miss(message)]
                count.misses.update(unknown)
                missed += len(unknown)
            if result.terminated or result.truncated:
                break
        count.episodes += 1
        count.whole += missed == 0
        count.exact += exact
    return count


def _is_miss(message: Message) -> bool:
    return message.error is not None and message.error.type == MISS
