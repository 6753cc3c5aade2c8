"""Fit trajectories into a token limit: several segments that each keep the beginning and the recent turns."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence

from offline_arl.trajectories.schema import Message
from offline_arl.trajectories.segment import Segment

logger = logging.getLogger(__name__)

# (indices of the messages to show, indices of the steps to train) -> segments
RenderPart = Callable[[Sequence[int], Sequence[int]], list[Segment]]


def windowed(
    render: RenderPart, messages: Sequence[Message], steps: Sequence[int], segments: Sequence[Segment], limit: int
) -> list[Segment]:
    """Segments of at most `limit` tokens in which each step is trained once.

    The first segment is cut after the last step that fits. Each further one keeps what came before the first
    assistant message (system prompt, tools, first request) and drops the oldest turns after it: context takes up
    to half the limit, so that several steps share a segment. A step that does not fit even alone is left out,
    with one line of the log a trajectory; who renders many counts them.

    Args:
        render: Renders a part of the trajectory.
        messages: All its messages.
        steps: Indices of the messages to train.
        segments: What `render` gave for the whole.
        limit: Tokens.
    """
    result: list[Segment] = []
    pending = list(steps)
    queue = list(segments)
    left_out: list[int] = []
    while pending:
        if not queue:
            queue = _window(render, messages, pending, limit)
            if not queue:
                left_out.append(pending.pop(0))
                continue
        segment = queue.pop(0)
        kept = _cut(segment, limit)
        covered = 0 if kept is None else len(kept.step_spans())
        if kept is not None:
            result.append(kept)
            del pending[:covered]
        if covered < len(segment.step_spans()):
            queue = []  # the rest of this segment comes first, in windows
    if left_out:
        logger.info(
            "%d of %d steps (first: message %d) have more than %d tokens even without their history: left out",
            len(left_out),
            len(steps),
            left_out[0],
            limit,
        )
    return result


def _window(render: RenderPart, messages: Sequence[Message], pending: Sequence[int], limit: int) -> list[Segment]:
    """Segments of the pending steps with as much history as is affordable before the first of them."""
    first = pending[0]
    head = next(index for index, message in enumerate(messages) if message.role == "assistant")
    # History may begin at a message of the assistant or the user: a tool result needs its call.
    starts = [index for index in range(head, first + 1) if messages[index].role in ("assistant", "user")]
    low, high = 0, len(starts) - 1  # the length falls as the start moves on
    while low < high:
        middle = (low + high) // 2
        (probe,) = render([*range(head), *range(starts[middle], first + 1)], [first])
        span = probe.step_spans()[0]
        if span[1] <= limit // 2 and span[2] <= limit:
            high = middle
        else:
            low = middle + 1
    shown = [*range(head), *range(starts[low], pending[-1] + 1)]
    segments = render(shown, pending)
    return segments if segments[0].step_spans()[0][2] <= limit else []


def _cut(segment: Segment, limit: int) -> Segment | None:
    """`segment` up to the end of the last step that lies within `limit` tokens, or None."""
    ends = [end for _, _, end in segment.step_spans() if end <= limit]
    if not ends:
        return None
    end = ends[-1]
    return dataclasses.replace(
        segment,
        token_ids=segment.token_ids[:end],
        action_mask=segment.action_mask[:end],
        step_index=segment.step_index[:end],
        logprobs=None if segment.logprobs is None else segment.logprobs[:end],
    )
