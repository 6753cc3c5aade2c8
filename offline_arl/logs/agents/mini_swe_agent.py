"""Trajectory files of mini-swe-agent (`trajectory_format: mini-swe-agent-1...`).

The messages are those that were sent, with what the agent adds under `extra`: the commands that it read from an
answer, costs, times, return codes. A last message of role "exit" says how the run ended. Agents on the Responses API
hold responses and their items in place of messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import msgspec

from offline_arl.logs.adapter import RawRecord, RecordRefusedError
from offline_arl.logs.primitives.pairing import pair_by_order
from offline_arl.logs.primitives.times import iso_time
from offline_arl.logs.primitives.values import as_list, as_object, as_text, decode_object, json_type
from offline_arl.logs.providers.openai_messages import convert_message
from offline_arl.logs.providers.openai_responses import responses_items_to_messages
from offline_arl.trajectories.schema import Message, Outcome, Producer, Trajectory, Usage

_TERMINATED = frozenset({"Submitted", "RepeatedFormatError", "UserExit"})
_TRUNCATED = frozenset({"LimitsExceeded", "TimeExceeded", "ContextWindowExceededError"})


class MiniSweAgentAdapter:
    """Reads trajectory files of mini-swe-agent."""

    name = "mini_swe_agent"
    title = "mini-swe-agent trajectories"
    keeps = "exit status, patch, commands, costs and times, configuration"
    lacks = "the reward (evaluated elsewhere), tool schemas"

    def recognizes(self, record: Any) -> bool:
        """Whether the record names this format and has messages."""
        if not isinstance(record, dict) or not isinstance(record.get("messages"), list):
            return False
        name = record.get("trajectory_format")
        return isinstance(name, str) and name.startswith("mini-swe-agent")

    def convert(self, record: RawRecord) -> list[Trajectory]:
        """The one trajectory of a file."""
        values = decode_object(record.raw)
        logged = values.pop("messages", None)
        if not isinstance(logged, list):
            raise RecordRefusedError(f"messages: expected a list, got {json_type(logged)}")
        info = as_object(values.get("info"))
        model = as_text(as_object(as_object(info.get("config")).get("model")).get("model_name"))
        messages = _messages(logged, model)
        if not messages:
            raise RecordRefusedError("messages: there are none")
        status = as_text(info.get("exit_status")) or None
        is_known = status is None or status in _TERMINATED or status in _TRUNCATED
        task = as_text(values.get("instance_id")) or _task(record.label)
        return [
            Trajectory(
                trajectory_id=record.trajectory_id(),
                messages=messages,
                source=record.source(self.name),
                task_id=task,
                group_id=task,
                agent="mini-swe-agent",
                model=model,
                started_at=next((message.timestamp for message in messages if message.timestamp), None),
                ended_at=next((message.timestamp for message in reversed(messages) if message.timestamp), None),
                terminated=status in _TERMINATED,
                truncated=status in _TRUNCATED,
                stop_reason=status,
                # Any other status is the name of an exception that ended the run.
                outcome=Outcome() if is_known else Outcome("infrastructure_error"),
                metadata=values,
            )
        ]


def _task(label: str) -> str | None:
    name = PurePath(label).name
    return name.removesuffix(".traj.json") if name.endswith(".traj.json") else None


def _messages(logged: Sequence[Any], model: str | None) -> list[Message]:
    messages: list[Message] = []
    for index, value in enumerate(logged):
        if not isinstance(value, dict):
            raise RecordRefusedError(f"messages[{index}]: expected an object, got {json_type(value)}")
        if value.get("role") != "exit":
            messages.extend(_converted(value, f"messages[{index}]", model, has_acted=_has_acted(messages)))
    return pair_by_order(messages)


def _has_acted(messages: Sequence[Message]) -> bool:
    return any(message.role == "assistant" for message in messages)


def _converted(value: dict[str, Any], where: str, model: str | None, *, has_acted: bool) -> list[Message]:
    fields = dict(value)
    extra = as_object(fields.pop("extra", None))
    if fields.get("object") == "response":
        found = responses_items_to_messages(as_list(fields.get("output")), f"{where}.output")
    elif "role" not in fields and isinstance(fields.get("type"), str):
        found = responses_items_to_messages([fields], where)
    else:
        found = [convert_message(fields, where)]
    return [_annotated(message, extra, model, has_acted=has_acted) for message in found]


def _annotated(message: Message, extra: dict[str, Any], model: str | None, *, has_acted: bool) -> Message:
    usage = as_object(as_object(extra.get("response")).get("usage"))
    counts = [usage.get("prompt_tokens", usage.get("input_tokens"))]
    counts.append(usage.get("completion_tokens", usage.get("output_tokens")))
    tokens = [count if isinstance(count, int) and not isinstance(count, bool) else None for count in counts]
    cost = extra.get("cost")
    dollars = float(cost) if isinstance(cost, (int, float)) and not isinstance(cost, bool) else None
    if message.role == "assistant":
        producer = Producer("model", model)
    else:
        # Where answers hold commands as text, what came of them is told in the role of the user.
        producer = Producer("environment") if message.role == "tool" or has_acted else Producer("script")
    known = ("cost", "timestamp", "response")
    for key, item in extra.items():
        if key not in known and item not in (None, [], {}):
            message.metadata.setdefault(key, item)
    return msgspec.structs.replace(
        message,
        producer=producer,
        timestamp=iso_time(extra.get("timestamp")),
        usage=Usage(tokens[0], tokens[1], dollars) if message.role == "assistant" and (usage or dollars) else None,
    )
