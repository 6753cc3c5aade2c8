"""Chat messages for tools that put them through a chat template: what TRL and verl have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from offline_arl.trajectories.schema import Message, TextPart, ToolCall

_ROLES = {"developer": "system"}  # chat templates know no other role of this kind


def native_calls(calls: Sequence[ToolCall], *, as_objects: bool) -> list[dict[str, Any]]:
    """Tool calls in the OpenAI form.

    Args:
        calls: The calls.
        as_objects: Arguments as objects, as chat templates want them. Text that is no object stays text.
    """
    found = []
    for number, call in enumerate(calls):
        arguments = call.arguments if as_objects and call.arguments is not None else call.arguments_raw
        function = {"name": call.name, "arguments": arguments}
        found.append({"id": call.id or f"call_{number}", "type": "function", "function": function})
    return found


def template_messages(messages: Sequence[Message], *, as_objects: bool) -> list[dict[str, Any]]:
    """Messages that all have the same keys: tables and `datasets` make columns of them.

    Content is text: the template of a text model takes no parts. Without content there is "" unless there are calls,
    since templates strip and join it.
    """
    return [
        {
            "role": _ROLES.get(message.role, message.role),
            "content": _content(message),
            "reasoning_content": message.reasoning or None,
            "tool_calls": native_calls(message.tool_calls, as_objects=as_objects) or None,
            "tool_call_id": message.tool_call_id,
            "name": message.name,
        }
        for message in messages
    ]


def _content(message: Message) -> str | None:
    has_text = any(isinstance(part, TextPart) for part in message.content or ())
    return None if message.tool_calls and not has_text else message.text


def answer_start(messages: Sequence[Message]) -> int:
    """Where the answer begins: at the first message of the assistant; at the end where there is none."""
    return next((index for index, message in enumerate(messages) if message.role == "assistant"), len(messages))
