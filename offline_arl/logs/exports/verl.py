"""Tables of verl: conversations for supervised training, prompts for reinforcement learning.

verl takes tools as a column of nested objects, and a column has one type: where the tools of different conversations
would get each other's parameters as nulls, their parameters are JSON text. Arguments of calls are text throughout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from offline_arl.logs.exports.chat import answer_start, template_messages
from offline_arl.logs.exports.columns import messages_type, nested_tools_type, pyarrow, text_tools_type
from offline_arl.logs.exports.exporter import Container, NativeRecord, NoRecordError, ToolShapes
from offline_arl.logs.slots.contexts import Tool, all_tools
from offline_arl.logs.slots.slot import KEY, Slot
from offline_arl.logs.slots.writing import slot_text
from offline_arl.trajectories.schema import Trajectory

_UNKNOWN_SOURCE = "offline_arl"


class VerlExporter:
    """Writes conversations for `MultiTurnSFTDataset`: `messages`, `tools`."""

    name = "verl"
    title = "verl: conversations for supervised training"
    adapter = "openai_chat"
    containers: Sequence[Container] = ("parquet",)
    per_record = 1
    leaves_out = "which answers are trained, images and files, text of developers as such, tools that change"

    def __init__(self, shapes: ToolShapes | None = None) -> None:
        self._shapes = shapes or ToolShapes(is_complete=False)
        self._nested: Any | None = None if shapes is None else nested_tools_type(shapes)

    def with_tools(self, shapes: ToolShapes) -> VerlExporter:
        """The exporter for conversations that have these tools."""
        return VerlExporter(shapes)

    def native(self, trajectories: Sequence[Trajectory]) -> NativeRecord:
        """The row of a conversation."""
        (trajectory,) = trajectories
        # An empty list where there are none: verl hands what pandas makes of null to the chat template.
        tools: list[Tool] = all_tools(trajectory.contexts) or []
        if self._nested is None:
            tools = [_with_text(tool) for tool in tools]
        messages = template_messages(trajectory.messages, as_objects=False)
        return NativeRecord({"messages": messages, "tools": tools})

    def place(self, record: dict[str, Any], slots: Sequence[Slot]) -> None:
        """One more column, of text."""
        record[KEY] = slot_text(slots)

    def arrow_columns(self) -> Mapping[str, Any]:
        """The columns, in order."""
        pa = pyarrow()
        return {
            "messages": messages_type(),
            "tools": text_tools_type() if self._nested is None else self._nested,
            KEY: pa.string(),
        }


class VerlRLExporter:
    """Writes prompts for `RLHFDataset`, one a trajectory; what followed is in the slot."""

    name = "verl_rl"
    title = "verl: prompts for reinforcement learning"
    adapter = "verl"
    containers: Sequence[Container] = ("parquet",)
    per_record = 1
    leaves_out = "the answer and all that followed it, and the tools, which verl takes from its configuration"

    def native(self, trajectories: Sequence[Trajectory]) -> NativeRecord:
        """The row of a conversation that begins with a prompt."""
        (trajectory,) = trajectories
        start = answer_start(trajectory.messages)
        if start == 0:
            raise NoRecordError("no prompt before the answer")
        prompt = template_messages(trajectory.messages[:start], as_objects=False)
        values = {
            "data_source": trajectory.task_type or _UNKNOWN_SOURCE,
            "prompt": [{"role": message["role"], "content": message["content"] or ""} for message in prompt],
            "ability": trajectory.task_type or "",
            "reward_model": {"style": "rule", "ground_truth": ""},
            # That the key is there tells the adapter that it is more than a prompt.
            "extra_info": {"task_id": trajectory.task_id, KEY: ""},
        }
        count = len(trajectory.messages)
        return NativeRecord(values, [[*range(start), *([None] * (count - start))]])

    def place(self, record: dict[str, Any], slots: Sequence[Slot]) -> None:
        """One more key of `extra_info`, of text."""
        record["extra_info"][KEY] = slot_text(slots)

    def arrow_columns(self) -> Mapping[str, Any]:
        """The columns, in order."""
        pa = pyarrow()
        text = pa.string()
        return {
            "data_source": text,
            "prompt": pa.list_(pa.struct([("role", text), ("content", text)])),
            "ability": text,
            "reward_model": pa.struct([("style", text), ("ground_truth", text)]),
            "extra_info": pa.struct([("task_id", text), (KEY, text)]),
        }


def _with_text(tool: Tool) -> Tool:
    function = tool["function"]
    parameters = function.get("parameters")
    return {
        "type": "function",
        "function": {
            "name": function["name"],
            "description": function["description"] if isinstance(function.get("description"), str) else None,
            "parameters": None if parameters is None else msgspec.json.encode(parameters).decode(),
        },
    }
