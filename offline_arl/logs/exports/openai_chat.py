"""OpenAI chat messages, with the keys of this project at the top level: the format that leaves nothing out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from offline_arl.errors import UsageError
from offline_arl.logs.exports.chat import native_calls
from offline_arl.logs.exports.exporter import Container, NativeRecord
from offline_arl.logs.slots.contexts import all_tools, write_contexts
from offline_arl.logs.slots.slot import KEY, Slot
from offline_arl.logs.slots.writing import slot_value
from offline_arl.trajectories.schema import (
    ContentPart,
    FilePart,
    ImagePart,
    Message,
    Outcome,
    Producer,
    ReasoningPart,
    TextPart,
    Trajectory,
)

_TEXT_FIELDS = (
    "trajectory_id", "task_id", "group_id", "episode_id", "session_id", "user_id", "parent_trajectory_id", "task_type",
    "agent", "model", "started_at", "ended_at", "stop_reason",
)  # fmt: skip
_OTHER_FIELDS = ("branch", "outcome", "scores", "identifiers", "metadata")
_MESSAGE_FIELDS = ("tool_call_id", "name", "error", "tokens", "timestamp", "metadata", "id")
_DEFAULTS = {"tool": Producer("environment")}


class OpenAIChatExporter:
    """Writes one conversation a record."""

    name = "openai_chat"
    title = "OpenAI chat messages with the keys of this project"
    adapter = "openai_chat"
    containers: Sequence[Container] = ("json_lines",)
    per_record = 1
    leaves_out = "tools that change within a conversation are joined to one list"

    def native(self, trajectories: Sequence[Trajectory]) -> NativeRecord:
        """The record of a trajectory."""
        (trajectory,) = trajectories
        record: dict[str, Any] = {"messages": [_message(message) for message in trajectory.messages]}
        tools = all_tools(trajectory.contexts)
        if tools is not None:
            record["tools"] = tools
        if len(trajectory.contexts) > 1 or any(context.start for context in trajectory.contexts):
            record["contexts"] = msgspec.to_builtins(write_contexts(trajectory.contexts, tools or []))
        for name in _TEXT_FIELDS:
            if (value := getattr(trajectory, name)) is not None:
                record[name] = value
        for name in ("terminated", "truncated"):
            if getattr(trajectory, name):
                record[name] = True
        empty = Trajectory("", [], trajectory.source)
        for name in _OTHER_FIELDS:
            value = getattr(trajectory, name)
            if value != getattr(empty, name):
                record[name] = msgspec.to_builtins(value)
        if trajectory.outcome != Outcome():
            # The status is told also where it is the default: a score may be there and not count.
            record["outcome"] = {"status": trajectory.outcome.status, **record["outcome"]}
        return NativeRecord(record)

    def place(self, record: dict[str, Any], slots: Sequence[Slot]) -> None:
        """One more key at the top level."""
        record[KEY] = slot_value(slots[0])

    def arrow_columns(self) -> Mapping[str, Any]:
        """Not written as a table."""
        raise UsageError("openai_chat is written as JSON lines; trl is the format for tables")


def _message(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = {"role": message.role, "content": None}
    parts = list(message.content or ())
    if parts and _is_plain_reasoning(parts[0]):
        fields["reasoning_content"] = parts.pop(0).text  # type: ignore[union-attr]
    if len(parts) == 1 and isinstance(parts[0], TextPart):
        fields["content"] = parts[0].text
    elif parts or message.content == []:
        fields["content"] = [_part(part) for part in parts]
    if message.tool_calls:
        fields["tool_calls"] = native_calls(message.tool_calls, as_objects=False)
    for name in _MESSAGE_FIELDS:
        if value := getattr(message, name):
            fields[name] = msgspec.to_builtins(value)
    if message.producer != _DEFAULTS.get(message.role, Producer()):
        fields["producer"] = {"kind": message.producer.kind, **msgspec.to_builtins(message.producer)}
    if message.usage is not None:
        usage = message.usage
        values = {"prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens, "cost": usage.cost}
        fields["usage"] = {name: value for name, value in values.items() if value is not None}
    if message.trainable is not None:
        # OpenAI's fine-tuning knows a weight of its own answers only.
        name = "weight" if message.role == "assistant" else "trainable"
        fields[name] = int(message.trainable) if name == "weight" else message.trainable
    return fields


def _is_plain_reasoning(part: ContentPart) -> bool:
    return isinstance(part, ReasoningPart) and part == ReasoningPart(part.text) and part.text != ""


def _part(part: ContentPart) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    if isinstance(part, ReasoningPart):
        signature = {} if part.signature is None else {"signature": part.signature}
        return {"type": "reasoning", "text": part.text, **signature}
    if isinstance(part, ImagePart):
        detail = {} if part.detail is None else {"detail": part.detail}
        return {"type": "image_url", "image_url": {"url": part.uri, **detail}}
    assert isinstance(part, FilePart)
    return {"type": "file", "file": {"file_id": part.uri}}
