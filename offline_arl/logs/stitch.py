"""Joining logged model calls into trajectories.

Call logs (provider requests, telemetry spans, proxies) hold one record a model call, and each repeats the history.
Two calls belong to one thread where the messages of the first, followed by its answer, are a prefix of the
messages of the second. Where a prefix breaks, a branch or a linked trajectory starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from offline_arl.logs.adapter import Group
from offline_arl.trajectories.schema import Message, MessageError, Score, Trajectory


@dataclass(frozen=True)
class ModelCall:
    """One call of a model as logged.

    Attributes:
        messages: The prompt in full, system prompt included, as the model got it.
        choices: The answers; several where n > 1 were asked for, none where the call failed.
        pieces: Indices of the group's pieces that it was read from (for provenance and accounting).
        call_id: The log's id of the call; becomes `Message.id` of the answers.
        tools: JSON text of the tools in OpenAI form (`openai_messages.normalize_tools`); None: not logged.
        parent_id: Id of the enclosing call or span, where the log nests them.
        name: Of the operation or agent, as logged ("ChatOpenAI", "planner").
        truncated: The answer was cut by a token limit.
        is_utility: Known from the log to be no step of the agent (title, summary); None: not known.
        scores: Judgements of this call; their `message_index` is set by stitching.
    """

    messages: list[Message]
    choices: list[Message]
    pieces: tuple[int, ...]
    call_id: str | None = None
    tools: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    model: str | None = None
    parent_id: str | None = None
    name: str | None = None
    session_id: str | None = None
    user_id: str | None = None
    trace_id: str | None = None
    truncated: bool = False
    stop_reason: str | None = None
    error: MessageError | None = None
    is_utility: bool | None = None
    scores: list[Score] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class Stitched:
    """The trajectories of some calls, and the calls (by index) that are part of none, with the reason."""

    trajectories: list[Trajectory] = field(default_factory=list)
    set_apart: dict[int, str] = field(default_factory=dict)


def stitch(calls: Sequence[ModelCall], group: Group) -> Stitched:
    """Join calls of one group into trajectories.

    Calls are taken in order of `started_at` (of their position where times are missing or equal). Args and result
    are described in `docs/formats.md`, section "Stitching".
    """
    raise NotImplementedError


def conversation_key(messages: Sequence[Message]) -> str:
    """A group key for a call log without ids: equal for calls whose messages start alike.

    A digest of the messages up to and including the first one of the user, which every later call repeats.
    """
    raise NotImplementedError
