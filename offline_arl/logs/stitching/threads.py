"""Following threads through the tree of prompts: which call goes on where another one ended."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

from offline_arl.logs.stitching.answers import AnswerPlace, answer_place
from offline_arl.logs.stitching.message_keys import update_digest
from offline_arl.logs.stitching.prompts import Family, Node, Prompt
from offline_arl.trajectories.schema import Message

Relation = Literal["regenerated", "choice", "rewritten", "compaction", "sub_agent", "handoff"]
_CLOCK_SKEW = 1.0  # seconds by which the clocks of two loggers may differ
_MAX_TWINS = 32  # threads that end in the same words of which a call may go on one: the latest


@dataclass(eq=False)
class Sample:
    """An answer in its thread.

    Attributes:
        before: What the history has merged into this answer, and what stands before it in the trajectory: the
            beginning that its prompt ended with, itself an answer or not.
        covers: How many nodes of the tree this one message is: 2 where the history split it.
    """

    prompt: Prompt
    choice: int
    thread: Thread
    before: list[Sample | Message] = field(default_factory=list)
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
        first: The call that started it.
        last: The call with the longest prompt; its answer is `tail`.
        tail: The last node; where a failed call ended the thread, the end of the prompt of `failed_last`.
        origin: The thread that it left or that started it.
        fork: How many messages it shares with `origin`, system prompts left out.
        origin_sample: The answer of `origin` that started it, where known.
        summary_depth: Depth of the message that stands for a compacted history.
        samples: Its own answers by depth; the answers of calls that it shares with its origin are not among them.
    """

    name: str
    family: Family
    first: Prompt
    last: Prompt
    tail: Node
    relation: Relation | None = None
    origin: Thread | None = None
    fork: int = 0
    origin_sample: Sample | None = None
    summary_depth: int | None = None
    samples: dict[int, Sample] = field(default_factory=dict)
    prompts: list[Prompt] = field(default_factory=list)
    failed: list[Prompt] = field(default_factory=list)
    failed_last: Prompt | None = None


class Threads:
    """Builds threads from prompts in order of time."""

    def __init__(self) -> None:
        self.all: list[Thread] = []
        self._names: dict[str, int] = {}
        self._by_tool_call_id: dict[str, Thread] = {}  # of the latest answer with a tool call of this id

    def add(self, prompt: Prompt) -> None:
        """Add an answered call: its first answer goes on a thread or starts one, each further answer starts one."""
        first: Thread | None = None
        for choice, key in enumerate(prompt.answers):
            place = answer_place(prompt, choice) or AnswerPlace(prompt.end.child(key, None))
            if first is None:
                thread = first = self._thread_of(prompt, place)
            else:
                thread = self._start(prompt, prompt.end, first, "choice", f"#{choice}")
            _extend(thread, prompt, choice, place)
            for call in prompt.call.choices[choice].tool_calls:
                if call.id is not None:
                    self._by_tool_call_id[call.id] = thread
        prompt.end.is_answered = True

    def _thread_of(self, prompt: Prompt, place: AnswerPlace) -> Thread:
        owner = place.node.thread
        if owner is not None and _lacks(owner, place, prompt):
            return owner
        going_on = self._open_thread(prompt)
        if going_on is not None:
            return going_on
        shared = first_followed(prompt.end)
        if shared.thread is None:
            return self._start(prompt, shared, None, None, "")
        is_again = shared is prompt.end and shared.is_answered
        return self._start(prompt, shared, shared.thread, "regenerated" if is_again else "rewritten", "")

    def _open_thread(self, prompt: Prompt) -> Thread | None:
        """The thread that ends nearest above the end of a prompt, and that the prompt goes on."""
        node = prompt.end
        followed: Thread | None = None  # who has gone on from here
        while node.parent is not None:
            if node.open:
                for call in prompt.message_at(node.depth).tool_calls:
                    asking = self._by_tool_call_id.get(call.id) if call.id is not None else None
                    if asking is not None and asking in node.open:
                        return asking
                latest = islice(reversed(node.open), _MAX_TWINS)
                candidates = [thread for thread in latest if followed is None or _is_twin(thread, followed, prompt)]
                if candidates:
                    return _best_fit(candidates, prompt)
            followed = followed or node.thread
            node = node.parent
        return None

    def _start(
        self, prompt: Prompt, shared: Node, origin: Thread | None, relation: Relation | None, suffix: str
    ) -> Thread:
        name = self._name(prompt, suffix)
        thread = Thread(name, prompt.family, prompt, prompt, prompt.family.root, relation, origin, shared.depth)
        self.all.append(thread)
        return thread

    def _name(self, prompt: Prompt, suffix: str) -> str:
        """A name from the first call alone: its id, or its content where it has none."""
        base = prompt.call.call_id if prompt.call.call_id is not None else _content_name(prompt)
        name = base.encode(errors="replace").decode() + suffix
        number = self._names[name] = self._names.get(name, -1) + 1
        return f"{name}~{number}" if number else name


