"""Events of OpenHands before its SDK (V0): actions and observations become messages.

An action that a model chose carries the whole response it came from (`tool_call_metadata.model_response`), and so
does the observation that answers it; actions of one response are one answer. Older events have no such thing, and the
oldest are flat: their arguments stand beside `action`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.agents.openhands_conversation import Conversation
from offline_arl.logs.primitives.values import as_count, as_list, as_object, as_text, json_text
from offline_arl.logs.providers.openai_messages import convert_message
from offline_arl.logs.providers.openai_tools import normalize_tools
from offline_arl.trajectories.schema import (
    ContentPart,
    ImagePart,
    Message,
    MessageError,
    Producer,
    TextPart,
    Usage,
    tool_call,
)

# What of an action's arguments the agent chose; the rest is bookkeeping. Unknown actions keep all arguments.
_CHOSEN = {
    "run": ("command", "is_input"),
    "run_ipython": ("code",),
    "read": ("path", "start", "end", "view_range"),
    "write": ("path", "content", "start", "end"),
    "browse": ("url",),
    "browse_interactive": ("browser_actions",),
    "delegate": ("agent", "inputs"),
    "finish": ("outputs", "final_thought", "task_completed"),
    "reject": ("outputs",),
    "think": (),
}
_NO_MESSAGE = frozenset({"change_agent_state", "agent_state_changed", "null", "recall", "pause", "resume"})
_EVENT_KEYS = frozenset({"id", "timestamp", "source", "message", "action", "observation", "args", "content", "cause"})
_REJECTED = frozenset({"user_rejected"})


class V0Reader:
    """Reads events in order into a conversation; `others` are the events that are no messages."""

    def __init__(self) -> None:
        self.conversation = Conversation()
        self.others: list[dict[str, Any]] = []
        self.ending: str | None = None  # the last action that ends a session, or the agent's last state
        self.model: str | None = None
        self._calls: dict[str, str] = {}  # ids of calls by event
        self._users: set[str] = set()  # events of commands that the user ran
        self._open: list[str] = []  # ids of calls without result, for events that do not name what they answer

    def read(self, event: object, where: str) -> None:
        """Read one event.

        Raises:
            RecordRefusedError: It is no event; the reason starts with `where`.
        """
        if not isinstance(event, dict):
            raise RecordRefusedError(f"{where}: expected an object")
        name = event_id(event, where)
        if isinstance(event.get("action"), str):
            self._action(event, event["action"], name, where)
        elif isinstance(event.get("observation"), str):
            self._observation(event, event["observation"], name, where)
        else:
            raise RecordRefusedError(f"{where}: is neither an action nor an observation")

    def _action(self, event: dict[str, Any], action: str, name: str, where: str) -> None:
        arguments = _arguments(event)
        if action in _NO_MESSAGE:
            self.others.append(event)
        elif action == "system":
            self._system(arguments, name)
        elif action == "condensation":
            self._condense(arguments, name)
        elif action == "message":
            self._message(event, arguments, name)
        elif event.get("source") == "user":
            self._users.add(name)
            text = next((arguments[key] for key in ("command", "code") if isinstance(arguments.get(key), str)), "")
            self._add(event, name, Message("user", [TextPart(text)], producer=Producer("human")), {"action": action})
        elif not self._sampled(event, name, where):
            self._chosen(event, action, arguments, name)
        if action in ("finish", "reject"):
            self.ending = action

    def _system(self, arguments: dict[str, Any], name: str) -> None:
        text = as_text(arguments.get("content")) or ""
        self.conversation.add(Message("system", [TextPart(text)], producer=Producer("script")), name)
        tools = arguments.get("tools")
        if isinstance(tools, list) and tools:
            self.conversation.tools = normalize_tools(json_text(tools).encode())

    def _condense(self, arguments: dict[str, Any], name: str) -> None:
        listed = as_list(arguments.get("forgotten_event_ids"))
        forgotten = {str(item) for item in listed}
        first, last = (as_count(arguments.get(f"forgotten_events_{end}_id")) for end in ("start", "end"))
        if not forgotten and first is not None and last is not None:
            known = (event for entry in self.conversation.entries for event in entry.events)
            forgotten = {event for event in known if event.isdigit() and first <= int(event) <= last}
        offset = as_count(arguments.get("summary_offset"))
        self.conversation.condense(forgotten, as_text(arguments.get("summary")), offset, name)

    def _message(self, event: dict[str, Any], arguments: dict[str, Any], name: str) -> None:
        if _is_users(event, self.conversation):
            content: list[ContentPart] = [TextPart(as_text(arguments.get("content")) or "")]
            urls = as_list(arguments.get("image_urls", arguments.get("images_urls")))
            content.extend(ImagePart(url) for url in urls if isinstance(url, str))
            self._add(event, name, Message("user", content, producer=Producer("human")), {})
        elif not self._sampled(event, name, name):
            text = as_text(arguments.get("content")) or ""
            self._add(event, name, Message("assistant", [TextPart(text)], producer=Producer("model", self.model)), {})

    def _sampled(self, event: dict[str, Any], name: str, where: str) -> bool:
        """Add the answer that an event carries, once; False where it carries none."""
        metadata = as_object(event.get("tool_call_metadata"))
        response = as_object(metadata.get("model_response"))
        call_id = as_text(metadata.get("tool_call_id"))
        response_id = as_text(response.get("id"))
        choice = as_object(next(iter(as_list(response.get("choices"))), None))
        if response_id is None or not isinstance(choice.get("message"), dict):
            return False
        if call_id is not None:
            self._calls[name] = call_id
        if self.conversation.join(response_id, name):
            return True
        self.model = as_text(response.get("model")) or self.model
        message = convert_message(dict(choice["message"]), f"{where}.tool_call_metadata.model_response")
        self._open.extend(call.id for call in message.tool_calls if call.id is not None)
        extra = {"finish_reason": choice["finish_reason"]} if choice.get("finish_reason") else {}
        answer = msgspec.structs.replace(
            message, id=response_id, producer=Producer("model", self.model), usage=_usage(response.get("usage"))
        )
        self._add(event, name, answer, extra)
        return True

    def _chosen(self, event: dict[str, Any], action: str, arguments: dict[str, Any], name: str) -> None:
        """Add the answer that an action without a response stands for: its thought, and the action as a call."""
        thought = as_text(arguments.get("thought")) or ""
        keys = _CHOSEN.get(action, tuple(key for key in arguments if key != "thought"))
        chosen = {key: arguments[key] for key in keys if arguments.get(key) not in (None, "", {})}
        call_id = f"event_{name}"
        self._calls[name] = call_id
        self._open.append(call_id)
        message = Message(
            "assistant",
            [TextPart(thought)],
            [tool_call(action, chosen, id=call_id)],
            producer=Producer("model", self.model),
        )
        self._add(event, name, message, {})

    def _observation(self, event: dict[str, Any], observation: str, name: str, where: str) -> None:
        extras = as_object(event.get("extras"))
        if observation == "agent_state_changed":
            self.ending = as_text(extras.get("agent_state")) or self.ending
        if observation in _NO_MESSAGE:
            self.others.append(event)
            return
        cause = event.get("cause")
        content = event.get("content")
        text = content if isinstance(content, str) else "" if content is None else json_text(content)
        error = MessageError(observation, text) if observation == "error" or observation in _REJECTED else None
        if cause is not None and str(cause) in self._users:
            self._add(event, name, Message("user", [TextPart(text)], producer=Producer("environment"), error=error), {})
            return
        if event.get("tool_call_metadata") is not None and name not in self._calls:
            self._sampled(event, name, where)
        call_id = self._calls.get(name) or (None if cause is None else self._calls.get(str(cause)))
        if call_id is None and self._open:
            call_id = self._open[0]
        if call_id in self._open:
            self._open.remove(call_id)
        if call_id is None:
            self.others.append(event)
            return
        message = Message("tool", [TextPart(text)], tool_call_id=call_id, error=error, producer=Producer("environment"))
        self._add(event, name, message, {"observation": observation, **({"extras": extras} if extras else {})})

    def _add(self, event: dict[str, Any], name: str, message: Message, extra: dict[str, Any]) -> None:
        rest = {
            key: value
            for key, value in event.items()
            if key not in _EVENT_KEYS and key not in ("tool_call_metadata", "extras") and value is not None
        }
        arguments = {
            key: value for key, value in _arguments(event).items() if key not in ("content", "thought", "tools")
        }
        metadata = {**message.metadata, "event": name, **extra}
        if isinstance(event.get("action"), str):
            metadata["action"] = event["action"]
            if arguments:
                metadata["args"] = arguments
        if "args" in event or "extras" in event:  # in flat events all keys are arguments
            metadata.update(rest)
        stamped = msgspec.structs.replace(message, timestamp=as_text(event.get("timestamp")), metadata=metadata)
        self.conversation.add(stamped, name)


def event_id(event: dict[str, Any], where: str) -> str:
    """The name of an event within its session; its place where it has none."""
    value = event.get("id")
    return str(value) if isinstance(value, (int, str)) and not isinstance(value, bool) else where


def _arguments(event: dict[str, Any]) -> dict[str, Any]:
    if isinstance(event.get("args"), dict):
        return as_object(event["args"])
    if "action" not in event:
        return {}
    return {key: value for key, value in event.items() if key not in _EVENT_KEYS or key == "content"}


def _is_users(event: dict[str, Any], conversation: Conversation) -> bool:
    source = event.get("source")
    if isinstance(source, str):
        return source == "user"
    # Flat events do not say who spoke: the first word is the user's, and so is what follows an answer of the agent.
    last = conversation.entries[-1].message if conversation.entries else None
    return last is None or last.role == "system" or (last.role == "assistant" and not last.tool_calls)


def _usage(value: object) -> Usage | None:
    counts = as_object(value)
    tokens = [as_count(counts.get(key)) for key in ("prompt_tokens", "completion_tokens")]
    return Usage(tokens[0], tokens[1]) if tokens != [None, None] else None
