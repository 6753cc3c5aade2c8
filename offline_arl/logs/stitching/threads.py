"""Following threads through the tree of prompts: which call goes on where another one ended."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from offline_arl.logs.stitching.message_keys import MessageKey, update_digest
from offline_arl.logs.stitching.prompts import Family, Node, Prompt, PromptTree
from offline_arl.trajectories.schema import Message, TextPart

Relation = Literal["regenerated", "choice", "rewritten", "compaction", "sub_agent", "handoff"]
_CLOCK_SKEW = 1.0  # seconds by which the clocks of two loggers may differ
_JOINTS = ("\n", "\n\n", " ")


@dataclass(eq=False)
class Sample:
    """An answer in its thread.

    Attributes:
        before: Messages that the history merged into this one (the text that the caller had put into the
            answer's mouth); they stand before it in the trajectory.
        covers: How many nodes of the tree this one message is: 2 where the history split it.
    """

    prompt: Prompt
    choice: int
    thread: Thread
    before: list[Message] = field(default_factory=list)
    covers: int = 1

    @property
    def message(self) -> Message:
        """The answer as logged."""
        return self.prompt.call.choices[self.choice]


@dataclass(eq=False)
class Thread:
    """Calls of which each goes on where the one before ended.

    Attributes:
        name: What tells it from others of the group, whatever is logged later.
        last: The answered call that made `tail`, the last node.
        samples: Its own answers by depth; the answers of calls that it shares with its origin are not among them.
        origin: The thread that it left or that started it.
        fork: How many messages it shares with `origin`, system prompts left out.
        origin_depth: Depth of the answer of `origin` that started it, where known.
        summary_depth: Depth of the message that stands for a compacted history.
        failed: Failed calls; `failed_last` is the one that it ended with.
    """

    name: str
    family: Family
    first: Prompt
    tail: Node
    relation: Relation | None = None
    origin: Thread | None = None
    fork: int = 0
    samples: dict[int, Sample] = field(default_factory=dict)
    prompts: list[Prompt] = field(default_factory=list)
    failed: list[Prompt] = field(default_factory=list)
    failed_last: Prompt | None = None
    last: Prompt = field(init=False)
    summary_depth: int | None = None
    origin_depth: int | None = None

    def __post_init__(self) -> None:
        self.last = self.first


def answer_node(prompt: Prompt, choice: int, tree: PromptTree) -> tuple[Node | None, int, bool]:
    """The node of an answer among what later prompts repeat: (node, number of nodes it covers, whether merged).

    The history may repeat the answer as it is, split into text and calls, without the text that came with the
    calls, with its parts joined in another way, or merged with the start that the prompt gave it.
    """
    end, key = prompt.end, prompt.answers[choice]
    found = end.children.get(key)
    if found is not None:
        return found, 1, False
    if len(key) == 4 and key[3] and key[1]:
        without_calls: MessageKey = ("assistant", key[1], key[2], ()) if key[2] else ("assistant", key[1])
        without_text: MessageKey = ("assistant", "", (), key[3])
        text = end.children.get(without_calls)
        if text is not None and without_text in text.children:
            return text.children[without_text], 2, False
        if without_text in end.children:
            return end.children[without_text], 1, False
    texts = [part.text for part in prompt.call.choices[choice].content or () if isinstance(part, TextPart)]
    if len(texts) > 1:
        for joint in _JOINTS:
            joined = end.children.get((key[0], joint.join(texts).strip(), *key[2:]))
            if joined is not None:
                return joined, 1, False
    if end.parent is not None and end.key[0] == "assistant" and prompt.call.messages:
        start = prompt.call.messages[-1].text
        merged: MessageKey = ("assistant", (start + prompt.call.choices[choice].text).strip())
        if len(key) == 4:
            merged = (*merged, key[2], key[3])
        return end.parent.children.get(merged), 1, True
    return None, 1, False


class Threads:
    """Builds threads from prompts in order of time."""

    def __init__(self, tree: PromptTree) -> None:
        self.all: list[Thread] = []
        self._tree = tree
        self._names: dict[str, int] = {}

    def add(self, prompt: Prompt) -> None:
        """Add an answered call: its first answer goes on a thread or starts one, each further answer starts one."""
        first: Thread | None = None
        for choice in range(len(prompt.answers)):
            found, covers, is_merged = answer_node(prompt, choice, self._tree)
            node = found or prompt.end.child(prompt.answers[choice], None)
            sample = Sample(prompt, choice, None, covers=covers)  # type: ignore[arg-type]
            if is_merged and found is not None:
                sample.before = [prompt.call.messages[-1]]
            if first is None:
                first = self._thread_of(prompt, node)
                self._extend(first, sample, node)
            else:
                thread = self._fork(prompt, prompt.end, first, "choice", f"#{choice}")
                self._extend(thread, sample, node)
        prompt.end.answered += 1

    def _thread_of(self, prompt: Prompt, node: Node) -> Thread:
        owner = node.thread
        if owner is not None and self._is_missing_in(owner, node, prompt):
            return owner
        going_on = self._open_thread(prompt, node)
        if going_on is not None:
            return going_on
        shared = _first_followed(prompt.end)
        if shared.thread is None:
            thread = Thread(self._name(prompt, ""), prompt.family, prompt, prompt.family.root)
            self.all.append(thread)
            return thread
        relation: Relation = "regenerated" if shared is prompt.end and shared.answered else "rewritten"
        return self._fork(prompt, shared, shared.thread, relation, "")

    def _is_missing_in(self, owner: Thread, node: Node, prompt: Prompt) -> bool:
        """Whether this answer is a message that a thread has from its history, logged or timed out of order."""
        if node.depth in owner.samples or owner.family is not prompt.family or node.depth <= owner.fork:
            return False
        if prompt.time is None or owner.first.time is None:
            return True
        return prompt.time <= owner.first.time + _CLOCK_SKEW

    def _open_thread(self, prompt: Prompt, answer: Node) -> Thread | None:
        """The thread that ends nearest above the end of this prompt, where the prompt has not left it."""
        node = prompt.end
        followed: Thread | None = None  # who has gone on from here
        while node.parent is not None:
            if node.open:
                candidates = [thread for thread in node.open if followed is None or _is_twin(thread, followed, prompt)]
                if candidates:
                    return _best_fit(candidates, prompt, node)
            followed = followed or node.thread
            node = node.parent
        return None

    def _extend(self, thread: Thread, sample: Sample, node: Node) -> None:
        prompt = sample.prompt
        sample.thread = thread
        thread.samples[node.depth] = sample
        thread.prompts.append(prompt)
        if node.sample is None:
            node.sample = sample
        if node.depth > thread.tail.depth or thread.tail.parent is None:
            if thread in thread.tail.open:
                thread.tail.open.remove(thread)
            thread.tail, thread.last = node, prompt
            node.open.append(thread)
        walk = node
        while walk.parent is not None and walk.thread is None:  # a root is of no thread
            walk.thread = thread
            walk = walk.parent

    def _fork(self, prompt: Prompt, shared: Node, origin: Thread, relation: Relation, suffix: str) -> Thread:
        thread = Thread(
            self._name(prompt, suffix), prompt.family, prompt, prompt.family.root, relation, origin, shared.depth
        )
        self.all.append(thread)
        return thread

    def _name(self, prompt: Prompt, suffix: str) -> str:
        """A name from the first call alone: its id, or its content where it has none."""
        base = prompt.call.call_id if prompt.call.call_id is not None else _content_name(prompt)
        name = base + suffix
        number = self._names[name] = self._names.get(name, -1) + 1
        return f"{name}~{number}" if number else name


def _first_followed(node: Node) -> Node:
    """The nearest node that a thread runs through, from `node` up; the root where there is none."""
    while node.thread is None and node.parent is not None:
        node = node.parent
    return node


def _is_twin(thread: Thread, followed: Thread, prompt: Prompt) -> bool:
    """Whether a call goes on a thread that says the same as another one, which has gone on already.

    Without ids, two conversations that begin alike are told apart by nothing else. With ids it takes a trace that
    is the one's and not the other's; else the call is another try at a point of the conversation that went on.
    """
    trace, session = prompt.call.trace_id, prompt.call.session_id
    if trace is None:
        return session is None
    return thread.last.call.trace_id == trace != followed.last.call.trace_id


def _best_fit(threads: Sequence[Thread], prompt: Prompt, node: Node) -> Thread:
    """Of threads that end at `node`, the one that a call goes on: by ids of tool calls, by trace, then the last."""
    repeated = [call.id for call in prompt.message_at(node.depth).tool_calls]

    def fit(thread: Thread) -> tuple[bool, bool, int]:
        sample = thread.samples.get(node.depth)
        calls = sample.message.tool_calls if sample is not None else []
        same_ids = bool(repeated) and repeated == [call.id for call in calls]
        trace = prompt.call.trace_id
        return same_ids, trace is not None and thread.last.call.trace_id == trace, thread.last.rank

    return threads[0] if len(threads) == 1 else max(threads, key=fit)


def _content_name(prompt: Prompt) -> str:
    digest = hashlib.blake2b(_path_digest(prompt.end), digest_size=16)
    for text in prompt.family.texts:
        update_digest(digest, ("system", text))
    for key in prompt.answers:
        update_digest(digest, key)
    return digest.hexdigest()


def _path_digest(node: Node) -> bytes:
    """The digest of a node and its ancestors; each node is digested once."""
    pending: list[Node] = []
    walk: Node | None = node
    while walk is not None and walk.digest is None:
        pending.append(walk)
        walk = walk.parent
    known = b"" if walk is None or walk.digest is None else walk.digest
    for item in reversed(pending):
        digest = hashlib.blake2b(known, digest_size=16)
        update_digest(digest, item.key)
        known = item.digest = digest.digest()
    return known


def attach_failed(prompts: Sequence[Prompt], threads: Sequence[Thread]) -> list[Prompt]:
    """Attach failed calls to the threads that they belong to; returns those that belong to none."""
    lost: list[Prompt] = []
    for prompt in prompts:
        node = _first_followed(prompt.end)
        thread = _best_fit(node.open, prompt, node) if node.open else node.thread
        if thread is None:
            lost.append(prompt)
            continue
        thread.failed.append(prompt)
        if node.open and prompt.rank > thread.last.rank:
            thread.failed_last, thread.tail = prompt, prompt.end
    return lost
