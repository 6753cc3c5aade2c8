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
    """Messages for a chat template; keys without a value are left out, since templates ask whether a key is there.

    Content is text: the template of a text model takes no parts. Without content there is "" unless there are calls,
    since templates strip and join it. A tool result has the name of its tool, which some templates write.
    """
    names: dict[str, str] = {}
    found = []
    for message in messages:
        names.update({call.id: call.name for call in message.tool_calls if call.id is not None})
        values = {
            "reasoning_content": message.reasoning or None,
            "tool_calls": native_calls(message.tool_calls, as_objects=as_objects) or None,
            "tool_call_id": message.tool_call_id,
            "name": message.name,
        }
        if message.role == "tool" and message.name is None:
            values["name"] = names.get(message.tool_call_id or "", "")
        role = _ROLES.get(message.role, message.role)
        given = {name: value for name, value in values.items() if value is not None}
        found.append({"role": role, "content": _content(message), **given})
    return found


def _content(message: Message) -> str | None:
    has_text = any(isinstance(part, TextPart) for part in message.content or ())
    return None if message.tool_calls and not has_text else message.text


def answer_start(messages: Sequence[Message]) -> int:
    """Where the answer begins: at the first message of the assistant; at the end where there is none."""
    return next((index for index, message in enumerate(messages) if message.role == "assistant"), len(messages))