def _lacks(owner: Thread, place: AnswerPlace, prompt: Prompt) -> bool:
    """Whether the answer of a call is a message that a thread has from its history only.

    So it is where the log is not in order of time, or clocks differ. An answer that was sampled well after a
    thread began with the same words is not what it began with.
    """
    node, following = place.node, owner.samples.get(place.node.depth + 1)
    if owner.family is not prompt.family or node.depth <= owner.fork or (following and following.covers > 1):
        return False
    if any(depth in owner.samples for depth in range(node.depth - place.covers + 1, node.depth + 1)):
        return False
    repeating = next((item for item in owner.prompts if item.end.depth >= node.depth), owner.first)
    if prompt.time is None or repeating.time is None:
        return True
    return prompt.time <= repeating.time + _CLOCK_SKEW


def _is_twin(thread: Thread, followed: Thread, prompt: Prompt) -> bool:
    """Whether a call goes on a thread that says the same as another one, which has gone on already.

    Without ids, two conversations that begin alike are told apart by nothing else. With ids it takes a trace that
    is the one's and not the other's; else the call is another try at a point of the conversation that went on.
    """
    trace, session = prompt.call.trace_id, prompt.call.session_id
    if trace is None:
        return session is None
    return thread.last.call.trace_id == trace != followed.last.call.trace_id


def _best_fit(threads: Iterable[Thread], prompt: Prompt) -> Thread:
    """Of threads that end in the same words, the one that a call goes on: the latest of its trace, or of all."""
    trace = prompt.call.trace_id
    return max(threads, key=lambda thread: (trace is not None and thread.last.call.trace_id == trace, thread.last.rank))


def _extend(thread: Thread, prompt: Prompt, choice: int, place: AnswerPlace) -> None:
    """Put an answer of a call into a thread."""
    node = place.node
    sample = Sample(prompt, choice, thread, covers=place.covers)
    if place.is_merged:
        beginning = thread.samples.get(node.depth)
        sample.before = [beginning if beginning is not None else prompt.call.messages[-1]]
    thread.samples[node.depth] = sample
    thread.prompts.append(prompt)
    if node.sample is None:
        node.sample = sample
    is_further = thread.tail.parent is None or node.depth > thread.tail.depth
    if is_further or (place.is_merged and thread.tail is prompt.end):
        thread.tail.open.pop(thread, None)
        thread.tail, thread.last = node, prompt
        node.open[thread] = None
    while node.parent is not None and node.thread is None:  # a root is of no thread
        node.thread = thread
        node = node.parent


def first_followed(node: Node) -> Node:
    """The nearest node that a thread runs through, from `node` up; the root where there is none."""
    while node.thread is None and node.parent is not None:
        node = node.parent
    return node


def attach_failed(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Attach failed calls to the threads that they belong to; returns those that belong to none."""
    lost: list[Prompt] = []
    for prompt in prompts:
        node = first_followed(prompt.end)
        thread = _best_fit(node.open, prompt) if node.open else node.thread
        if thread is None:
            lost.append(prompt)
            continue
        thread.failed.append(prompt)
        if node.open and prompt.rank > thread.last.rank:
            thread.failed_last, thread.tail = prompt, prompt.end
    return lost


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
