"""The tree of a session whose records name their parents: what follows what, where it forks or was compacted.

What makes this a tree of conversations rather than of records: the records of one response are one turn; the
results of parallel calls hang on different records of it and yet follow one another; records that are no messages
stand between those that are.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

from offline_arl.trajectories.schema import Message

Kind = Literal["user", "assistant", "summary", "boundary", "other"]


@dataclass
class Entry:
    """One record of a session.

    Attributes:
        index: Of its piece.
        label: Of its file.
        kind: What it is: a summary begins a conversation anew after a compaction, a boundary marks one.
        record: The parsed record.
        uuid: Its name within the session.
        parent: The name of the record that it follows.
        messages: What it says; none where it is no message.
        turn: Names the response of the model that it is a part of, where one is spread over records.
        thread: Names the sub-agent that it is of; "" for the session's own thread.
        source: Names the record of the turn whose calls it has results of, where the log says so.
    """

    index: int
    label: str
    kind: Kind
    record: dict[str, Any]
    uuid: str | None
    parent: str | None
    messages: list[Message] = field(default_factory=list)
    turn: tuple[str, str | None] | None = None
    thread: str = ""
    source: str | None = None

    @property
    def answered_calls(self) -> frozenset[str]:
        """Ids of the calls that it has results of."""
        return frozenset(m.tool_call_id for m in self.messages if m.role == "tool" and m.tool_call_id is not None)


Merge = Callable[[list[Entry]], list[Message]]


def _first_only(entries: list[Entry]) -> list[Message]:
    return entries[0].messages


@dataclass(eq=False)
class Node:
    """One message of the user's side or one turn of the model, with what followed it."""

    entries: list[Entry]
    merge: Merge = _first_only
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)
    boundary: Entry | None = None  # of the compaction that it comes after
    first_answer: int | None = None  # piece index of the first turn of the model at or below it

    @property
    def uuid(self) -> str:
        """Name of the message within the session; stays the same when the session grows."""
        return self.entries[0].uuid or f"piece {self.entries[0].index}"

    @property
    def is_turn(self) -> bool:
        """Whether it is a turn of the model (or a notice in the place of one)."""
        return self.entries[0].kind == "assistant"

    @property
    def is_continuation(self) -> bool:
        """Whether it begins a conversation anew after a compaction."""
        return self.parent is None and (self.boundary is not None or self.entries[0].kind == "summary")

    @cached_property
    def messages(self) -> list[Message]:
        """Its messages."""
        return self.merge(self.entries)

    @property
    def results(self) -> frozenset[str]:
        """Ids of the calls that it answers; empty unless it holds tool results."""
        return frozenset().union(*(entry.answered_calls for entry in self.entries))


@dataclass(frozen=True)
class Path:
    """A conversation from its beginning to its end; `shared` nodes at its start belong to an earlier path too."""

    nodes: list[Node]
    shared: int
    origin: Path | None  # the path that it forks from


def grow(entries: Sequence[Entry], elsewhere: Container[str] = (), merge: Merge = _first_only) -> list[Node]:
    """Build the trees of one thread; returns their roots in order.

    Args:
        entries: The records of the thread, in order.
        elsewhere: Names of the records of other threads; what has its parent there is a root.
        merge: Makes the messages of a turn from its records.
    """
    nodes, by_uuid = _nodes(entries, merge)
    links = {entry.uuid: entry for entry in entries if entry.uuid is not None and entry.uuid not in by_uuid}
    if len(nodes) > 1 and all(entry.parent is None for node in nodes for entry in node.entries):
        _chain(nodes)
    else:
        previous: dict[str, Node] = {}
        for node in nodes:
            label = node.entries[0].label
            if node.entries[0].parent not in elsewhere:
                _attach(node, by_uuid, links, previous.get(label))
            previous[label] = node
    roots = _reachable(nodes)
    for node in nodes:
        _order_results(node)
    _find_answers(roots)
    return roots


def paths(root: Node) -> Iterator[Path]:
    """The conversations of a tree, each after the one that it forks from.

    At a fork the first path goes on with the branch that was answered first. A branch that the model never
    answered, beside one that it did, is no conversation of its own (see `abandoned`).
    """
    waiting: list[tuple[Path | None, list[Node], Node]] = [(None, [], root)]
    while waiting:
        origin, prefix, node = waiting.pop()
        walked = [*prefix, node]
        forks: list[tuple[int, Node]] = []
        while children := _followed(walked[-1]):
            forks.extend((len(walked), child) for child in children[1:])
            walked.append(children[0])
        path = Path(walked, len(prefix), origin)
        yield path
        waiting.extend((path, walked[:length], child) for length, child in reversed(forks))


