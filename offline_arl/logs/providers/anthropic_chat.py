"""Conversations in the Anthropic form, one a record: `{system, messages, tools}` with whatever stands beside them.

The other keys are those of OpenAI chat records (`openai_chat.trajectory_of`). What tells the two forms apart are
content blocks (tool use and results, thinking with a signature, sources of pictures) and schemas of tools.
"""

from __future__ import annotations

from typing import Any

from offline_arl.logs.adapter import RawRecord
from offline_arl.logs.primitives.values import as_list, as_object, decode_object
from offline_arl.logs.providers.anthropic_messages import convert_messages, normalize_tools, system_messages
from offline_arl.logs.providers.openai_chat import trajectory_of
from offline_arl.trajectories.schema import Context, Trajectory

_BLOCKS = frozenset({"tool_use", "tool_result", "redacted_thinking", "server_tool_use", "mcp_tool_use"})
_ROLES: frozenset[Any] = frozenset({"user", "assistant", "system"})


class AnthropicChatAdapter:
    """Reads records with `messages` in the Anthropic form."""

    name = "anthropic_chat"
    title = "Anthropic messages, one conversation a record"
    keeps = "thinking with signatures, tools of the provider, pictures, documents, outcome and scores, task and group"
    lacks = ""

    def recognizes(self, record: Any) -> bool:
        """Whether the messages or tools hold what only this form has."""
        if not isinstance(record, dict) or not isinstance(record.get("messages"), list) or not record["messages"]:
            return False
        messages = record["messages"]
        if not all(isinstance(message, dict) and _has_known_role(message) for message in messages):
            return False
        if any("input_schema" in as_object(tool) for tool in as_list(record.get("tools"))):
            return True
        return isinstance(record.get("system"), list) or any(map(_has_own_block, messages))

    def convert(self, record: RawRecord) -> list[Trajectory]:
        """The one trajectory of a record."""
        fields = decode_object(record.raw)
        messages = [*system_messages(fields.pop("system", None)), *convert_messages(fields.pop("messages", None))]
        tools = normalize_tools(fields.pop("tools", None))
        contexts = [] if tools is None else [Context(0, tools)]
        return [trajectory_of(record, self.name, messages, contexts, fields)]


def _has_known_role(message: dict[str, Any]) -> bool:
    role = message.get("role")
    return isinstance(role, str) and role in _ROLES and "tool_calls" not in message


def _has_own_block(message: dict[str, Any]) -> bool:
    for block in as_list(message.get("content")):
        fields = as_object(block)
        kind = fields.get("type")
        if isinstance(kind, str) and (
            kind in _BLOCKS
            or (kind == "thinking" and "signature" in fields)
            or (kind in ("image", "document") and "source" in fields)
        ):
            return True
    return False
