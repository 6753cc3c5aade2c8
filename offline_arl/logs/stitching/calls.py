"""What stitching takes and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from offline_arl.trajectories.schema import Message, MessageError, Score, Trajectory


@dataclass(frozen=True)
class ModelCall:
    """One call of a model as logged.

    Attributes:
        messages: The prompt in full, system prompt included, as the model got it.
        choices: The answers; several where n > 1 were asked for, none where the call failed.
        pieces: Indices of the group's pieces that it was read from (for provenance and accounting).
        call_id: The log's id of the call; becomes `Message.id` of the answers.
        tools: JSON text of the tools in OpenAI form (`openai_tools.normalize_tools`); None: not logged.
        parent_id: Id of the enclosing call or span, where the log nests them.
        parent_tool_call_id: Id of the tool call within which it was made, where the log says so: a sub-agent's.
        name: Of the operation or agent, as logged ("ChatOpenAI", "planner").
        truncated: The answer was cut by a token limit.
        is_utility: Known from the log to be no step of the agent (title, summary); None: not known.
        scores: Judgements of this call; their `message_index` is set by stitching.
        metadata: Anything else; it goes to the metadata of the answers. A true `cache_hit` marks an answer that
            came from a cache.
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
    parent_tool_call_id: str | None = None


@dataclass
class Stitched:
    """The trajectories of some calls, and the calls (by index) that are part of none, with the reason.

    Every call is part of exactly one trajectory (its answers may be in several, one a choice), set apart, or a
    duplicate of another call.
    """

    trajectories: list[Trajectory] = field(default_factory=list)
    set_apart: dict[int, str] = field(default_factory=dict)
    duplicates: dict[int, str] = field(default_factory=dict)
