"""The tree of all prompts of a group: each message stands in it once, however often the log repeats it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice

import msgspec

from offline_arl.logs.stitching.calls import ModelCall
from offline_arl.logs.stitching.message_keys import MessageKey, MessageKeys
from offline_arl.logs.stitching.prompts import Family, Node, Prompt
from offline_arl.logs.stitching.system_prompts import (
    SystemTexts,
    are_alike,
    leading_system_messages,
    without_times,
)
from offline_arl.trajectories.schema import Message, ReasoningPart

_EVIDENCE_CALLS = 4  # how many of the latest known answers in a prompt are looked at

_replace = msgspec.structs.replace


def seconds(timestamp: str | None) -> float | None:
    """ISO 8601 as seconds since 1970, times without a zone taken as UTC; None where it is missing or unreadable."""
    if timestamp is None:
        return None
    try:
        parsed = datetime.fromisoformat(timestamp)
        return (parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


class PromptTree:
    """Puts the prompts of calls into trees, one for each family of system prompts."""

    def __init__(self) -> None:
        self.prompts: list[Prompt] = []
        self._by_answer: dict[MessageKey, list[Prompt]] = {}
        self._keys = MessageKeys()
        self._families: dict[SystemTexts, Family] = {}
        self._alike: dict[SystemTexts, Family] = {}  # by texts without times
        self._n_compared = 0  # how many of the families' texts are in `_alike`

    def add_all(self, calls: Sequence[ModelCall]) -> list[Prompt]:
        """Add calls in order of time; returns them in that order."""
        for rank, (index, time) in enumerate(_in_order(calls)):
            self._add(index, rank, calls[index], time)
        return self.prompts

    def _add(self, index: int, rank: int, call: ModelCall, time: float | None) -> None:
        of = self._keys.of
        keys = [of(message) for message in call.messages]
        n_system = leading_system_messages(call.messages)
        texts = tuple([key[1] for key in keys[:n_system]])
        family = self._family(texts, keys[n_system:])
        end = _insert(family.root, keys, call.messages, n_system)
        answers = [of(choice) for choice in call.choices]
        prompt = Prompt(index, rank, call, time, n_system, texts, family, end, answers)
        self.prompts.append(prompt)
        for key in answers:
            self._by_answer.setdefault(key, []).append(prompt)

    def _family(self, texts: SystemTexts, body: list[MessageKey]) -> Family:
        """The family of a prompt: of the same text, unless it goes on with what a family of a similar text began."""
        known = self._families.get(texts)
        if known is not None and _knows_history(known.root, body):
            return known
        found = self._continued_family(texts, body) or known
        if found is None:
            found = self._family_but_for_times(texts) or Family(texts)
        if texts or found.texts == texts:  # calls without a system prompt may belong to several families
            self._families.setdefault(texts, found)
        return found

    def _family_but_for_times(self, texts: SystemTexts) -> Family | None:
        """The family of a text that differs in dates and times only; most groups have one family and do not ask."""
        for other in islice(self._families, self._n_compared, None):
            self._alike.setdefault(tuple(map(without_times, other)), self._families[other])
        self._n_compared = len(self._families)
        return self._alike.get(tuple(map(without_times, texts))) if self._families else None

    def _continued_family(self, texts: SystemTexts, body: list[MessageKey]) -> Family | None:
        """The family of a call that this prompt repeats with its answer, if the system prompts are alike."""
        looked_at = 0
        for depth in range(len(body) - 1, -1, -1):
            if body[depth][0] != "assistant":
                continue
            for earlier in reversed(self._by_answer.get(body[depth], ())[-_EVIDENCE_CALLS:]):
                looked_at += 1
                if _leads_to(body, depth, earlier) and are_alike(texts, earlier.texts):
                    return earlier.family
            if looked_at >= _EVIDENCE_CALLS:
                break
        return None


def _in_order(calls: Sequence[ModelCall]) -> list[tuple[int, float | None]]:
    """Calls (index, time) in order of time, shorter prompts first among equal times, then by position.

    A call without a time stands right after the call before it in the log.
    """
    times = [seconds(call.started_at or call.ended_at) for call in calls]
    order: list[tuple[float, int, int]] = []
    latest, length = float("-inf"), 0
    for index, time in enumerate(times):
        if time is not None:
            latest, length = time, len(calls[index].messages)
        order.append((latest, length, index))
    return [(index, times[index]) for _, _, index in sorted(order)]


def _insert(node: Node, keys: list[MessageKey], messages: list[Message], start: int) -> Node:
    """Insert the messages from `start` on below a root; returns the node of the last."""
    ids: dict[str, str] = {}  # of tool calls: as this prompt has them, as the tree has them
    for position in range(start, len(keys)):
        key = keys[position]
        following = node.children.get(key)
        if following is None:
            message = messages[position]
            if ids and message.tool_call_id in ids:
                message = _replace(message, tool_call_id=ids[message.tool_call_id])
            following = node.children[key] = Node(node, key, message)
        elif key[0] == "assistant":
            _keep_richer_answer(following, messages[position], ids)
        elif key[0] == "tool":
            _keep_answered_id(following, messages[position], ids)
        node = following
    return node


def _knows_history(node: Node, body: list[MessageKey]) -> bool:
    """Whether all answers in a prompt are known below a root, or there are none."""
    last = next((depth for depth in range(len(body) - 1, -1, -1) if body[depth][0] == "assistant"), -1)
    for depth in range(last):
        following = node.children.get(body[depth])
        if following is None:
            return False
        node = following
    return True


def _leads_to(body: list[MessageKey], depth: int, earlier: Prompt) -> bool:
    """Whether the first `depth` messages are the prompt of an earlier call."""
    if earlier.end.depth != depth:
        return False
    node: Node = earlier.end
    while node.parent is not None:
        if node.key != body[node.depth - 1]:
            return False
        node = node.parent
    return True


def _keep_richer_answer(node: Node, message: Message, ids: dict[str, str]) -> None:
    """Keep the version of an answer that has reasoning and ids, and note under which other ids this prompt has it."""
    kept = node.message
    if kept is None:
        node.message = message
        return
    calls = kept.tool_calls
    for position, call in enumerate(message.tool_calls):
        known = calls[position]
        if call.id is None or call.id == known.id:
            continue
        if known.id is not None:
            ids[call.id] = known.id
        else:
            calls = [*calls[:position], call, *calls[position + 1 :]]
    content = message.content if _n_reasoning(message) > _n_reasoning(kept) else kept.content
    if calls is not kept.tool_calls or content is not kept.content:
        node.message = _replace(kept, tool_calls=calls, content=content)


def _n_reasoning(message: Message) -> int:
    return sum(type(part) is ReasoningPart for part in message.content or ())


def _keep_answered_id(node: Node, message: Message, ids: dict[str, str]) -> None:
    """Keep the id of the call that a tool's result answers, where the version in the tree has none."""
    kept, answered = node.message, message.tool_call_id
    if kept is not None and kept.tool_call_id is None and answered is not None:
        node.message = _replace(kept, tool_call_id=ids.get(answered, answered))
