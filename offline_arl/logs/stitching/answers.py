"""Where the answer of a call stands in the prompts that repeat it."""

from __future__ import annotations

from typing import NamedTuple

from offline_arl.logs.stitching.message_keys import MessageKey
from offline_arl.logs.stitching.prompts import Node, Prompt
from offline_arl.trajectories.schema import TextPart

_JOINTS = ("\n", "\n\n", " ")


class AnswerPlace(NamedTuple):
    """The node of an answer: how many nodes it covers, and whether it is merged with the end of its prompt."""

    node: Node
    covers: int = 1
    is_merged: bool = False


def answer_place(prompt: Prompt, choice: int) -> AnswerPlace | None:
    """The node of an answer among what later prompts repeat; None where none does.

    The history may repeat the answer as it is, split into text and calls, without the text that came with the
    calls, with its parts joined in another way, or merged with the beginning that the prompt ended with.
    """
    end, key = prompt.end, prompt.answers[choice]
    found = end.children.get(key)
    if found is not None:
        return AnswerPlace(found)
    if not end.children and end.key[0] != "assistant":
        return None
    return _split(end, key) or _joined(prompt, choice) or _merged(prompt, choice)


def _split(end: Node, key: MessageKey) -> AnswerPlace | None:
    if len(key) == 2 or not key[3] or not key[1]:
        return None
    without_calls: MessageKey = ("assistant", key[1], key[2], ()) if key[2] else ("assistant", key[1])
    without_text: MessageKey = ("assistant", "", (), key[3])
    text = end.children.get(without_calls)
    if text is not None and without_text in text.children:
        return AnswerPlace(text.children[without_text], covers=2)
    found = end.children.get(without_text)
    return None if found is None else AnswerPlace(found)


def _joined(prompt: Prompt, choice: int) -> AnswerPlace | None:
    key = prompt.answers[choice]
    texts = [part.text for part in prompt.call.choices[choice].content or () if isinstance(part, TextPart)]
    if len(texts) < 2:
        return None
    for joint in _JOINTS:
        found = prompt.end.children.get(_with_text(key, joint.join(texts)))
        if found is not None:
            return AnswerPlace(found)
    return None


def _merged(prompt: Prompt, choice: int) -> AnswerPlace | None:
    end = prompt.end
    if end.parent is None or end.key[0] != "assistant":
        return None
    merged = prompt.call.messages[-1].text + prompt.call.choices[choice].text
    found = end.parent.children.get(_with_text(prompt.answers[choice], merged))
    return None if found is None or found is end else AnswerPlace(found, is_merged=True)


def _with_text(key: MessageKey, text: str) -> MessageKey:
    text = text.strip()
    return (key[0], text) if len(key) == 2 else (key[0], text, key[2], key[3])
