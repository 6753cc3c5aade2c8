"""An answer as the message that a trajectory has of it."""

from __future__ import annotations

import msgspec

from offline_arl.logs.stitching.calls import ModelCall
from offline_arl.trajectories.schema import Message, Producer, ToolCall

_replace = msgspec.structs.replace


def model_message(message: Message, call: ModelCall) -> Message:
    """An answer as the model's message, with what the log says about its call."""
    metadata = {**call.metadata, **message.metadata}
    if call.stop_reason is not None:
        metadata.setdefault("stop_reason", call.stop_reason)
    if call.truncated:
        metadata.setdefault("truncated", True)
    if message.id is not None and call.call_id not in (None, message.id):
        metadata.setdefault("message_id", message.id)
    kind = "model" if message.producer.kind == "unknown" else message.producer.kind
    return _replace(
        message,
        producer=Producer(kind, message.producer.name or call.model),
        id=call.call_id if call.call_id is not None else message.id,
        timestamp=message.timestamp or call.ended_at or call.started_at,
        error=message.error or call.error,
        metadata=metadata,
    )


def with_history_ids(message: Message, repeated: Message, ids: dict[str, str]) -> Message:
    """Give tool calls without ids those of the history; note in `ids` which other ids the history refers to."""
    if len(message.tool_calls) != len(repeated.tool_calls):
        return message
    calls: list[ToolCall] = []
    is_changed = False
    for call, again in zip(message.tool_calls, repeated.tool_calls, strict=True):
        if call.id is None and again.id is not None:
            call, is_changed = _replace(call, id=again.id), True
        elif call.id is not None and again.id is not None and again.id != call.id:
            ids[again.id] = call.id
        calls.append(call)
    return _replace(message, tool_calls=calls) if is_changed else message
