"""A policy that sees a window of its history: the system prompt and the latest steps, not the whole chat.

A policy, or a value, that reads the whole chat remembers how an attempt began. Where the observation is the state of
the task, that hides what attempts have in common: the same state reached from two starts looks like two. With a window
each step is a segment of its own whose prompt shows the leading system messages, the tools, and the messages since the
observation of `history_steps` steps ago.

The setting belongs to the policy and travels with its tokenizer (`tokenizer_config.json`), so that rollouts, datasets
and training see the same prompts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from offline_arl.errors import UsageError
from offline_arl.rendering.windows import RenderPart
from offline_arl.trajectories.schema import Message, Producer, Trajectory
from offline_arl.trajectories.segment import Segment

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SETTINGS = "offline_arl"  # the entry of tokenizer_config.json that holds how a policy is rendered
_KEY = "history_steps"
_CACHED_SEGMENTS = 4096


def history_steps_of(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """How many past steps a policy's prompts show before the current observation; None: the whole chat.

    Raises:
        UsageError: The tokenizer's configuration holds something else.
    """
    return _checked((tokenizer.init_kwargs.get(SETTINGS) or {}).get(_KEY))


def set_history_steps(tokenizer: PreTrainedTokenizerBase, history_steps: int | None) -> None:
    """Write the setting into a tokenizer, where `save_pretrained` keeps it.

    Raises:
        UsageError: `history_steps` is no number of steps.
    """
    settings = {name: value for name, value in (tokenizer.init_kwargs.get(SETTINGS) or {}).items() if name != _KEY}
    if history_steps is not None:
        settings[_KEY] = _checked(history_steps)
    tokenizer.init_kwargs[SETTINGS] = settings


def _checked(value: Any) -> int | None:
    if value is None or (type(value) is int and value >= 0):
        return value
    raise UsageError(f"tokenizer_config.json: {SETTINGS}.{_KEY} is {value!r}; give a number from 0 on, or null")


def window(messages: Sequence[Message], end: int, history_steps: int) -> list[int]:
    """Indices of the messages in the prompt for an assistant message at index `end`.

    Shown are the leading system messages and what follows the assistant message before the last `history_steps` ones.
    Where that begins with a tool's result, the call that it answers is shown too: a result means nothing without it.

    >>> from offline_arl.trajectories.schema import text_message
    >>> roles = ["system", "user", "assistant", "user", "assistant", "user"]
    >>> chat = [text_message(role, "") for role in roles]
    >>> window(chat, 6, 0), window(chat, 6, 1), window(chat, 4, 7)
    ([0, 5], [0, 3, 4, 5], [0, 1, 2, 3])
    """
    head = 0
    while head < end and messages[head].role in ("system", "developer"):
        head += 1
    start, past = end, 0
    while start > head:
        past += messages[start - 1].role == "assistant"
        if past > history_steps:
            break
        start -= 1
    if head < start < end and messages[start].role == "tool":
        start -= 1
    return [*range(head), *range(start, end)]


class SegmentCache:
    """Segments of windows rendered before: where a step sees a state alone, few of a million steps differ."""

    def __init__(self) -> None:
        self._segments: dict[tuple[str | None, bytes], Segment] = {}

    def segment(self, trajectory: Trajectory, step: int, shown: Sequence[int], render: RenderPart) -> Segment:
        """The segment of one step, from the cache or rendered.

        Args:
            trajectory: Whose step it is.
            step: Its number.
            shown: Indices of the messages in the window, and of the step's own message behind them.
            render: Renders a part of the trajectory.
        """
        tools = trajectory.context_at(shown[-1]).tools
        key = (tools, b"".join(_rendered_part(trajectory.messages[index]) for index in shown))
        found = self._segments.get(key)
        if found is None:
            (found,) = render(shown, shown[-1:])
            if len(self._segments) >= _CACHED_SEGMENTS:
                self._segments.clear()
            self._segments[key] = found
        step_index = np.where(found.action_mask, np.int32(step), np.int32(-1))
        return dataclasses.replace(found, trajectory_id=trajectory.trajectory_id, step_index=step_index)


def _rendered_part(message: Message) -> bytes:
    """What of a message decides its tokens."""
    part = msgspec.structs.replace(
        message, metadata={}, producer=Producer(), timestamp=None, usage=None, trainable=None, id=None
    )
    return msgspec.json.encode(part)
