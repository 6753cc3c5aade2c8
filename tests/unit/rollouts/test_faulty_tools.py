"""Tools that crash, hang, break off and babble: every episode is there once, and judged."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest
from toys.lookup import ScriptedSampler, call_text, demonstrations

from offline_arl.environments.faults import Faults, with_faults
from offline_arl.environments.protocol import Task
from offline_arl.environments.tool_environment import FunctionJudge, ScriptedUser, ToolEnvironment
from offline_arl.environments.tools import Tool
from offline_arl.models.tiny import train_tiny_tokenizer
from offline_arl.rendering import Renderer
from offline_arl.rollouts.collect import collect
from offline_arl.trajectories.schema import Outcome

TEXTS = [message.text for item in demonstrations(50, accuracy=1.0, seed=0) for message in item.messages]
RENDERER = Renderer(train_tiny_tokenizer(["what is 123?", *TEXTS], vocabulary_size=300))
KEY = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}


class World:
    """One tool that does everything wrong that a tool can, in some calls."""

    def __init__(self, task: Task) -> None:
        look = Tool("look", "Look.", KEY, self._look, timeout_s=0.3, retries=1)
        faults = Faults(errors=0.3, delays=0.05, malformed=0.1, huge=0.1, delay_s=0.5, huge_characters=100_000)
        self.tools = with_faults([look], faults, seed=int(task.payload["number"]))
        self.is_closed = False

    def _look(self, arguments: dict[str, Any]) -> str:
        if arguments["key"].endswith("5"):
            raise SystemExit("a tool that would end the program")
        return "A"

    def close(self) -> None:
        assert not self.is_closed
        self.is_closed = True


def script(prompt: str, seed: int) -> str:
    """Asks until it gets an answer of one letter, at most four times."""
    key = prompt.split("what is ")[1][:3]
    asked = prompt.count("<tool_call>")
    return "A" if prompt.rstrip().split("<|tool|>")[-1].strip().startswith("A<") or asked >= 4 else call_text(key)


@pytest.mark.parametrize("schedule", ["lockstep", "continuous"])
def test_no_episode_is_lost_or_counted_twice(schedule: Any) -> None:
    worlds: list[World] = []

    def make_world(task: Task) -> World:
        worlds.append(World(task))
        return worlds[-1]

    def judge(task: Task, messages: Any, world: Any) -> Outcome:
        return Outcome("scored", success=any(m.text == "A" for m in messages if m.role == "tool"))

    def environment() -> ToolEnvironment:
        return ToolEnvironment(
            make_world, user=ScriptedUser, judge=FunctionJudge(judge), max_steps=6, max_characters=40
        )

    tasks = [
        Task(f"task-{number}", "look", {"prompt": f"what is {100 + number}?", "number": number}) for number in range(12)
    ]
    started = time.monotonic()
    episodes = collect(
        environment,
        tasks,
        ScriptedSampler(RENDERER, script, max_model_len=1024),
        RENDERER,
        temperature=1.0,
        max_tokens_per_step=40,
        seed=0,
        group_size=3,
        schedule=schedule,
    )
    counted = Counter((episode.task.task_id, episode.attempt) for episode in episodes)
    assert counted == Counter((task.task_id, attempt) for task in tasks for attempt in range(3))
    assert {episode.trajectory.outcome.status for episode in episodes} == {"scored"}
    fates = Counter(
        "ok" if message.error is None else message.error.type
        for episode in episodes
        for message in episode.trajectory.messages
        if message.role == "tool"
    )
    assert fates["tool_crash"] > 5  # of the faults, and of tools that would end the program
    assert fates["ok"] > 20
    texts = [m.text for e in episodes for m in e.trajectory.messages if m.role == "tool"]
    assert any("more characters]" in text for text in texts)
    assert len(worlds) == 36
    assert all(world.is_closed for world in worlds)
    if schedule == "continuous":
        assert time.monotonic() - started < 20
