"""Calls and their messages as the tree of prompts has them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from offline_arl.logs.stitching.calls import ModelCall
from offline_arl.logs.stitching.message_keys import MessageKey
from offline_arl.logs.stitching.system_prompts import SystemTexts
from offline_arl.trajectories.schema import Message

if TYPE_CHECKING:
    from offline_arl.logs.stitching.threads import Sample, Thread


class Node:
    """A message in the tree, after the messages of its ancestors.

    Attributes:
        depth: Number of messages up to and including this one, system prompts left out; 0 for a root.
        message: The richest version that was seen in a prompt; None where only an answer was seen.
        thread: The first thread through this node.
        sample: The first sampled answer that this node is.
        open: Threads that end here and may go on, in the order in which they came here.
        is_answered: Whether a call had the prompt that ends here and was answered.
    """

    __slots__ = ("children", "depth", "digest", "is_answered", "key", "message", "open", "parent", "sample", "thread")

    def __init__(self, parent: Node | None, key: MessageKey, message: Message | None) -> None:
        self.parent = parent
        self.key = key
        self.message = message
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.children: dict[MessageKey, Node] = {}
        self.thread: Thread | None = None
        self.sample: Sample | None = None
        self.open: dict[Thread, None] = {}
        self.is_answered = False
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
    """A call with its place in the tree.

    Attributes:
        index: Position among the calls as given.
        rank: Position in order of time.
        texts: The system prompts, `n_system` of them.
        end: The node of the last message.
        answers: The keys of the choices.
    """

    index: int
    rank: int
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
