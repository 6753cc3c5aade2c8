"""Logs of mixed quality: scripted agents play tasks, and what happened is written as OpenAI chat JSONL.

The same tasks are tried by several agents, as in production: attempts at one task share `task_id` and `group_id`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from offline_arl.environments.protocol import Task
from offline_arl.environments.support_desk.behaviors import SKILLS, ScriptedAgent, Skill
from offline_arl.environments.support_desk.environment import SupportDesk
from offline_arl.environments.support_desk.tasks import decode_payload, generate_tasks
from offline_arl.errors import UsageError
from offline_arl.trajectories.schema import Message


def write_logs(
    path: Path, count: int, *, seed: int, attempts: int = 2, progress: Callable[[int, int], None] | None = None
) -> None:
    """Write `count` episodes on training tasks to `path`, `attempts` a task; atomic.

    Args:
        path: The JSONL file to make.
        count: Number of episodes (lines).
        seed: Decides tasks, agents and mistakes.
        attempts: Episodes on the same task.
        progress: Called with (done, total).

    Raises:
        UsageError: `count` or `attempts` is not positive.
    """
    if count < 1 or attempts < 1:
        raise UsageError(f"count and attempts must be positive, not {count} and {attempts}")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with temporary.open("wb") as file:
            for done, record in enumerate(_records(count, seed=seed, attempts=attempts), start=1):
                file.write(msgspec.json.encode(record) + b"\n")
                if progress is not None:
                    progress(done, count)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _records(count: int, *, seed: int, attempts: int) -> Iterator[dict[str, Any]]:
    tasks = generate_tasks("train", -(-count // attempts), seed=seed)
    shares = np.array([skill.share for skill in SKILLS])
    for index in range(count):
        task, attempt = tasks[index // attempts], index % attempts
        generator = np.random.default_rng([seed, 7, index])
        skill = SKILLS[int(generator.choice(len(SKILLS), p=shares / shares.sum()))]
        yield play(task, skill, generator, attempt=attempt)


def play(task: Task, skill: Skill, generator: np.random.Generator, *, attempt: int = 0) -> dict[str, Any]:
    """Let a scripted agent play one task; returns the log record in OpenAI chat form."""
    environment = SupportDesk()
    start = environment.reset(task)
    messages = list(start.messages)
    turns = ScriptedAgent(skill, decode_payload(task.payload), generator).play()
    message = next(turns)
    while True:
        result = environment.step(message)
        messages += [message, *result.messages]
        if result.terminated or result.truncated:
            break
        message = turns.send(result.messages)
    turns.close()
    outcome = environment.outcome()
    return {
        "id": f"{task.task_id}-{attempt}",
        "task_id": task.task_id,
        "group_id": task.task_id,
        "task_type": task.task_type,
        "agent": skill.name,
        "messages": [_openai(message) for message in messages],
        "tools": start.tools,
        "success": outcome.success,
        "score": outcome.score,
        "terminated": result.terminated,
        "truncated": result.truncated,
        "stop_reason": result.stop_reason,
    }


def _openai(message: Message) -> dict[str, Any]:
    record: dict[str, Any] = {"role": message.role, "content": message.text if message.content is not None else None}
    if message.tool_calls:
        record["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_raw}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        record["tool_call_id"] = message.tool_call_id
    if message.role == "tool" and message.name is not None:
        record["name"] = message.name
    return record
