"""Instructions and answers in columns: Alpaca's `instruction`, `input`, `output`, and `query`, `response`.

Both may have `system` and `history` (earlier questions and answers). Pairs have `chosen` and `rejected`, or
`rejected_response`; verdicts are `kto_tag` or `label`. Pictures are a column, or `<img>...</img>` in the text.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from offline_arl.logs.adapter import RawRecord, RecordRefusedError
from offline_arl.logs.primitives.values import as_text, decode_object, json_type
from offline_arl.logs.training_sets.sharegpt_turns import read_turn
from offline_arl.logs.training_sets.training_rows import (
    contexts_of,
    conversation,
    labelled,
    place_media,
    preference_pair,
    take_media,
)
from offline_arl.trajectories.schema import ContentPart, ImagePart, Message, TextPart, Trajectory, text_message

_IMAGE_TAG = re.compile(r"<img>(.*?)</img>", re.DOTALL)
_ANSWERS = ("output", "response")
_REJECTED = ("rejected", "rejected_response")
_LABELS = ("kto_tag", "label")


class AlpacaAdapter:
    """Reads rows of an instruction and an answer."""

    name = "alpaca"
    title = "Alpaca instructions, and queries and responses"
    keeps = "system prompt, history, pairs, verdicts, tools, pictures"
    lacks = ""

    def recognizes(self, record: Any) -> bool:
        """Whether the record has an instruction or query, and an answer to it."""
        if not isinstance(record, dict):
            return False
        if isinstance(record.get("instruction"), str):
            return isinstance(record.get("output"), str) or isinstance(record.get("chosen"), (str, dict))
        return isinstance(record.get("query"), str) and isinstance(record.get("response"), str)

    def convert(self, record: RawRecord) -> list[Trajectory]:
        """The trajectory of a row, or the two of a pair."""
        rest = decode_object(record.raw)
        contexts = contexts_of(rest.pop("tools", None))
        media = take_media(rest)
        prompt = [*_system(rest), *_history(rest.pop("history", None)), _question(rest)]
        answer = next((rest.pop(key) for key in _ANSWERS if rest.get(key) is not None), None)
        chosen = rest.pop("chosen", None)
        rejected = next((rest.pop(key) for key in _REJECTED if rest.get(key) is not None), None)
        if rejected is not None:
            better = read_turn(chosen if chosen is not None else answer, "chosen")
            worse = read_turn(rejected, "rejected")
            placed = place_media(prompt, media, rest)
            return preference_pair(record, self.name, placed, (better, worse), rest, contexts)
        label = next((bool(rest.pop(key)) for key in _LABELS if isinstance(rest.get(key), bool)), None)
        answers = read_turn(answer if answer is not None else chosen, "output")
        messages = place_media([*prompt, *answers], media, rest)
        return [labelled(conversation(record, self.name, messages, rest, contexts), label, "label")]


def _system(rest: dict[str, Any]) -> list[Message]:
    system = rest.get("system")
    if not isinstance(system, str):
        return []
    del rest["system"]
    return [text_message("system", system)] if system else []


def _question(rest: dict[str, Any]) -> Message:
    instruction = as_text(rest.pop("instruction", None)) or as_text(rest.pop("query", None)) or ""
    given = rest.pop("input", None)
    if given is not None and not isinstance(given, str):
        raise RecordRefusedError(f"input: expected a string, got {json_type(given)}")
    return _with_images(text_message("user", "\n".join(filter(None, (instruction, given)))))


def _history(logged: Any) -> list[Message]:
    if logged is None:
        return []
    if not isinstance(logged, list):
        raise RecordRefusedError(f"history: expected a list, got {json_type(logged)}")
    messages = []
    for index, turn in enumerate(logged):
        if not isinstance(turn, list) or len(turn) != 2 or not all(isinstance(text, str) for text in turn):
            raise RecordRefusedError(f"history[{index}]: expected a question and an answer")
        messages += [_with_images(text_message("user", turn[0])), text_message("assistant", turn[1])]
    return messages


def _with_images(message: Message) -> Message:
    """The message with pictures for `<img>...</img>`; where a tag names a box or holds nothing, it stays text."""
    text = message.text
    if "<img>" not in text:
        return message
    parts: list[ContentPart] = []
    start = 0
    for tag in _IMAGE_TAG.finditer(text):
        if tag.start() > start:
            parts.append(TextPart(text[start : tag.start()]))
        parts.append(ImagePart(tag[1]) if tag[1] else TextPart(tag[0]))
        start = tag.end()
    if start < len(text):
        parts.append(TextPart(text[start:]))
    return msgspec.structs.replace(message, content=parts)
