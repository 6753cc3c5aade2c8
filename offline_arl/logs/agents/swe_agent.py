"""Trajectory files of SWE-agent (`.traj`).

`history` holds the messages once; `trajectory` repeats them as steps with what the environment measured, each perhaps
with the whole prompt. The history is the source here; steps add times and states, and the last step where the history
ends before it. History processors show the model less than the history holds; which ones ran is kept as metadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import msgspec

from offline_arl.logs.adapter import RawRecord, RecordRefusedError
from offline_arl.logs.primitives.pairing import pair_by_order
from offline_arl.logs.primitives.values import as_list, as_object, as_text, decode_object, json_type
from offline_arl.logs.providers.openai_messages import convert_message
from offline_arl.trajectories.schema import Message, Producer, TextPart, Trajectory, parse_arguments, tool_call

_FAULTS = ("error", "environment", "api", "abort")
_LIMITS = ("cost", "context", "time", "limit")
_STEP_EXTRAS = ("execution_time", "state", "extra_info")


class SweAgentAdapter:
    """Reads trajectory files of SWE-agent, of version 1 and before."""

    name = "swe_agent"
    title = "SWE-agent trajectories (.traj)"
    keeps = (
        "exit status, patch, demonstrations as such, times and states of steps, history processors, run configuration"
    )
    lacks = "the reward (evaluated elsewhere), tool schemas, what history processors left of the prompt"

    def recognizes(self, record: Any) -> bool:
        """Whether the record has a history, the steps of a trajectory, and info."""
        return (
            isinstance(record, dict)
            and isinstance(record.get("history"), list)
            and isinstance(record.get("trajectory"), list)
            and isinstance(record.get("info"), dict)
        )

    def convert(self, record: RawRecord) -> list[Trajectory]:
        """The trajectories of a file, one for each agent whose messages its history holds."""
        values = decode_object(record.raw)
        history = values.pop("history", None)
        if not isinstance(history, list) or not history:
            raise RecordRefusedError(f"history: expected a list of messages, got {json_type(history)}")
        steps = [as_object(step) for step in as_list(values.pop("trajectory", None))]
        config = _config(values.pop("replay_config", None))
        model = as_object(as_object(config.get("agent")).get("model"))
        names = _agents(history)
        found: list[Trajectory] = []
        for number, name in enumerate(names):
            messages = _messages(history, name, as_text(model.get("name")))
            metadata: dict[str, Any] = {}
            if number == 0:
                messages = _with_steps(messages, steps, as_text(model.get("name")))
                metadata = {**values, **_from_config(config)}
                if steps and steps[-1].get("observation") != messages[-1].text:
                    metadata["last_observation"] = steps[-1].get("observation")
            found.append(
                Trajectory(
                    trajectory_id=record.trajectory_id(number),
                    messages=messages,
                    source=record.source(self.name),
                    task_id=_task(config, record.label),
                    group_id=_task(config, record.label),
                    parent_trajectory_id=found[0].trajectory_id if found else None,
                    agent=name,
                    model=as_text(model.get("name")),
                    metadata=metadata,
                )
            )
        found[0] = _with_ending(found[0], as_text(as_object(values.get("info")).get("exit_status")))
        return found


def _config(value: object) -> dict[str, Any]:
    """The configuration of the run, an object or the JSON text of one."""
    if isinstance(value, str):
        parsed, _ = parse_arguments(value)
        return {"text": value} if parsed is None else parsed
    return as_object(value)


def _from_config(config: dict[str, Any]) -> dict[str, Any]:
    if not config:
        return {}
    agent = as_object(config.get("agent"))
    processors = agent.get("history_processors", agent.get("history_processor"))
    found = {"replay_config": config}
    if processors:
        found["history_processors"] = processors
    return found


def _task(config: dict[str, Any], label: str) -> str | None:
    """The id of the problem, or the name of the file, which is that id in a batch."""
    named = as_text(as_object(config.get("problem_statement")).get("id"))
    path = PurePath(label)
    return named or (path.stem if path.suffix == ".traj" else None)


def _agents(history: Sequence[Any]) -> list[str | None]:
    """The names of the agents in order of appearance."""
    names: dict[str | None, None] = {}
    for value in history:
        names.setdefault(as_text(as_object(value).get("agent")))
    return list(names)


def _messages(history: Sequence[Any], agent: str | None, model: str | None) -> list[Message]:
    messages: list[Message] = []
    for index, value in enumerate(history):
        if not isinstance(value, dict):
            raise RecordRefusedError(f"history[{index}]: expected an object, got {json_type(value)}")
        if as_text(value.get("agent")) == agent:
            has_acted = any(message.producer.kind == "model" for message in messages)
            messages.extend(_message(value, f"history[{index}]", model, has_acted=has_acted))
    return pair_by_order(messages)


def _message(value: dict[str, Any], where: str, model: str | None, *, has_acted: bool) -> list[Message]:
    """The message of one entry; several where one entry answers several calls."""
    fields = dict(value)
    fields.pop("agent", None)
    call_ids = fields.pop("tool_call_ids", None)
    is_demonstration = fields.pop("is_demo", None) is True
    if fields.get("tool_calls") is None:
        fields.pop("tool_calls", None)
    if fields.get("thought") == fields.get("content"):
        fields.pop("thought", None)
    blocks = fields.pop("thinking_blocks", None)
    message = convert_message(fields, where)
    if blocks:
        message.metadata["thinking_blocks"] = blocks
    message = msgspec.structs.replace(
        message, producer=_producer(message, model, is_demonstration=is_demonstration, has_acted=has_acted)
    )
    ids = [item for item in as_list(call_ids) if isinstance(item, str)]
    if message.role != "tool" or not ids:
        return [message]
    # One observation may stand for several calls; each gets it as its answer.
    return [msgspec.structs.replace(message, tool_call_id=call_id) for call_id in ids]


def _producer(message: Message, model: str | None, *, is_demonstration: bool, has_acted: bool) -> Producer:
    if is_demonstration:
        return Producer("demonstration")
    if message.role == "assistant":
        return Producer("model", model)
    # Without tool calls the environment answers in the role of the user.
    return Producer("environment") if message.role == "tool" or has_acted else Producer("script")


def _with_steps(messages: list[Message], steps: Sequence[dict[str, Any]], model: str | None) -> list[Message]:
    """Add what the steps measured to the answers, and the last step where the history ends before it."""
    places = [
        index
        for index, message in enumerate(messages)
        if message.role == "assistant" and message.producer.kind == "model"
    ]
    for index, step in zip(places, steps, strict=False):
        measured = {key: step[key] for key in _STEP_EXTRAS if step.get(key) not in (None, {}, "")}
        if step.get("response") == messages[index].text:
            messages[index].metadata.update(measured)
    if len(steps) == len(places) + 1 and _is_answer(steps[-1]):
        messages.append(_last_answer(steps[-1], model, has_calls=any(message.tool_calls for message in messages)))
    return messages


def _is_answer(step: dict[str, Any]) -> bool:
    """Whether a step was asked of the model; steps that only say why the run was ended were not."""
    response, action = step.get("response"), step.get("action")
    return isinstance(response, str) and isinstance(action, str) and bool(action) and not action.startswith("exit_")


def _last_answer(step: dict[str, Any], model: str | None, *, has_calls: bool) -> Message:
    action = step["action"].strip()
    metadata = {key: step[key] for key in ("action", *_STEP_EXTRAS) if step.get(key) is not None}
    is_call = has_calls and action.isidentifier()
    return Message(
        "assistant",
        [TextPart(step["response"])],
        [tool_call(action, {}, id="last_step")] if is_call else [],
        producer=Producer("model", model),
        # An action with arguments is logged as a command line, not as the call that it was.
        trainable=False if has_calls and not is_call else None,
        metadata=metadata,
    )


def _with_ending(trajectory: Trajectory, status: str | None) -> Trajectory:
    if status is None:
        return trajectory
    terminated, truncated, is_fault = ending(status)
    outcome = msgspec.structs.replace(trajectory.outcome, status="infrastructure_error")
    return msgspec.structs.replace(
        trajectory,
        terminated=terminated,
        truncated=truncated,
        stop_reason=status,
        outcome=outcome if is_fault else trajectory.outcome,
    )


def ending(status: str) -> tuple[bool, bool, bool]:
    """What an exit status says: (terminated, truncated, failed for reasons that are not the agent's).

    >>> ending("submitted"), ending("submitted (exit_cost)"), ending("exit_error"), ending("exit_format")
    ((True, False, False), (False, True, False), (False, False, True), (True, False, False))
    """
    words = status.lower().partition("(")
    reason = words[2] or words[0]
    if any(word in reason for word in _LIMITS):
        return False, True, False
    if any(word in reason for word in _FAULTS):
        return False, False, True
    return True, False, False
