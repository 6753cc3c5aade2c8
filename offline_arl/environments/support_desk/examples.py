"""For each task an example of success and one of failure."""

from __future__ import annotations

import numpy as np

from offline_arl.environments.protocol import Environment, Examples, Task
from offline_arl.environments.support_desk.behaviors import ScriptedAgent, Skill
from offline_arl.environments.support_desk.tasks import decode_payload
from offline_arl.trajectories.schema import Message

_PERFECT = Skill(
    "perfect", share=0, lookup=1, obeys=1, continues=1, wrong_id=0,
    bad_json=0, unknown_tool=0, recovers=1, promises=0, needless=0, gives_up=0,
)  # fmt: skip
_GIVING_UP = Skill(
    "giving_up", share=0, lookup=1, obeys=1, continues=1, wrong_id=0,
    bad_json=0, unknown_tool=0, recovers=1, promises=0, needless=0, gives_up=1,
)  # fmt: skip


def examples(environment: Environment, task: Task) -> Examples:
    """What a perfect desk says in a task, and what one that gives up says.

    Args:
        environment: Of the task; played to learn what the tools answer.
        task: The task.
    """
    return Examples(_played(environment, task, _PERFECT), _played(environment, task, _GIVING_UP))


def _played(environment: Environment, task: Task, skill: Skill) -> list[Message]:
    environment.reset(task)
    turns = ScriptedAgent(skill, decode_payload(task.payload), np.random.default_rng(0)).play()
    messages = [next(turns)]
    while True:
        result = environment.step(messages[-1])
        if result.terminated or result.truncated:
            turns.close()
            return messages
        messages.append(turns.send(result.messages))
