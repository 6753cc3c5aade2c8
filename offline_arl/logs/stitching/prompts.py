"""The tree of all prompts of a group: each message stands in it once, however often the log repeats it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from offline_arl.logs.stitching.calls import ModelCall
from offline_arl.logs.stitching.message_keys import (
    MessageKey,
    MessageKeys,
    leading_system_messages,
    without_volatile,
)
from offline_arl.trajectories.schema import Message

if TYPE_CHECKING:
    from offline_arl.logs.stitching.threads import Sample, Thread

_SAME_AGENT = 0.8  # share of the words that two prompts of one agent have in common at least
_EVIDENCE_CALLS = 4  # how many of the latest known answers in a prompt are looked at

SystemTexts = tuple[str, ...]


class Node:
    """A message in the tree, after the messages of its ancestors.

    Attributes:
        depth: Number of messages up to and including this one, system prompts left out; 0 for a root.
        message: The richest version that was seen in a prompt; None where only an answer was seen.
        thread: The first thread through this node.
        sample: The first sampled answer that this node is.
        open: Threads that end here and may go on.
        answered: How many calls had the prompt that ends here and were answered.
    """

    __slots__ = ("answered", "children", "depth", "digest", "key", "message", "open", "parent", "sample", "thread")

    def __init__(self, parent: Node | None, key: MessageKey, message: Message | None) -> None:
        self.parent = parent
        self.key = key
        self.message = message
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.children: dict[MessageKey, Node] = {}
        self.thread: Thread | None = None
        self.sample: Sample | None = None
        self.open: list[Thread] = []
        self.answered = 0
        self.digest: bytes | None = None

    def child(self, key: MessageKey, message: Message | None) -> Node:
        """The child with this key, made where there is none."""
        found = self.children.get(key)
        if found is None:
            found = self.children[key] = Node(self, key, message)
        return found

    def path(self) -> list[Node]:
        """The nodes from below the root down to this one."""
        nodes: list[Node] = []
        node: Node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes


@dataclass(eq=False)
class Family:
    """Calls with the same system prompt, apart from what changes from call to call."""

    texts: SystemTexts
    root: Node = field(default_factory=lambda: Node(None, ("root", ""), None))


@dataclass(eq=False)
class Prompt:
    """A call with its place in the tree."""

    index: int  # among the calls as given
    rank: int  # in order of time
    call: ModelCall
    time: float | None
    n_system: int
    texts: SystemTexts
    family: Family
    end: Node
    answers: list[MessageKey]

    def message_at(self, depth: int) -> Message:
        """The version in this prompt of the message at a depth of the tree."""
        return self.call.messages[self.n_system + depth - 1]


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
        self.by_answer: dict[MessageKey, list[Prompt]] = {}
        self._keys = MessageKeys()
        self._families: dict[SystemTexts, Family] = {}
        self._alike: dict[SystemTexts, Family] = {}

    def add_all(self, calls: Sequence[ModelCall]) -> list[Prompt]:
        """Add calls in order of time; returns them in that order."""
        for rank, (index, time) in enumerate(_in_order(calls)):
            self._add(index, rank, calls[index], time)
        return self.prompts

    def key(self, message: Message) -> MessageKey:
        """The key of a message."""
        return self._keys.of(message)

    def _add(self, index: int, rank: int, call: ModelCall, time: float | None) -> None:
        of = self._keys.of
        keys = [of(message) for message in call.messages]
        n_system = leading_system_messages(call.messages)
        texts = tuple([key[1] for key in keys[:n_system]])
        body = keys[n_system:]
        family = self._family(texts, body)
        node = family.root
        for position, key in enumerate(body, n_system):
            following = node.children.get(key)
            if following is None:
                following = node.children[key] = Node(node, key, call.messages[position])
            elif key[0] in ("assistant", "tool"):
                _keep_richer(following, call.messages[position])
            node = following
        answers = [of(choice) for choice in call.choices]
        prompt = Prompt(index, rank, call, time, n_system, texts, family, node, answers)
        self.prompts.append(prompt)
        for key in answers:
            self.by_answer.setdefault(key, []).append(prompt)

    def _family(self, texts: SystemTexts, body: list[MessageKey]) -> Family:
        known = self._families.get(texts)
        if known is not None and texts:
            return known
        found = self._continued_family(texts, body)
        if found is None and known is not None:
            return known
        alike = tuple([without_volatile(text) for text in texts])
        if found is None:
            found = self._alike.get(alike)
        if found is None:
            found = Family(texts)
        if texts or found.texts == texts:  # calls without a system prompt may belong to several families
            self._families[texts] = found
            self._alike.setdefault(alike, found)
        return found

    def _continued_family(self, texts: SystemTexts, body: list[MessageKey]) -> Family | None:
        """The family of a call that this prompt repeats with its answer, if the system prompts are alike."""
        looked_at = 0
        for depth in range(len(body) - 1, -1, -1):
            if body[depth][0] != "assistant":
                continue
            for earlier in reversed(self.by_answer.get(body[depth], ())[-_EVIDENCE_CALLS:]):
                looked_at += 1
                if earlier.end.depth == depth and _leads_to(body, earlier) and are_alike(texts, earlier.texts):
                    return earlier.family
            if looked_at >= _EVIDENCE_CALLS:
                break
        return None


def _in_order(calls: Sequence[ModelCall]) -> list[tuple[int, float | None]]:
    """Calls (index, time) in order of time, shorter prompts first among equal times, then by position.

    A call without a time stands right after the call before it in the log.
    """
    times = [seconds(call.started_at) for call in calls]
    order: list[tuple[float, int, int]] = []
    latest, length = float("-inf"), 0
    has_times = False
    for index, time in enumerate(times):
        if time is not None:
            latest, length, has_times = time, len(calls[index].messages), True
        order.append((latest, length, index))
    if not has_times:
        return [(index, None) for index in range(len(calls))]
    return [(index, times[index]) for _, _, index in sorted(order)]


def _leads_to(body: list[MessageKey], earlier: Prompt) -> bool:
    node = earlier.family.root
    for key in body[: earlier.end.depth]:
        following = node.children.get(key)
        if following is None:
            return False
        node = following
    return node is earlier.end


def _keep_richer(node: Node, message: Message) -> None:
    """Keep the version of a message that has ids and reasoning, where another lacks them."""
    kept = node.message
    if kept is None:
        node.message = message
    elif message.role == "tool":
        if kept.tool_call_id is None and message.tool_call_id is not None:
            node.message = message
    elif len(message.content or ()) > len(kept.content or ()) or (
        message.tool_calls and kept.tool_calls and kept.tool_calls[0].id is None and message.tool_calls[0].id
    ):
        node.message = message


def are_alike(texts: SystemTexts, others: SystemTexts) -> bool:
    """Whether two system prompts, given that the messages go on, are of one agent: most words are the same.

    A prompt that is missing from one of the calls was not logged there.
    """
    if texts == others or not texts or not others:
        return True
    one, other = "\n".join(texts), "\n".join(others)
    longer = max(len(one), len(other))
    start, end = common_ends(one, other)
    if start + end >= _SAME_AGENT * longer:
        return True
    if without_volatile(one) == without_volatile(other):
        return True
    words, other_words = Counter(one.split()), Counter(other.split())
    return (words & other_words).total() >= _SAME_AGENT * max(words.total(), other_words.total())


def common_ends(one: str, other: str) -> tuple[int, int]:
    """Lengths of the common start and, in what is left, of the common end of two texts.

    >>> common_ends("it is 10:15 now", "it is 9:15 now")
    (6, 7)
    """
    shorter = min(len(one), len(other))
    start = _longest(shorter, lambda low, high: one[low:high] == other[low:high])
    return start, _longest(
        shorter - start,
        lambda low, high: one[len(one) - high : len(one) - low] == other[len(other) - high : len(other) - low],
    )


def _longest(limit: int, is_common: Callable[[int, int], bool]) -> int:
    """The greatest length up to which two texts agree; each character is compared about once."""
    low, step = 0, limit
    while step:
        step = min(step, limit - low)
        if step and is_common(low, low + step):
            low += step
        else:
            step //= 2
    return low
