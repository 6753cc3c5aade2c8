"""Messages of tau2-bench simulations as the agent saw them.

The user of a simulation may call tools too; the agent sees neither those calls nor their results, so they are kept
apart. A voice simulation holds no messages but ticks of a fraction of a second, in which both may speak at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.primitives.values import as_list, as_object, as_text, json_text, json_type
from offline_arl.trajectories.schema import (
    Message,
    MessageError,
    Producer,
    Role,
    TextPart,
    ToolCall,
    Usage,
    tool_call,
)

_ROLES: dict[str, Role] = {"system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_PRODUCERS = {
    "system": Producer("script"),
    "user": Producer("script", "user_simulator"),
    "tool": Producer("environment"),
}


class Conversation(NamedTuple):
    """What the agent saw, what it did not, and the message of each turn number."""

    messages: list[Message]
    unseen: list[dict[str, Any]]  # as logged, each with the index of the message that follows it
    turns: dict[int, int]


def convert_messages(values: Sequence[Any], where: str, model: str | None, *, is_voice: bool = False) -> Conversation:
    """Convert logged messages.

    Args:
        is_voice: They are of ticks, which hold no usage: whatever an audio agent says is its own.

    Raises:
        RecordRefusedError: One is no message; the reason starts with a path.
    """
    found = Conversation([], [], {})
    greeting = Producer("model", model) if is_voice else Producer("script")
    for index, value in enumerate(values):
        path = f"{where}[{index}]"
        if not isinstance(value, dict):
            raise RecordRefusedError(f"{path}: expected an object, got {json_type(value)}")
        inner = value.get("tool_messages")
        if isinstance(inner, list):
            for number, item in enumerate(inner):
                if not isinstance(item, dict):
                    raise RecordRefusedError(f"{path}.tool_messages[{number}]: expected an object")
                _add(item, f"{path}.tool_messages[{number}]", found, model, greeting)
        else:
            _add(value, path, found, model, greeting)
    return found


def _add(value: dict[str, Any], where: str, found: Conversation, model: str | None, greeting: Producer) -> None:
    fields = dict(value)
    logged_role = fields.pop("role", None)
    role = _ROLES.get(logged_role) if isinstance(logged_role, str) else None
    if role is None:
        raise RecordRefusedError(f"{where}.role: expected one of {', '.join(_ROLES)}, got {logged_role!r}")
    is_users = (
        fields.get("requestor") == "user" if role == "tool" else role == "user" and bool(fields.get("tool_calls"))
    )
    if is_users:
        found.unseen.append({"before": len(found.messages), "message": value})
        if role == "tool" or not as_text(fields.get("content")):
            return
        fields.pop("tool_calls")
    message = _message(role, fields, where, _producer(role, fields, found.messages, model, greeting))
    turn = value.get("turn_idx")
    if isinstance(turn, int):
        found.turns[turn] = len(found.messages)
    found.messages.append(message)


def _producer(
    role: Role, fields: dict[str, Any], before: Sequence[Message], model: str | None, greeting: Producer
) -> Producer:
    if role != "assistant":
        return _PRODUCERS[role]
    # The greeting with which every conversation begins is the same sentence each time; no model was asked for it.
    if all(message.role == "system" for message in before) and not fields.get("usage") and not fields.get("raw_data"):
        return greeting
    return Producer("model", model)


def _message(role: Role, fields: dict[str, Any], where: str, producer: Producer) -> Message:
    content = fields.pop("content", None)
    if content is not None and not isinstance(content, str):
        raise RecordRefusedError(f"{where}.content: expected a string or null, got {json_type(content)}")
    usage = fields.pop("usage", None)
    cost = fields.pop("cost", None)
    call_id = fields.pop("id", None) if role == "tool" else None
    is_error = fields.pop("error", None) is True
    fields.pop("requestor", None)
    calls = _calls(fields.pop("tool_calls", None), where)
    timestamp = as_text(fields.pop("timestamp", None))
    return Message(
        role=role,
        content=None if content is None else [TextPart(content)],
        tool_calls=calls,
        tool_call_id=as_text(call_id),
        error=MessageError("error", content or "") if is_error else None,
        producer=producer,
        timestamp=timestamp,
        usage=_usage(usage, cost),
        metadata={key: item for key, item in fields.items() if item not in (None, False, [], {})},
    )


def _usage(usage: object, cost: object) -> Usage | None:
    counts = as_object(usage)
    numbers = [counts.get("prompt_tokens"), counts.get("completion_tokens")]
    tokens = [number if isinstance(number, int) and not isinstance(number, bool) else None for number in numbers]
    dollars = float(cost) if isinstance(cost, (int, float)) and not isinstance(cost, bool) else None
    return Usage(tokens[0], tokens[1], dollars) if counts else None


def _calls(values: object, where: str) -> list[ToolCall]:
    calls = []
    for index, value in enumerate(as_list(values)):
        name = as_object(value).get("name")
        if not isinstance(name, str):
            raise RecordRefusedError(f"{where}.tool_calls[{index}].name: expected a string, got {json_type(name)}")
        arguments = value.get("arguments")
        if not isinstance(arguments, (dict, str)):
            arguments = {} if arguments is None else json_text(arguments)
        calls.append(tool_call(name, arguments, id=as_text(value.get("id")) or None))
    return calls


def messages_of_ticks(ticks: Sequence[Any], where: str) -> list[dict[str, Any]]:
    """The messages of a voice simulation in logged form: what one says until the other does.

    Raises:
        RecordRefusedError: A tick is no object.
    """
    found: list[dict[str, Any]] = []
    for index, tick in enumerate(ticks):
        if not isinstance(tick, dict):
            raise RecordRefusedError(f"{where}[{index}]: expected an object, got {json_type(tick)}")
        for role, side in (("assistant", "agent"), ("user", "user")):
            chunk = as_object(tick.get(f"{side}_chunk"))
            time = chunk.get("timestamp") or tick.get("timestamp")
            _say(found, role, chunk, time)
            calls = as_list(tick.get(f"{side}_tool_calls"))
            if calls:
                found.append({"role": role, "content": None, "tool_calls": calls, "timestamp": time})
            found.extend(
                {"requestor": role, **result, "role": "tool"}
                for result in as_list(tick.get(f"{side}_tool_results"))
                if isinstance(result, dict)
            )
    for message in found:
        message.pop("utterance_ids", None)
    return found


def _say(found: list[dict[str, Any]], role: str, chunk: dict[str, Any], time: object) -> None:
    text = chunk.get("audio_script_gold") if chunk.get("is_audio") is True else chunk.get("content")
    if not isinstance(text, str) or not text:
        return
    utterances = {item for item in as_list(chunk.get("utterance_ids")) if isinstance(item, str)}
    last = found[-1] if found else {}
    if last.get("role") != role or last.get("tool_calls"):
        found.append({"role": role, "content": text, "timestamp": time, "utterance_ids": utterances})
        return
    before = last["utterance_ids"]
    gap = " " if utterances and before and utterances.isdisjoint(before) else ""
    last["content"] += gap + text
    last["utterance_ids"] = utterances
