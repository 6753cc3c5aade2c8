"""Data sets of TRL: prompt and completion, preferences, verdicts, steps, each as text or as messages.

Tools are a column (a list, or its JSON text), arguments of calls are objects. Rows with a prompt only are tasks, and
`text` alone has no turns; both are set apart.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from offline_arl.logs.adapter import RawRecord, RecordRefusedError, RecordSetApartError
from offline_arl.logs.primitives.values import as_object, as_text, decode_object, json_type
from offline_arl.logs.providers.openai_messages import convert_messages
from offline_arl.logs.slots.reading import apply_slot
from offline_arl.logs.slots.slot import KEY, take_slots
from offline_arl.logs.training_sets.training_rows import (
    contexts_of,
    conversation,
    labelled,
    preference_pair,
    shared_prompt,
)
from offline_arl.trajectories.schema import Message, Role, Score, Trajectory, text_message

_TURN_OF_HH = re.compile(r"\n\n(Human|Assistant):")
_PLAIN_TEXT_KEYS = frozenset({"text", "id", "source", "meta", "metadata"})


class TRLAdapter:
    """Reads TRL's types of data sets other than conversations under `messages`."""

    name = "trl"
    title = "TRL data sets"
    keeps = "tools, chat_template_kwargs, both answers of a preference as a pair, verdicts, labels of steps"
    lacks = "rows with a prompt only and plain text are set apart"

    def recognizes(self, record: Any) -> bool:
        """Whether the record has the columns of one of the types."""
        if not isinstance(record, dict):
            return False
        if _is_text(record.get("chosen")) and _is_text(record.get("rejected")):
            return True
        if _is_text(record.get("prompt")):
            return (
                _is_text(record.get("completion"))
                or (isinstance(record.get("completions"), list) and isinstance(record.get("labels"), list))
                or _is_prompt_only(record)
            )
        return isinstance(record.get("text"), str) and record.keys() <= _PLAIN_TEXT_KEYS

    def convert(self, record: RawRecord) -> list[Trajectory]:
        """The trajectory of a row, or the two of a preference."""
        rest = decode_object(record.raw)
        slots = take_slots(rest)
        found = self._of_row(record, rest)
        if slots and len(slots) != len(found):
            raise RecordRefusedError(f"{KEY}: {len(slots)} slots for {len(found)} trajectories")
        if slots:  # an export of this library
            return [apply_slot(read, slot, read.trajectory_id) for read, slot in zip(found, slots, strict=True)]
        return found

    def _of_row(self, record: RawRecord, rest: dict[str, Any]) -> list[Trajectory]:
        if "chosen" not in rest and "completion" not in rest and "completions" not in rest:
            raise RecordSetApartError("a prompt without an answer" if "prompt" in rest else "plain text without turns")
        contexts = contexts_of(rest.pop("tools", None))
        logged = rest.pop("prompt", None)
        prompt = [] if logged is None else _messages(logged, "prompt", "user")
        if "chosen" in rest:
            answers = (
                _messages(rest.pop("chosen"), "chosen", "assistant"),
                _messages(rest.pop("rejected", None), "rejected", "assistant"),
            )
            # A prompt may be given, and the answers repeat it nevertheless.
            count = shared_prompt(*answers) if logged is None or _repeats(prompt, *answers) else 0
            prompt = answers[0][:count] if count else prompt
            answers = answers[0][count:], answers[1][count:]
            return preference_pair(record, self.name, prompt, answers, rest, contexts)
        if "completions" in rest:
            return [_stepwise(record, prompt, rest)]
        completion = _messages(rest.pop("completion"), "completion", "assistant")
        label = rest.pop("label") if isinstance(rest.get("label"), bool) else None
        trajectory = conversation(record, self.name, [*prompt, *completion], rest, contexts)
        return [labelled(trajectory, label, "label")]


def _is_text(value: Any) -> bool:
    """Whether a column holds text or messages."""
    if isinstance(value, list):
        return bool(value) and all(as_text(as_object(item).get("role")) is not None for item in value[:4])
    return isinstance(value, str)


def _is_prompt_only(record: dict[str, Any]) -> bool:
    """A list of messages as prompt is TRL's; a text may be anything, so that nothing but its columns may be there."""
    if "response" in record or "responses" in record:
        return False
    return isinstance(record["prompt"], list) or record.keys() <= {"prompt", "tools", "chat_template_kwargs", "answer"}


def _messages(value: Any, where: str, role: Role) -> list[Message]:
    if isinstance(value, list):
        return convert_messages(value, where)
    if not isinstance(value, str):
        raise RecordRefusedError(f"{where}: expected text or a list of messages, got {json_type(value)}")
    pieces = _TURN_OF_HH.split(value)
    if len(pieces) == 1 or pieces[0].strip():
        return [text_message(role, value)]
    # The form of the HH data set: "\n\nHuman: ...\n\nAssistant: ...".
    turns = zip(pieces[1::2], pieces[2::2], strict=True)
    return [text_message("user" if speaker == "Human" else "assistant", text.strip()) for speaker, text in turns]


def _repeats(prompt: list[Message], chosen: list[Message], rejected: list[Message]) -> bool:
    count = len(prompt)
    return bool(prompt) and chosen[:count] == prompt == rejected[:count] and min(len(chosen), len(rejected)) > count


def _stepwise(record: RawRecord, prompt: list[Message], rest: dict[str, Any]) -> Trajectory:
    """Each step of a reasoning as a message with its label, though the model wrote them in one answer."""
    steps, labels = rest.pop("completions"), rest.pop("labels", None)
    if not isinstance(steps, list) or not all(isinstance(step, str) for step in steps):
        raise RecordRefusedError("completions: expected a list of texts")
    if not isinstance(labels, list) or len(labels) != len(steps):
        raise RecordRefusedError(f"labels: expected a list of {len(steps)}, one for each completion")
    messages = [*prompt, *(text_message("assistant", step) for step in steps)]
    trajectory = conversation(record, TRLAdapter.name, messages, rest, [])
    scores = [
        Score("step", float(label), direction="higher_is_better", message_index=len(prompt) + index)
        for index, label in enumerate(labels)
        if isinstance(label, (bool, int, float))
    ]
    return msgspec.structs.replace(trajectory, scores=scores)