def below(node: Node) -> Iterator[Node]:
    """A node and all that followed it; a node comes before those below it."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(current.children)


def abandoned(roots: Sequence[Node]) -> Iterator[Node]:
    """The nodes of branches that the model never answered, beside others that it did."""
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        kept = _followed(node)
        waiting.extend(kept)
        for child in node.children:
            if not any(child is other for other in kept):
                yield from below(child)


def _followed(node: Node) -> list[Node]:
    answered = [child for child in node.children if child.first_answer is not None]
    return sorted(answered, key=lambda child: child.first_answer or 0) if answered else node.children[:1]


def _nodes(entries: Sequence[Entry], merge: Merge) -> tuple[list[Node], dict[str, Node]]:
    nodes: list[Node] = []
    turns: dict[tuple[str, str | None], Node] = {}
    by_uuid: dict[str, Node] = {}
    for entry in entries:
        if not entry.messages:
            continue
        turn = entry.turn
        node = None if turn is None else turns.get(turn)
        if node is None:
            node = Node([entry], merge)
            nodes.append(node)
            if turn is not None:
                turns[turn] = node
        else:
            node.entries.append(entry)
        if entry.uuid is not None:
            by_uuid[entry.uuid] = node
    return nodes, by_uuid


def _chain(nodes: Sequence[Node]) -> None:
    """Some writers leave all parents out: the order of the file is all there is."""
    for parent, node in pairwise(nodes):
        if node.entries[0].kind != "summary":
            node.parent = parent
            parent.children.append(node)


def _attach(node: Node, by_uuid: dict[str, Node], links: dict[str, Entry], previous: Node | None) -> None:
    """Find the parent of a node, past records that are no messages; stop at a compaction."""
    uuid = node.entries[0].parent
    passed: set[str] = set()
    while uuid is not None and uuid not in by_uuid:
        link = links.get(uuid)
        if link is None or uuid in passed:
            break
        if link.kind == "boundary":
            node.boundary = link
            return
        passed.add(uuid)
        uuid = link.parent
    if uuid is None or node.entries[0].kind == "summary":
        return
    # A parent that is missing was an unreadable line; what stood before it is the best guess.
    parent = by_uuid.get(uuid, previous)
    source = by_uuid.get(node.entries[0].source or "")
    if source is not None and parent is not source and (parent is None or not _is_of(parent, source, by_uuid)):
        parent = source
    if parent is not None and parent is not node:
        node.parent = parent
        parent.children.append(node)


def _is_of(node: Node, turn: Node, by_uuid: dict[str, Node]) -> bool:
    """Whether a node holds results of a turn."""
    return by_uuid.get(node.entries[0].source or "") is turn


def _reachable(nodes: Sequence[Node]) -> list[Node]:
    """The roots, after cutting circles open (damaged logs name a parent that comes after)."""
    roots = [node for node in nodes if node.parent is None]
    seen = {id(node) for root in roots for node in below(root)}
    for node in nodes:
        if id(node) in seen:
            continue
        if node.parent is not None:
            node.parent.children = [child for child in node.parent.children if child is not node]
            node.parent = None
        roots.append(node)
        seen.update(id(other) for other in below(node))
    return roots


def _order_results(node: Node) -> None:
    """Put the results of a turn's parallel calls after one another; results of the same call are a real fork."""
    if not node.is_turn or len(node.children) < 2:
        return
    children, chains = node.children, list[list[Node]]()
    others = []
    for child in children:
        if not child.results:
            others.append(child)
            continue
        for chain in chains:
            if not any(child.results & earlier.results for earlier in chain):
                chain.append(child)
                break
        else:
            chains.append([child])
    if not chains:
        return
    node.children = [chain[0] for chain in chains]
    for chain in chains:
        following = [child for result in chain for child in result.children]
        for earlier, later in pairwise(chain):
            earlier.children, later.parent = [later], earlier
        chain[-1].children = following
        for child in following:
            child.parent = chain[-1]
    end = chains[-1][-1]
    if not end.children and others:
        # What follows the turn itself (an interruption, a line that lost its parent) comes after its results.
        end.children = others
        for other in others:
            other.parent = end
    else:
        node.children.extend(others)


def _find_answers(roots: Sequence[Node]) -> None:
    for root in roots:
        for node in reversed(list(below(root))):
            found = [child.first_answer for child in node.children if child.first_answer is not None]
            if node.is_turn:
                found.append(node.entries[0].index)
            node.first_answer = min(found, default=None)
