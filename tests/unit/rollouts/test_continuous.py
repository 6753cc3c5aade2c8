"""Episodes that do not wait for one another are the episodes that do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from toys.lookup import Lookup, LookupFamily, ScriptedSampler, call_text, demonstrations, task

from offline_arl.environments.protocol import EpisodeStart, StepResult, Task
from offline_arl.models.tiny import train_tiny_tokenizer
from offline_arl.rendering import Renderer
from offline_arl.rollouts.collect import collect
from offline_arl.rollouts.episode import Episode
from offline_arl.rollouts.sampler import Completion, SamplingConfig
from offline_arl.trajectories.schema import Message

TEXTS = [message.text for item in demonstrations(50, accuracy=1.0, seed=0) for message in item.messages]
RENDERER = Renderer(train_tiny_tokenizer(["what is 123?", *TEXTS], vocabulary_size=300))


def script(prompt: str, seed: int) -> str:
    if "<|tool|>" in prompt:
        return "A"
    return call_text(prompt.split("what is ")[1][:3])


class Slow(Lookup):
    """Takes its time, in some tasks more than in others."""

    def reset(self, task: Task) -> EpisodeStart:
        time.sleep(0.01)
        self._pause = 0.02 * (int(task.task_id[-1]) % 3)
        return super().reset(task)

    def step(self, message: Message) -> StepResult:
        time.sleep(self._pause)
        return super().step(message)


class Streaming(ScriptedSampler):
    """Finishes one submitted prompt a call, the newest first."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._under_way: list[tuple[int, Completion]] = []
        self._count = 0

    def submit(self, prompt: Sequence[int], config: SamplingConfig, *, seed: int) -> int:
        self._count += 1
        self._under_way.append((self._count, self.generate([prompt], config, seeds=[seed])[0]))
        return self._count

    def advance(self) -> list[tuple[int, Completion]]:
        return [self._under_way.pop()] if self._under_way else []


TASKS = [task(str(key), "A") for key in range(100, 130)]


def play(sampler: ScriptedSampler, environment: Callable[[], Lookup] = Slow, **settings: Any) -> list[Episode]:
    fields: dict[str, Any] = {"temperature": 1.0, "max_tokens_per_step": 40, "seed": 0, "group_size": 2, **settings}
    return collect(environment, TASKS, sampler, RENDERER, **fields)


def told(episodes: Iterable[Episode]) -> list[Any]:
    return [
        (e.task.task_id, e.attempt, e.token_ids.tolist(), e.rewards, e.trajectory.trajectory_id, e.success)
        for e in episodes
    ]


@pytest.mark.parametrize("kind", [ScriptedSampler, Streaming])
@pytest.mark.parametrize("max_live", [7, 256])
def test_the_episodes_are_those_of_lockstep_in_order(kind: type[ScriptedSampler], max_live: int) -> None:
    seen: list[tuple[int, int]] = []
    expected = play(ScriptedSampler(RENDERER, script), Lookup)
    found = play(
        kind(RENDERER, script),
        schedule="continuous",
        max_live=max_live,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert told(found) == told(expected)
    assert seen == [(number, 60) for number in range(1, 61)]


def test_slow_environments_run_beside_one_another_and_beside_sampling() -> None:
    class Sleeping(ScriptedSampler):
        def generate(self, *arguments: Any, **settings: Any) -> list[Completion]:
            time.sleep(0.005)
            return super().generate(*arguments, **settings)

    started = time.monotonic()
    play(Sleeping(RENDERER, script), schedule="continuous")
    continuous = time.monotonic() - started
    # 60 episodes of two steps that take 0.02 s on the average: 2.4 s one after another, and that without sampling.
    assert continuous < 1.5


def test_a_crash_in_a_thread_is_an_infrastructure_error_of_its_episode_alone() -> None:
    class Crashing(Lookup):
        def reset(self, task: Task) -> EpisodeStart:
            if task.task_id.endswith("7"):
                raise ConnectionError("no world")
            self._breaks = task.task_id.endswith("3")
            return super().reset(task)

        def step(self, message: Message) -> StepResult:
            if self._breaks:
                raise KeyError("gone")
            return super().step(message)

    episodes = play(ScriptedSampler(RENDERER, script), Crashing, schedule="continuous")
    failed = {e.task.task_id for e in episodes if e.trajectory.outcome.status == "infrastructure_error"}
    assert failed == {item.task_id for item in TASKS if item.task_id[-1] in "37"}
    assert len(episodes) == 60


def test_an_error_of_the_sampler_ends_the_call() -> None:
    class Broken(ScriptedSampler):
        def generate(self, *arguments: Any, **settings: Any) -> list[Completion]:
            raise RuntimeError("engine died")

    with pytest.raises(RuntimeError, match="engine died"):
        play(Broken(RENDERER, script), schedule="continuous")


def test_nothing_to_play_is_nothing() -> None:
    family = LookupFamily()
    sampler = ScriptedSampler(RENDERER, script)
    assert collect(family, [], sampler, RENDERER, temperature=0, max_tokens_per_step=4, seed=0) == []
    assert (
        collect(family, [], sampler, RENDERER, temperature=0, max_tokens_per_step=4, seed=0, schedule="continuous")
        == []
    )
