"""Agent conversations whose actions are text, as AgentTuning has them: `Act: bash` and a block of code.

Several start with a worked example of another task; it shows the model what to do and is nothing it did. `loss` tells
the two apart, or else the sentence with which the environment starts the real task. The text of a turn stays as the
model wrote it; its action is in the metadata too.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from offline_arl.logs.adapter import RawRecord, RecordRefusedError
from offline_arl.logs.primitives.values import as_object, as_text, decode_object
from offline_arl.logs.training_sets.sharegpt_turns import is_turn, read_turns
from offline_arl.logs.training_sets.training_rows import conversation
from offline_arl.trajectories.schema import Message, Producer, Trajectory

_ID = re.compile(r"(os|db|kg|alfworld|webshop|mind2web)_\d+")
_ACTION = re.compile(r"^[ \t]*act(?:ion)?:[ \t]*(.*)", re.IGNORECASE | re.MULTILINE)
_CODE = re.compile(r"```\w*\n(.*?)\n?```", re.DOTALL)
_CALL = re.compile(r"(\w+)\((.*)\)\s*", re.DOTALL)
_NEW_TASK = re.compile(r"\bnow,? I will start a new problem|\bhere is your task\b|\bnew task:", re.IGNORECASE)
_ASSISTANT_NAMES = frozenset({"gpt", "assistant", "agent"})


class AgentTuningAdapter:
    """Reads conversations with actions written as text."""

    name = "agent_tuning"
    title = "AgentTuning conversations with text actions"
    keeps = "worked examples apart from the agent's own turns, actions, observations as of the environment, task type"
    lacks = "rewards: the data sets hold successes only, and do not say so in a row"

    def recognizes(self, record: Any) -> bool:
        """Whether the record has turns, and an id of AgentInstruct or actions as text."""
        if not isinstance(record, dict):
            return False
        turns = record.get("conversations")
        if not isinstance(turns, list) or not turns or not all(map(is_turn, turns[:4])):
            return False
        if isinstance(record.get("id"), str) and _ID.fullmatch(record["id"]):
            return True
        return any(_is_action(turn) for turn in turns[:8])

    def convert(self, record: RawRecord) -> list[Trajectory]:
        """The one trajectory of a conversation."""
        rest = decode_object(record.raw)
        if "conversations" not in rest:
            raise RecordRefusedError("has no conversations")
        messages = read_turns(rest.pop("conversations"), "conversations")
        start = _start(messages)
        messages = [_described(message, index, start) for index, message in enumerate(messages)]
        trajectory = conversation(record, self.name, messages, rest, [])
        identity = as_text(rest.get("id"))
        known = _ID.fullmatch(identity) if identity is not None else None
        return [
            msgspec.structs.replace(
                trajectory, task_id=identity, group_id=identity, task_type=known[1] if known is not None else None
            )
        ]


def _is_action(turn: Any) -> bool:
    fields = as_object(turn)
    role = as_text(fields.get("from", fields.get("role")))
    text = as_text(fields.get("value", fields.get("content")))
    return role in _ASSISTANT_NAMES and text is not None and _ACTION.search(text) is not None


def _start(messages: list[Message]) -> int:
    """The index of the message with which the real task starts; 0 where there is no worked example."""
    answers = [index for index, message in enumerate(messages) if message.role == "assistant"]
    trained = [index for index in answers if messages[index].trainable]
    if trained and any(messages[index].trainable is False for index in answers if index < trained[0]):
        return max((index for index in range(trained[0]) if messages[index].role == "user"), default=0)
    for index, message in enumerate(messages):
        if index and message.role == "user" and _NEW_TASK.search(message.text):
            return index
    return 0


def _described(message: Message, index: int, start: int) -> Message:
    """The message with its producer: of the worked example before `start`, or of the task."""
    if message.role == "assistant":
        kind = Producer("demonstration") if index < start else message.producer
        metadata = message.metadata if (action := _action(message.text)) is None else {**message.metadata, **action}
        return msgspec.structs.replace(message, producer=kind, metadata=metadata)
    if message.role != "user":
        return message
    is_task = index in (0, start)
    return msgspec.structs.replace(message, producer=Producer("script" if is_task else "environment"))


def _action(text: str) -> dict[str, Any] | None:
    """The last action in a text: a name with code, a call, or words."""
    found = None
    for found in _ACTION.finditer(text):  # noqa: B007 (the last one counts)
        pass
    if found is None:
        return None
    words, code = found[1].strip(), _CODE.search(text, found.start())
    if code is not None:
        return {"action": {"name": words, "input": code[1]}}
    call = _CALL.fullmatch(words)
    if call is not None:
        return {"action": {"name": call[1], "input": call[2]}}
    return {"action": {"name": words}}
