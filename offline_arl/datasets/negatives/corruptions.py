"""Ways in which a good step goes wrong: for each kind of negative, the candidates that could stand in its place.

They are proposals, in random order; `judges` decide which of them are really wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from offline_arl.datasets.negatives.judges import Candidate
from offline_arl.datasets.pairs.pair import call_key, is_trained_step
from offline_arl.rewards.preferences import NegativeKind
from offline_arl.trajectories.schema import Message, ToolCall, Trajectory, tool_call

Propose = Callable[[Trajectory, int, np.random.Generator], Iterator[Candidate]]

_SYNONYMS = {
    "get": ("fetch", "find", "lookup", "read"), "list": ("get_all", "search", "show"), "search": ("find", "query"),
    "update": ("set", "change", "modify"), "create": ("add", "make", "new"), "delete": ("remove", "drop"),
    "send": ("post", "submit"), "open": ("start", "create"), "cancel": ("abort", "stop"), "refund": ("reimburse",),
}  # fmt: skip
_AFFIXES = ("{}_tool", "{}_v2", "do_{}", "{}_info", "{}_now", "call_{}")
_ID = re.compile(r"[A-Za-z]*\d[\w-]*")


def wrong_type(trajectory: Trajectory, position: int, generator: np.random.Generator) -> Iterator[Candidate]:
    """One argument as another type: a number as text, text in a list, an object for a word."""
    for number, call in _shuffled_calls(trajectory, position, generator):
        arguments = call.arguments or {}
        for name in _shuffled(list(arguments), generator):
            for value in _shuffled(_other_types(arguments[name]), generator):
                yield _with_call(trajectory, position, number, _with_arguments(call, {**arguments, name: value}))


def missing_argument(trajectory: Trajectory, position: int, generator: np.random.Generator) -> Iterator[Candidate]:
    """One argument left out."""
    for number, call in _shuffled_calls(trajectory, position, generator):
        arguments = call.arguments or {}
        for name in _shuffled(list(arguments), generator):
            rest = {key: value for key, value in arguments.items() if key != name}
            yield _with_call(trajectory, position, number, _with_arguments(call, rest))


def unknown_tool(trajectory: Trajectory, position: int, generator: np.random.Generator) -> Iterator[Candidate]:
    """The same arguments for a tool of a likely name."""
    for number, call in _shuffled_calls(trajectory, position, generator):
        for name in _shuffled(_other_names(call.name), generator):
            yield _with_call(trajectory, position, number, msgspec.structs.replace(call, name=name))


def value_from_another_turn(
    trajectory: Trajectory, position: int, generator: np.random.Generator
) -> Iterator[Candidate]:
    """One argument with a value of the same look that another turn of the conversation names."""
    for number, call in _shuffled_calls(trajectory, position, generator):
        arguments = call.arguments or {}
        for name in _shuffled(list(arguments), generator):
            value = arguments[name]
            if not isinstance(value, str):
                continue
            for other in _shuffled(_alike(trajectory, position, name, value), generator):
                yield _with_call(trajectory, position, number, _with_arguments(call, {**arguments, name: other}))


def missing_call(trajectory: Trajectory, position: int, generator: np.random.Generator) -> Iterator[Candidate]:
    """The answer that the attempt gave later, without the call that it needs."""
    if not trajectory.messages[position].tool_calls:
        return
    answers = [
        message
        for message in trajectory.messages[position + 1 :]
        if is_trained_step(message) and message.text.strip() and not message.tool_calls
    ]
    for answer in _shuffled(answers[:3], generator):
        yield _in_place(trajectory, position, msgspec.structs.replace(answer, tokens=None))


def wrong_order(trajectory: Trajectory, position: int, generator: np.random.Generator) -> Iterator[Candidate]:
    """A later step of the attempt before the one that prepares it."""
    own = {call_key(call) for call in trajectory.messages[position].tool_calls}
    later = [
        message
        for message in trajectory.messages[position + 1 :]
        if is_trained_step(message) and message.tool_calls and own.isdisjoint(map(call_key, message.tool_calls))
    ]
    for message in _shuffled(later[:3], generator):
        early = msgspec.structs.replace(message, tokens=None)
        yield Candidate(trajectory, position, early, resume=position)


def needless_call(trajectory: Trajectory, position: int, generator: np.random.Generator) -> Iterator[Candidate]:
    """A call in place of an answer: one that was made already, or another tool with values of the conversation."""
    message = trajectory.messages[position]
    if message.tool_calls or not message.text.strip():
        return
    made = [
        call
        for earlier in trajectory.messages[:position]
        if is_trained_step(earlier)
        for call in earlier.tool_calls
        if call.arguments is not None
    ]
    proposals = [*made[-3:], *_other_calls(trajectory, position, made)]
    for call in _shuffled(proposals, generator):
        added = msgspec.structs.replace(call, id=None if call.id is None else f"{call.id}_again")
        step = Message(role="assistant", tool_calls=[added], producer=message.producer)
        yield Candidate(trajectory, position, step, resume=position)


PROPOSALS: Mapping[NegativeKind, Propose] = {
    "wrong_type": wrong_type,
    "missing_argument": missing_argument,
    "unknown_tool": unknown_tool,
    "value_from_another_turn": value_from_another_turn,
    "missing_call": missing_call,
    "wrong_order": wrong_order,
    "needless_call": needless_call,
}


def _shuffled(items: Sequence[Any], generator: np.random.Generator) -> list[Any]:
    return [items[index] for index in generator.permutation(len(items))]


def _shuffled_calls(
    trajectory: Trajectory, position: int, generator: np.random.Generator
) -> list[tuple[int, ToolCall]]:
    calls = [(number, call) for number, call in enumerate(trajectory.messages[position].tool_calls) if call.arguments]
    return _shuffled(calls, generator)


def _with_arguments(call: ToolCall, arguments: dict[str, Any]) -> ToolCall:
    """The call with other arguments, spelled with the spaces that most models and templates write."""
    raw = json.dumps(arguments, ensure_ascii=False)
    return msgspec.structs.replace(call, arguments_raw=raw, arguments=arguments)


def _with_call(trajectory: Trajectory, position: int, number: int, call: ToolCall) -> Candidate:
    message = trajectory.messages[position]
    calls = list(message.tool_calls)
    calls[number] = call
    return _in_place(trajectory, position, msgspec.structs.replace(message, tool_calls=calls, tokens=None))


def _in_place(trajectory: Trajectory, position: int, message: Message) -> Candidate:
    return Candidate(trajectory, position, message, resume=position + 1)


def _other_types(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return ["yes" if value else "no", str(value).lower(), int(value)]
    if isinstance(value, int | float):
        return [str(value), [value], f"{value} units"]
    if isinstance(value, str):
        number = [int(value)] if value.isdigit() and len(value) < 16 else [len(value)]
        return [[value], {"value": value}, *number, None]
    if isinstance(value, list):
        return [", ".join(map(str, value)), value[0] if value else "", {"items": value}]
    if isinstance(value, dict):
        return [json.dumps(value, ensure_ascii=False), [value]]
    return ["null", "none", [value]]


def _other_names(name: str) -> list[str]:
    words = name.split("_")
    synonyms = _SYNONYMS.get(words[0].lower(), ())
    found = [affix.format(name) for affix in _AFFIXES] + ["_".join([synonym, *words[1:]]) for synonym in synonyms]
    if len(words) > 1:
        found.append(words[0] + "".join(word.title() for word in words[1:]))
        found.append("_".join([*words[1:], words[0]]))
    return list(dict.fromkeys(found))


def _alike(trajectory: Trajectory, position: int, name: str, value: str) -> list[str]:
    """Other values for an argument: of calls that name it, and words that look like it, before or after the step."""
    found: dict[str, None] = {}
    for message in trajectory.messages:
        for call in message.tool_calls:
            other = (call.arguments or {}).get(name)
            if isinstance(other, str):
                found[other] = None
    if _ID.fullmatch(value):
        shape = _shape(value)
        for message in trajectory.messages:
            found.update(dict.fromkeys(word for word in _ID.findall(message.text) if _shape(word) == shape))
    return [other for other in found if other.lower() != value.lower()]


def _shape(word: str) -> str:
    """What a word looks like: `W77` and `X12` alike are `A99`."""
    return re.sub(r"\d", "9", re.sub(r"[a-z]", "a", re.sub(r"[A-Z]", "A", word)))


def _other_calls(trajectory: Trajectory, position: int, made: Sequence[ToolCall]) -> list[ToolCall]:
    """Calls of tools that were not called, whose required arguments have values in calls that were made."""
    values = {name: value for call in made for name, value in (call.arguments or {}).items()}
    called = {call.name for call in made}
    found = []
    for tool in trajectory.tools_at(position) or ():
        function = tool.get("function", tool)
        schema = function.get("parameters")
        required = schema.get("required", []) if isinstance(schema, dict) else []
        properties = schema.get("properties", {}) if isinstance(schema, dict) else {}
        name = function.get("name")
        if not isinstance(name, str) or name in called or not isinstance(required, list):
            continue
        arguments = {key: values.get(key, _an_option(properties.get(key))) for key in required}
        if all(value is not None for value in arguments.values()):
            found.append(tool_call(name, json.dumps(arguments, ensure_ascii=False), id="call_extra"))
    return found


def _an_option(schema: Any) -> Any:
    options = schema.get("enum") if isinstance(schema, dict) else None
    return options[0] if isinstance(options, list) and options else None
