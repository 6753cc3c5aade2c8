"""Conversations of ShareGPT, LLaMA-Factory and ms-swift: supervised, with verdicts, and in pairs.

The turns are under `conversations`, `conversation` or `messages`, with `system` and `tools` (JSON text) beside them.
A pair is `chosen` and `rejected` (LLaMA-Factory), or `rejected_response` or `rejected_messages` beside the chosen
conversation (ms-swift). A verdict is `label` or `kto_tag`. Pictures stand in a column of their own, in the order of
the markers `<image>`.
"""

from __future__ import annotations

from typing import Any

from offline_arl.logs.adapter import RawRecord, RecordRefusedError
from offline_arl.logs.primitives.values import as_object, as_text, decode_object
from offline_arl.logs.slots.reading import apply_slot
from offline_arl.logs.slots.slot import take_slot
from offline_arl.logs.training_sets.sharegpt_turns import OWN_ROLES, is_turn, read_turn, read_turns
from offline_arl.logs.training_sets.training_rows import (
    contexts_of,
    conversation,
    labelled,
    place_media,
    preference_pair,
    shared_prompt,
    take_media,
)
from offline_arl.trajectories.schema import Message, Trajectory, text_message

_TURN_KEYS = ("conversations", "conversation", "messages")
_LABEL_KEYS = ("label", "kto_tag")
# What makes a row with `messages` one of these formats rather than plain OpenAI chat.
_OWN_KEYS = ("rejected_response", "rejected_messages", "chosen_messages", "images", "videos", "audios")


class ShareGPTAdapter:
    """Reads conversations of ShareGPT and its relatives."""

    name = "sharegpt"
    title = "ShareGPT, LLaMA-Factory and ms-swift conversations"
    keeps = "tools, which turns are trained, verdicts (kto_tag, label), pairs, pictures in place of their markers"
    lacks = "the mapping of columns in dataset_info.json is not read: other names of columns are not found"

    def recognizes(self, record: Any) -> bool:
        """Whether the record has turns with `from` and `value`, or messages with what only these formats have."""
        if not isinstance(record, dict):
            return False
        for key in ("conversations", "conversation"):
            turns = record.get(key)
            if isinstance(turns, list) and turns and all(map(is_turn, turns[:4])):
                return True
        messages = record.get("messages", record.get("chosen_messages"))
        if not isinstance(messages, list) or not messages or not all(map(is_turn, messages[:4])):
            return False
        return (
            any(map(_has_own_form, messages))
            or any(record.get(key) for key in _OWN_KEYS)
            or any(isinstance(record.get(key), bool) for key in _LABEL_KEYS)
            or ("rejected" in record and "chosen" in record)
        )

    def convert(self, record: RawRecord) -> list[Trajectory]:
        """The trajectory of a conversation, or the two of a pair."""
        rest = decode_object(record.raw)
        slot = take_slot(rest)
        contexts = contexts_of(rest.pop("tools", None))
        media = take_media(rest)
        messages = _take_messages(rest)
        system = rest.get("system")
        if isinstance(system, str):
            del rest["system"]
            if system and (not messages or messages[0].role != "system"):
                messages.insert(0, text_message("system", system))
        pair = _take_pair(rest, messages)
        if pair is None:
            label = _take_label(rest)
            messages = place_media(messages, media, rest)
            trajectory = labelled(conversation(record, self.name, messages, rest, contexts), label, "label")
            return [apply_slot(trajectory, slot, trajectory.trajectory_id)]
        prompt, chosen, rejected = pair
        placed = place_media([*prompt, *chosen], media, rest)
        prompt, chosen = placed[: len(prompt)], placed[len(prompt) :]
        return preference_pair(record, self.name, prompt, (chosen, rejected), rest, contexts)


def _has_own_form(message: object) -> bool:
    fields = as_object(message)
    return "from" in fields or as_text(fields.get("role")) in OWN_ROLES


def _take_messages(rest: dict[str, Any]) -> list[Message]:
    for key in (*_TURN_KEYS, "chosen_messages"):
        if key in rest:
            return read_turns(rest.pop(key), key)
    raise RecordRefusedError(f"has none of {', '.join(_TURN_KEYS)}")


def _take_pair(
    rest: dict[str, Any], messages: list[Message]
) -> tuple[list[Message], list[Message], list[Message]] | None:
    """The prompt and both answers of a pair; None where the row is none."""
    if rest.get("chosen") is not None and rest.get("rejected") is not None:
        return messages, read_turn(rest.pop("chosen"), "chosen"), read_turn(rest.pop("rejected"), "rejected")
    if rest.get("rejected_response") is not None:
        # It stands for all that came after the last message of the user, calls and results included.
        last = max((index for index, message in enumerate(messages) if message.role == "user"), default=-1) + 1
        rejected = read_turn(rest.pop("rejected_response"), "rejected_response")
        return messages[:last], messages[last:], rejected
    if rest.get("rejected_messages") is not None:
        other = read_turns(rest.pop("rejected_messages"), "rejected_messages")
        if messages and messages[0].role == "system" and other and other[0].role != "system":
            other.insert(0, messages[0])
        count = shared_prompt(messages, other)
        return messages[:count], messages[count:], other[count:]
    return None


def _take_label(rest: dict[str, Any]) -> bool | None:
    """The verdict on the last answer; a label that is no boolean is a class and stays where it is."""
    for key in _LABEL_KEYS:
        if isinstance(rest.get(key), bool):
            return bool(rest.pop(key))
    return None
