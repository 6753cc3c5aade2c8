"""ATIF 1.7, Harbor's interchange format: one document a trajectory, in files of a folder or as JSON lines.

Results of tools stand in the step that called them. Rewards have no place in ATIF; they are in the slot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from offline_arl.errors import UsageError
from offline_arl.logs.exports.exporter import Container, NativeRecord
from offline_arl.logs.exports.images import image_type
from offline_arl.logs.slots.contexts import all_tools
from offline_arl.logs.slots.slot import KEY, Slot
from offline_arl.logs.slots.writing import slot_value
from offline_arl.trajectories.schema import ImagePart, Message, TextPart, Trajectory, is_policy_message

_VERSION = "ATIF-v1.7"
_UNKNOWN = "unknown"  # the name and the version of the agent must be there
_SOURCES = {"system": "system", "developer": "system", "user": "user", "assistant": "agent", "tool": "system"}


class AtifExporter:
    """Writes one document a trajectory."""

    name = "atif"
    title = "ATIF 1.7, Harbor"
    adapter = "atif"
    containers: Sequence[Container] = ("folder", "json_lines")
    per_record = 1
    leaves_out = "outcome and scores, images of unknown type and files, arguments that are no JSON object"

    def native(self, trajectories: Sequence[Trajectory]) -> NativeRecord:
        """The document of a trajectory."""
        (trajectory,) = trajectories
        agent: dict[str, Any] = {"name": trajectory.agent or _UNKNOWN, "version": _UNKNOWN}
        if trajectory.model is not None:
            agent["model_name"] = trajectory.model
        tools = all_tools(trajectory.contexts)
        if tools:
            agent["tool_definitions"] = tools
        document: dict[str, Any] = {
            "schema_version": _VERSION,
            "trajectory_id": trajectory.trajectory_id,
            "agent": agent,
            "steps": _steps(trajectory),
        }
        if trajectory.session_id is not None:
            document["session_id"] = trajectory.session_id
        return NativeRecord(document)

    def place(self, record: dict[str, Any], slots: Sequence[Slot]) -> None:
        """In `extra` of the document."""
        record["extra"] = {KEY: slot_value(slots[0])}

    def arrow_columns(self) -> Mapping[str, Any]:
        """Not written as a table."""
        raise UsageError("atif is written as documents, not as a table")


def _steps(trajectory: Trajectory) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    takes_results = False  # only what comes right after the calls can stand in their step
    for message in trajectory.messages:
        if message.role == "tool" and takes_results:
            observation = steps[-1].setdefault("observation", {"results": []})
            observation["results"].append(_result(message, steps[-1]["tool_calls"]))
            continue
        step = _step(message, trajectory.model)
        takes_results = "tool_calls" in step
        steps.append({"step_id": len(steps) + 1, **step})
    return steps


def _step(message: Message, model: str | None) -> dict[str, Any]:
    step: dict[str, Any] = {"source": _SOURCES[message.role], "message": _content(message)}
    if message.role == "tool":
        step |= {"message": "", "observation": {"results": [_result(message, [])]}}
    if message.timestamp is not None and _is_time(message.timestamp):
        step["timestamp"] = message.timestamp
    if message.producer.kind == "copy":
        step["is_copied_context"] = True
    if message.role != "assistant":
        return step
    if message.producer.kind == "model" and message.producer.name not in (None, model):
        step["model_name"] = message.producer.name
    if message.tool_calls:
        step["tool_calls"] = [
            {
                "tool_call_id": call.id or f"call_{number}",
                "function_name": call.name,
                "arguments": call.arguments or {},
            }
            for number, call in enumerate(message.tool_calls)
        ]
    metrics = _metrics(message)
    if metrics:
        step["metrics"] = metrics
    if message.reasoning:
        step["reasoning_content"] = message.reasoning
    # A step without a model call has neither metrics nor reasoning.
    if not is_policy_message(message) and message.producer.kind != "copy" and not metrics and not message.reasoning:
        step["llm_call_count"] = 0
    return step


def _result(message: Message, calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {"content": _content(message)}
    if any(call["tool_call_id"] == message.tool_call_id for call in calls):
        result["source_call_id"] = message.tool_call_id
    return result


def _content(message: Message) -> str | list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    has_image = False
    for part in message.content or ():
        if isinstance(part, TextPart):
            parts.append({"type": "text", "text": part.text})
        elif isinstance(part, ImagePart) and (kind := image_type(part.uri)) is not None:
            parts.append({"type": "image", "source": {"media_type": kind, "path": part.uri}})
            has_image = True
    return parts if has_image else message.text


def _metrics(message: Message) -> dict[str, Any]:
    usage, tokens = message.usage, message.tokens
    values: dict[str, Any] = {}
    if usage is not None:
        values = {
            "prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens, "cost_usd": usage.cost,
        }  # fmt: skip
    if tokens is not None:
        values |= {
            "prompt_token_ids": tokens.prompt_token_ids,
            "completion_token_ids": tokens.token_ids,
            "logprobs": tokens.logprobs,
        }
    return {name: value for name, value in values.items() if value is not None}


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
