r"""Few-shot transcripts of tau-bench: JSON Lines of `{"messages_display": "user: ...\nassistant: ..."}`.

The transcripts hold texts only. An assistant turn that called a tool stands there as "None"; its calls are lost, so
that it is not trained on. Transcripts end like the episodes of `tau_bench`, where the tool that hands over to a person
is known by its answer only.
"""

from __future__ import annotations

import re
from typing import Any

from offline_arl.logs.adapter import RawRecord, RecordRefusedError
from offline_arl.logs.benchmarks.tau_bench import STOP_TEXT
from offline_arl.logs.primitives.values import decode_object, json_type
from offline_arl.trajectories.schema import UNKNOWN_PRODUCER, Message, Producer, Role, TextPart, Trajectory

HANDOVER_ANSWER = "Transfer successful"

_TURN = re.compile(r"^(user|assistant|tool|system): ?", re.MULTILINE)
_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "tool": "tool", "system": "system"}
_PRODUCERS = {
    "user": Producer("script", "user_simulator"),
    "assistant": UNKNOWN_PRODUCER,
    "tool": Producer("environment"),
    "system": Producer("script"),
}


class TauTranscriptsAdapter:
    """Reads few-shot transcripts of tau-bench."""

    name = "tau_transcripts"
    title = "tau-bench few-shot transcripts"
    keeps = "texts of all turns"
    lacks = "tool calls, tools, rewards, task ids"

    def recognizes(self, record: Any) -> bool:
        """Whether the record has a transcript under `messages_display`."""
        if not isinstance(record, dict):
            return False
        text = record.get("messages_display")
        return isinstance(text, str) and _TURN.match(text) is not None

    def convert(self, record: RawRecord) -> list[Trajectory]:
        """The one trajectory of a transcript."""
        values = decode_object(record.raw)
        text = values.pop("messages_display", None)
        if not isinstance(text, str):
            raise RecordRefusedError(f"messages_display: expected a string, got {json_type(text)}")
        messages = _messages(text)
        stop_reason = _ending(messages[-1])
        return [
            Trajectory(
                trajectory_id=record.trajectory_id(),
                messages=messages,
                source=record.source(self.name),
                terminated=stop_reason is not None,
                stop_reason=stop_reason,
                metadata=values,
            )
        ]


def _messages(text: str) -> list[Message]:
    turns = list(_TURN.finditer(text))
    if not turns or turns[0].start() != 0:
        raise RecordRefusedError("messages_display: does not start with a turn such as 'user: '")
    ends = [turn.start() for turn in turns[1:]] + [len(text) + 1]
    return [_message(turn[1], text[turn.end() : end - 1]) for turn, end in zip(turns, ends, strict=True)]


def _ending(last: Message) -> str | None:
    if last.role == "user" and STOP_TEXT in last.text:
        return "user_stop"
    return "handover" if last.role == "tool" and last.text.strip() == HANDOVER_ANSWER else None


def _message(role: str, text: str) -> Message:
    if role == "assistant" and text.strip() == "None":
        return Message(
            "assistant", None, producer=_PRODUCERS[role], trainable=False, metadata={"calls_not_logged": True}
        )
    return Message(_ROLES[role], [TextPart(text)], producer=_PRODUCERS[role])
