"""`Pair`: a chosen and a rejected side as messages, before they are rendered, and how messages are compared."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from offline_arl.rewards.preferences import PairKind
from offline_arl.trajectories.schema import Message, ToolCall, Trajectory, is_policy_message

_encode = msgspec.json.Encoder(order="deterministic").encode


@dataclass(frozen=True)
class Side:
    """One side: all messages up to its end, the trained ones being the agent's steps from `start` on.

    Attributes:
        trajectory: Whose text it is, or was made from; its tools are in force.
        messages: From the beginning; a side ends where its evidence ends, which may be after one step.
        start: Position in `messages` of the first message that the other side does not share.
        position: The same message's position in `trajectory`.
    """

    trajectory: Trajectory
    messages: Sequence[Message]
    start: int
    position: int


@dataclass(frozen=True)
class Pair:
    """Two sides and why one is better; see `rows.PairRow` for what the fields mean."""

    kind: PairKind
    chosen: Side
    rejected: Side
    scorer: str | None = None
    chosen_score: float | None = None
    rejected_score: float | None = None
    weight: float = 1.0
    evidence: dict[str, Any] = field(default_factory=dict)

    @property
    def margin(self) -> float | None:
        """How much better the chosen side is; None where there are no numbers."""
        if self.chosen_score is None or self.rejected_score is None:
            return None
        return self.chosen_score - self.rejected_score


def whole_side(trajectory: Trajectory, start: int) -> Side:
    """A trajectory from `start` to its end."""
    return Side(trajectory, trajectory.messages, start, start)


def message_key(message: Message) -> Hashable:
    """What a message says. Two messages with the same key look the same to a policy, and to whoever reads them.

    Ids, times, costs and who produced it do not count; arguments of calls count as values where they are JSON.
    """
    return (
        message.role,
        tuple(message.content or ()),
        tuple(call_key(call) for call in message.tool_calls),
        message.error,
    )


def call_key(call: ToolCall) -> Hashable:
    """What a call asks for: its tool and its arguments, in whatever order they stand."""
    return call.name, call.arguments_raw if call.arguments is None else _encode(call.arguments)


def state_keys(trajectory: Trajectory) -> list[Hashable]:
    """A key for each message, that of `message_key` with the tools in force."""
    starts = {context.start: context.tools for context in trajectory.contexts}
    keys: list[Hashable] = []
    tools = None
    for index, message in enumerate(trajectory.messages):
        tools = starts.get(index, tools)
        keys.append((message_key(message), tools))
    return keys


def shared_length(left: Sequence[Hashable], right: Sequence[Hashable]) -> int:
    """How many first items two sequences share.

    >>> shared_length("abcd", "abxd")
    2
    """
    return next(
        (index for index, (one, other) in enumerate(zip(left, right, strict=False)) if one != other),
        min(len(left), len(right)),
    )


def is_trained_step(message: Message) -> bool:
    """Whether a message is a step of the agent that may be trained."""
    return is_policy_message(message) and message.trainable is not False
