"""Traces of verifiers since its version 1, which prime-rl trains on: a graph of messages, here always a path.

A trajectory that branches from another one is a trace of its own, in which what they share is not sampled: it is
trained once, in the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from offline_arl.errors import UsageError
from offline_arl.logs.exports.exporter import Container, NativeRecord
from offline_arl.logs.slots.contexts import Tool, all_tools
from offline_arl.logs.slots.slot import KEY, Slot
from offline_arl.logs.slots.writing import slot_value
from offline_arl.trajectories.schema import ImagePart, Message, TextPart, Trajectory, is_policy_message

_TRACE_VERSION = 1
_ROLES = {"developer": "system"}


class PrimeRLExporter:
    """Writes one trace a trajectory."""

    name = "prime_rl"
    title = "verifiers and prime-rl traces"
    adapter = "verifiers_trace"
    containers: Sequence[Container] = ("json_lines",)
    per_record = 1
    leaves_out = (
        "token ids unless every answer has them with its whole prompt, files, text of developers as such, branches and "
        "sub-agents as such, tools that change"
    )

    def native(self, trajectories: Sequence[Trajectory]) -> NativeRecord:
        """The trace of a trajectory."""
        (trajectory,) = trajectories
        nodes = _nodes(trajectory)
        is_crash = trajectory.outcome.status == "infrastructure_error"
        trace: dict[str, Any] = {
            "version": _TRACE_VERSION,
            "id": trajectory.trajectory_id,
            "task": {"type": trajectory.task_type or "Task", "data": {"id": trajectory.task_id}},
            "agent": {"config": {"model": trajectory.model}, "name": trajectory.agent or "agent", "trainable": True},
            "nodes": nodes,
            "calls": [
                _call(index, message) for index, message in enumerate(trajectory.messages) if nodes[index]["sampled"]
            ],
            "rewards": _rewards(trajectory),
            "metrics": _metrics(trajectory),
            "is_completed": trajectory.terminated or trajectory.truncated,
            "ok": not is_crash,
            "errors": [{"type": "InfrastructureError", "message": ""}] if is_crash else [],
            "stop_condition": trajectory.stop_reason,
            "timing": {"start": _seconds(trajectory.started_at)},
        }
        if trajectory.task_id is not None:
            trace["task"]["key"] = trajectory.task_id
        tools = all_tools(trajectory.contexts)
        if tools and nodes:
            nodes[0]["tools"] = [_tool(tool) for tool in tools]
        return NativeRecord(trace)

    def place(self, record: dict[str, Any], slots: Sequence[Slot]) -> None:
        """In `info` of the trace."""
        record["info"] = {KEY: slot_value(slots[0])}

    def arrow_columns(self) -> Mapping[str, Any]:
        """Not written as a table."""
        raise UsageError("prime_rl is written as JSON lines, not as a table")


def _nodes(trajectory: Trajectory) -> list[dict[str, Any]]:
    shared = 0 if trajectory.branch is None else trajectory.branch.message_index
    nodes: list[dict[str, Any]] = []
    for index, message in enumerate(trajectory.messages):
        node: dict[str, Any] = {
            "parent": index - 1 if index else None,
            "message": _message(message),
            "timestamp": _seconds(message.timestamp),
            "sampled": is_policy_message(message) and message.trainable is not False and index >= shared,
            "token_ids": [],
            "mask": [],
            "logprobs": [],
        }
        nodes.append(node)
    _add_tokens(trajectory.messages, nodes)
    return nodes


def _add_tokens(messages: Sequence[Message], nodes: Sequence[dict[str, Any]]) -> None:
    """Give every answer what its prompt adds to the tokens before it, and its own; nothing where one is not known."""
    before: list[int] = []
    spans: list[tuple[dict[str, Any], list[int], list[int], list[float]]] = []
    for message, node in zip(messages, nodes, strict=True):
        if not node["sampled"]:
            continue
        tokens = message.tokens
        if tokens is None or tokens.prompt_token_ids is None or tokens.prompt_token_ids[: len(before)] != before:
            return
        spans.append((node, tokens.prompt_token_ids[len(before) :], tokens.token_ids, tokens.logprobs or []))
        before = [*tokens.prompt_token_ids, *tokens.token_ids]
    for node, prompt, sampled, logprobs in spans:
        node["token_ids"] = [*prompt, *sampled]
        node["mask"] = [False] * len(prompt) + [True] * len(sampled)
        node["logprobs"] = logprobs


def _message(message: Message) -> dict[str, Any]:
    role = _ROLES.get(message.role, message.role)
    fields: dict[str, Any] = {"role": role}
    parts = [part for part in message.content or () if isinstance(part, (TextPart, ImagePart))]
    if role != "assistant" and any(isinstance(part, ImagePart) for part in parts):
        fields["content"] = [
            {"type": "text", "text": part.text}
            if isinstance(part, TextPart)
            else {"type": "image_url", "image_url": {"url": part.uri}}
            for part in parts
        ]
    else:
        fields["content"] = message.text
    if role == "tool":
        fields["tool_call_id"] = message.tool_call_id or ""
        if message.name is not None:
            fields["name"] = message.name
    elif role == "assistant":
        fields["content"] = message.text if message.content else None
        if message.reasoning:
            fields["reasoning_content"] = message.reasoning
        if message.tool_calls:
            fields["tool_calls"] = [
                {"id": call.id or f"call_{number}", "name": call.name, "arguments": call.arguments_raw}
                for number, call in enumerate(message.tool_calls)
            ]
    return fields


def _call(index: int, message: Message) -> dict[str, Any]:
    call: dict[str, Any] = {"node": index}
    if message.producer.kind == "model" and message.producer.name is not None:
        call["model"] = message.producer.name
    usage = message.usage
    if usage is not None and usage.input_tokens is not None and usage.output_tokens is not None:
        call["usage"] = {"prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens}
        if usage.cost is not None:
            call["usage"]["cost"] = usage.cost
    return call


def _rewards(trajectory: Trajectory) -> dict[str, dict[str, float]]:
    """The components where they make up the score, else the score, else the verdict."""
    outcome = trajectory.outcome
    if outcome.status != "scored":
        return {}
    if outcome.components and sum(outcome.components.values()) == outcome.score:
        values = outcome.components
    elif outcome.score is not None:
        values = {"score": outcome.score}
    else:
        values = {} if outcome.success is None else {"success": float(outcome.success)}
    return {name: {"score": value, "weight": 1.0} for name, value in values.items()}


def _metrics(trajectory: Trajectory) -> dict[str, float]:
    """The first judgement of each name that is a number and on the whole trajectory."""
    found: dict[str, float] = {}
    for score in trajectory.scores:
        if score.value is not None and score.message_index is None:
            found.setdefault(score.name, score.value)
    return found


def _tool(tool: Tool) -> dict[str, Any]:
    function = tool["function"]
    found: dict[str, Any] = {"name": function["name"]}
    for name, kind in (("description", str), ("parameters", dict), ("strict", bool)):
        if isinstance(function.get(name), kind):
            found[name] = function[name]
    return found


def _seconds(text: str | None) -> float:
    """Seconds since 1970 of ISO 8601 text; 0 where it is no time or has no zone.

    Where nothing is given, the format has the time at which it is read.
    """
    try:
        moment = datetime.fromisoformat(text or "")
        return moment.timestamp() if moment.tzinfo is not None else 0.0
    except (ValueError, OverflowError):
        return 0.0
