"""Turn messages into what a chat template takes, losing nothing on the way.

Templates differ in what they accept: arguments as objects or as text, content that must be a string, one call a
message, names or ids on tool results. The profile says what this template wants; what it cannot write itself (raw
arguments that are not JSON, text that it would drop) is composed here and put in after the template ran.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from offline_arl.rendering.plain_text import ControlText, raw_slot, slot
from offline_arl.rendering.profile import TemplateProfile
from offline_arl.rendering.template import ChatTemplate
from offline_arl.rendering.tool_calls import split_reasoning
from offline_arl.trajectories.schema import FilePart, ImagePart, Message, TextPart, ToolCall

Tools = list[dict[str, Any]] | None


class ControlPart(TextPart, frozen=True, tag="control", omit_defaults=True):
    """Text whose control tokens are meant: the only content of a message that is not guarded.

    It comes from code alone, the condition of a return-conditioned policy for example, and stands at the end of a
    message. No log can hold one: the record types do not know the tag, so it is never stored.
    """


@dataclass
class Conversation:
    """Guarded messages in the template's form, ready to be rendered up to any message."""

    template: ChatTemplate
    controls: ControlText
    messages: list[dict[str, Any]] = field(default_factory=list)
    slots: list[str] = field(default_factory=list)

    def text(self, tools: Tools, *, upto: int | None = None, generation_prompt: bool) -> str:
        """Guarded text of the first `upto` messages.

        Raises:
            TemplateError: The template refuses the messages.
        """
        text = self.template.text(self.messages[:upto], tools, generation_prompt=generation_prompt)
        return self.controls.fill(text, self.slots)


class ConversationBuilder:
    """Builds `Conversation`s for one template."""

    def __init__(self, template: ChatTemplate, profile: TemplateProfile, controls: ControlText) -> None:
        self._template = template
        self._profile = profile
        self._controls = controls

    def build(self, messages: Sequence[Message]) -> Conversation:
        """The conversation of `messages`; cheap, renders nothing."""
        conversation = Conversation(self._template, self._controls)
        waiting: list[tuple[str, str]] = []  # (id, name) of calls not yet answered
        for message in messages:
            if message.role == "assistant":
                # Numbered within the message, so that ids do not depend on what came before it.
                calls = [(call.id or f"call{number:05d}", call) for number, call in enumerate(message.tool_calls)]
                waiting = [(call_id, call.name) for call_id, call in calls]
                conversation.messages.append(self._assistant(message, calls, conversation.slots))
            elif message.role == "tool":
                conversation.messages.append(self._tool(message, waiting))
            else:
                role = "system" if message.role == "developer" and not self._profile.takes_developer else message.role
                content = self._controls.guard(visible_text(message)) + control_text(message)
                conversation.messages.append({"role": role, "content": content})
        return conversation

    def _tool(self, message: Message, waiting: list[tuple[str, str]]) -> dict[str, Any]:
        ids = [call_id for call_id, _ in waiting]
        index = ids.index(message.tool_call_id) if message.tool_call_id in ids else 0
        call_id, name = message.tool_call_id, message.name
        if waiting and (call_id is None or call_id in ids):
            call_id, called = waiting.pop(index)
            name = name or called
        text = visible_text(message) or (message.error.text if message.error is not None else "")
        result: dict[str, Any] = {"role": "tool", "content": self._controls.guard(text) + control_text(message)}
        if name:
            result["name"] = self._controls.guard(name)
        if call_id:
            result["tool_call_id"] = self._controls.guard(self._id(call_id))
        return result

    def _assistant(self, message: Message, calls: list[tuple[str, ToolCall]], slots: list[str]) -> dict[str, Any]:
        profile, guard = self._profile, self._controls.guard
        text, reasoning = visible_text(message), message.reasoning
        if not reasoning and "</think>" in text:
            reasoning, text = split_reasoning(text)
        result: dict[str, Any] = {"role": "assistant"}
        thought = ""
        if reasoning and profile.reasoning_key is not None:
            result[profile.reasoning_key] = guard(reasoning)
        elif reasoning:
            thought = f"<think>\n{guard(reasoning)}\n</think>\n\n"
        style = profile.call_style
        if style is not None and self._needs_composing(thought + text, [call for _, call in calls]):
            written = style.separator.join(self._written(call) for _, call in calls)
            body = guard(text) + style.after_text + written if text else written
            result["content"] = thought + slot(len(slots))
            slots.append(body)
            return result
        result["content"] = thought + guard(text)
        if calls:
            result["tool_calls"] = [self._call(call_id, call, slots) for call_id, call in calls]
        return result

    def _needs_composing(self, shown: str, calls: list[ToolCall]) -> bool:
        profile = self._profile
        if not calls:
            return False
        if any(call.arguments is None or not call.name for call in calls):
            return True
        return (profile.single_call and len(calls) > 1) or (bool(shown) and not profile.keeps_text)

    def _written(self, call: ToolCall) -> str:
        style = self._profile.call_style
        assert style is not None
        guard = self._controls.guard
        # The raw text stands for arguments that could not be parsed; all others are spelled as the template does.
        raw = call.arguments_raw if call.arguments is None else json.dumps(call.arguments, ensure_ascii=False)
        return style.call(guard(call.name), guard(raw))

    def _call(self, call_id: str, call: ToolCall, slots: list[str]) -> dict[str, Any]:
        arguments: Any = call.arguments
        if arguments is None and self._profile.raw_arguments:
            arguments = raw_slot(len(slots))
            slots.append(self._controls.guard(call.arguments_raw))
        elif arguments is None:  # the template takes nothing but an object
            arguments = self._controls.guard_json({"arguments": call.arguments_raw})
        elif self._profile.string_arguments:
            arguments = self._controls.guard(json.dumps(arguments, ensure_ascii=False))
        else:
            arguments = self._controls.guard_json(arguments)
        function = {"name": self._controls.guard(call.name), "arguments": arguments}
        return {"type": "function", "id": self._controls.guard(self._id(call_id)), "function": function}

    def _id(self, call_id: str) -> str:
        if not self._profile.short_ids or (len(call_id) == 9 and call_id.isalnum()):
            return call_id
        return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:9]


def visible_text(message: Message) -> str:
    """The text of a message with a short mark where an image or file stands, which a text model cannot see."""
    parts = message.content or ()
    if not any(isinstance(part, ImagePart | FilePart | ControlPart) for part in parts):
        return message.text
    marks = {ImagePart: "[image]", FilePart: "[file]"}
    return "".join(part.text if type(part) is TextPart else marks.get(type(part), "") for part in parts)


def control_text(message: Message) -> str:
    """The text of a message's control parts; "" for whatever was logged."""
    return "".join(part.text for part in message.content or () if type(part) is ControlPart)
