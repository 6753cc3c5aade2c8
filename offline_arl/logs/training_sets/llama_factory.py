"""LLaMA-Factory's version 1 messages, whose content is parts `{"type", "value"}`, and its index of data sets.

A call is a part (`tool_call`, JSON text) among text and reasoning of the same turn. `dataset_info.json` maps names of
data sets to files and columns; it holds no conversation.
"""

from __future__ import annotations

from typing import Any

import msgspec

from offline_arl.logs.adapter import RawRecord, RecordRefusedError, RecordSetApartError
from offline_arl.logs.primitives.values import as_object, decode_object, json_type
from offline_arl.logs.providers.openai_messages import convert_message
from offline_arl.logs.training_sets.sharegpt_turns import read_calls
from offline_arl.logs.training_sets.training_rows import (
    contexts_of,
    conversation,
    labelled,
    preference_pair,
    shared_prompt,
)
from offline_arl.trajectories.schema import (
    ContentPart,
    ImagePart,
    Message,
    ReasoningPart,
    TextPart,
    ToolCall,
    Trajectory,
)

_PLACES = frozenset({"file_name", "hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name"})
_TURN_KEYS = ("messages", "chosen_messages")


class LlamaFactoryAdapter:
    """Reads messages made of parts, and sets the index of data sets apart."""

    name = "llama_factory"
    title = "LLaMA-Factory messages of version 1"
    keeps = "reasoning, calls and text of a turn together, tools, which turns are trained, pairs, verdicts"
    lacks = "dataset_info.json, an index, is set apart"

    def recognizes(self, record: Any) -> bool:
        """Whether the record has messages of valued parts, or is an index of data sets."""
        if not isinstance(record, dict):
            return False
        return _is_index(record) or any(_is_made_of_parts(record.get(key)) for key in _TURN_KEYS)

    def convert(self, record: RawRecord) -> list[Trajectory]:
        """The trajectory of a conversation, or the two of a pair."""
        rest = decode_object(record.raw)
        if _is_index(rest):
            raise RecordSetApartError("an index of data sets (dataset_info.json), not a conversation")
        key = next((key for key in _TURN_KEYS if key in rest), None)
        if key is None:
            raise RecordRefusedError("has no messages")
        contexts = contexts_of(rest.pop("tools", None))
        messages = _messages(rest.pop(key), key)
        rejected = rest.pop("rejected_messages", None)
        if rejected is not None:
            others = _messages(rejected, "rejected_messages")
            count = shared_prompt(messages, others)
            answers = messages[count:], others[count:]
            return preference_pair(record, self.name, messages[:count], answers, rest, contexts)
        label = rest.pop("label") if isinstance(rest.get("label"), bool) else None
        return [labelled(conversation(record, self.name, messages, rest, contexts), label, "label")]


def _is_index(record: dict[str, Any]) -> bool:
    entries = list(record.values())
    return bool(entries) and all(isinstance(entry, dict) and not _PLACES.isdisjoint(entry) for entry in entries)


def _is_made_of_parts(messages: Any) -> bool:
    if not isinstance(messages, list) or not messages:
        return False
    content = as_object(messages[0]).get("content")
    return isinstance(content, list) and bool(content) and as_object(content[0]).keys() >= {"type", "value"}


def _messages(values: Any, where: str) -> list[Message]:
    if not isinstance(values, list):
        raise RecordRefusedError(f"{where}: expected a list, got {json_type(values)}")
    return [_message(value, f"{where}[{index}]") for index, value in enumerate(values)]


def _message(value: Any, where: str) -> Message:
    if not isinstance(value, dict):
        raise RecordRefusedError(f"{where}: expected an object, got {json_type(value)}")
    fields = dict(value)
    parts = fields.pop("content", None)
    weight = fields.get("loss_weight")
    if isinstance(weight, (int, float)) and weight in (0, 1):
        del fields["loss_weight"]
    if not isinstance(parts, list):
        message = convert_message({**fields, "content": parts}, where)
    else:
        message = _of_parts(fields, parts, where)
    if isinstance(weight, (int, float)):
        message = msgspec.structs.replace(message, trainable=weight > 0)
    return message


def _of_parts(fields: dict[str, Any], parts: list[Any], where: str) -> Message:
    content: list[ContentPart] = []
    calls: list[ToolCall] = []
    others: list[dict[str, Any]] = []
    for index, part in enumerate(parts):
        kind, value = as_object(part).get("type"), as_object(part).get("value")
        if kind == "text" and isinstance(value, str):
            content.append(TextPart(value))
        elif kind == "reasoning" and isinstance(value, str):
            content.append(ReasoningPart(value))
        elif kind in ("image", "image_url") and isinstance(value, str):
            content.append(ImagePart(value))
        elif kind in ("tool_call", "tool_calls"):
            calls.extend(read_calls(value, f"{where}.content[{index}].value"))
        else:
            others.append({"index": index, "part": part})
    message = convert_message({**fields, "content": None}, where)
    return msgspec.structs.replace(
        message,
        content=content or None,
        tool_calls=[*message.tool_calls, *calls],
        metadata={**message.metadata, "other_parts": others} if others else message.metadata,
    )
