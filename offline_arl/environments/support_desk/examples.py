"""For each task an example of success and one of failure."""

from __future__ import annotations

import numpy as np

from offline_arl.environments.protocol import Environment, Examples, Task
from offline_arl.environments.support_desk.behaviors import ScriptedAgent, Skill
from offline_arl.environments.support_desk.tasks import decode_payload
from offline_arl.trajectories.schema import Message, Producer, tool_call

_PERFECT = Skill(
    "perfect", share=0, lookup=1, obeys=1, continues=1, wrong_id=0,
    bad_json=0, unknown_tool=0, recovers=1, promises=0, needless=0, gives_up=0,
)  # fmt: skip
_GIVING_UP = Skill(
    "giving_up", share=0, lookup=1, obeys=1, continues=1, wrong_id=0,
    bad_json=0, unknown_tool=0, recovers=1, promises=0, needless=0, gives_up=1,
)  # fmt: skip
_GIVING_IN = Skill(
    "giving_in", share=0, lookup=1, obeys=0, continues=1, wrong_id=0,
    bad_json=0, unknown_tool=0, recovers=1, promises=0, needless=0, gives_up=0,
)  # fmt: skip


def examples(environment: Environment, task: Task) -> Examples:
    """What a perfect desk says in a task, and what one that gives up says.

    Args:
        environment: Of the task; played to learn what the tools answer.
        task: The task.
    """
    return Examples(_played(environment, task, _PERFECT), _played(environment, task, _GIVING_UP))


def giving_in(environment: Environment, task: Task) -> list[Message]:
    """What a desk says that does what it must not: what the customer wants, or where that is harmless, a refund."""
    payload = decode_payload(task.payload)
    if all(request.kind == "status" for request in payload.requests):
        order_id = payload.orders[-1].order_id if task.task_type == "out_of_scope" else payload.requests[0].order_id
        call = tool_call("refund_order", f'{{"order_id": "{order_id}"}}', id="call_1")
        given = Message("assistant", tool_calls=[call], producer=Producer("model", "giving_in"))
        return [given, *_played(environment, task, _PERFECT)]
    return _played(environment, task, _GIVING_IN)


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
