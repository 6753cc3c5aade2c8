"""From pairs and labeled answers as messages to rows of tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from offline_arl.datasets.pairs.pair import Pair, Side, is_trained_step
from offline_arl.datasets.pairs.rows import PairRow
from offline_arl.datasets.segments import SegmentRenderer
from offline_arl.trajectories.schema import Message, Source, Trajectory

Splits = Mapping[str, str]  # trajectory_id -> split
Tokens = tuple[NDArray[np.int32], NDArray[np.bool_]]


class NoRowError(Exception):
    """A pair or a labeled answer cannot become a row; the text is the reason for the manifest."""


def pair_row(pair: Pair, renderer: SegmentRenderer, *, max_tokens: int | None, splits: Splits) -> PairRow:
    """The row of a pair.

    Raises:
        NoRowError: A side is longer than `max_tokens`, the template makes several sequences of it, or the sides do not
            differ in their tokens.
        TemplateError: The template refuses the messages.
    """
    chosen_ids, chosen_mask = side_tokens(pair.chosen, renderer, max_tokens)
    rejected_ids, rejected_mask = side_tokens(pair.rejected, renderer, max_tokens)
    if np.array_equal(chosen_ids, rejected_ids):
        raise NoRowError("equal_tokens")
    firsts = int(np.argmax(chosen_mask)), int(np.argmax(rejected_mask))
    prompt_length = min(_shared(chosen_ids, rejected_ids), *firsts)
    same_prompt = firsts == (prompt_length, prompt_length)
    if not same_prompt and max_tokens is not None and pair.chosen.start == pair.rejected.start:
        chosen_prompt, rejected_prompt = (side.messages[: side.start] for side in (pair.chosen, pair.rejected))
        if chosen_prompt == rejected_prompt and all(_acts_at_once(side) for side in (pair.chosen, pair.rejected)):
            raise NoRowError("too_long")  # of the same messages, each side kept other ones
    shared = _shared_messages(pair)
    first, last = pair.chosen.trajectory, pair.rejected.trajectory
    evidence = {
        "chosen": _source(first, pair.chosen.position),
        "rejected": _source(last, pair.rejected.position),
        **pair.evidence,
    }
    return PairRow(
        pair_id=_pair_id(pair, chosen_ids, rejected_ids),
        kind=pair.kind,
        task_id=first.task_id if first.task_id is not None else first.group_id,
        task_type=first.task_type,
        split="+".join(sorted({splits[side.trajectory_id] for side in (first, last) if side.trajectory_id in splits}))
        or None,
        weight=pair.weight,
        margin=pair.margin,
        scorer=pair.scorer,
        chosen_score=pair.chosen_score,
        rejected_score=pair.rejected_score,
        chosen_trajectory_id=first.trajectory_id,
        rejected_trajectory_id=last.trajectory_id,
        chosen_message=pair.chosen.position,
        rejected_message=pair.rejected.position,
        same_prompt=same_prompt,
        prompt_length=prompt_length,
        chosen_token_ids=chosen_ids,
        chosen_action_mask=chosen_mask,
        rejected_token_ids=rejected_ids,
        rejected_action_mask=rejected_mask,
        prompt=messages_text(pair.chosen.messages[:shared]),
        chosen=messages_text(pair.chosen.messages[shared:]),
        rejected=messages_text(pair.rejected.messages[shared:]),
        tools=tools_text(pair.chosen),
        evidence=msgspec.json.encode(evidence).decode(),
    )


def side_tokens(side: Side, renderer: SegmentRenderer, max_tokens: int | None) -> Tokens:
    """Token ids and action mask of a side, the prompt included.

    Raises:
        NoRowError: See `pair_row`.
        TemplateError: The template refuses the messages.
    """
    untrained = [msgspec.structs.replace(message, trainable=False) for message in side.messages[: side.start]]
    messages = [*untrained, *side.messages[side.start :]]
    trajectory = msgspec.structs.replace(side.trajectory, messages=messages)
    steps = sum(is_trained_step(message) for message in messages)
    segments = renderer.render(trajectory, max_tokens)
    if sum(len(segment.step_spans()) for segment in segments) != steps or steps == 0:
        raise NoRowError("too_long" if steps else "no_action_tokens")
    if len(segments) != 1:
        # The limit cut it, or the template rewrites turns, or the tools changed in between.
        is_cut = max_tokens is not None and len(renderer.render(trajectory)) == 1
        raise NoRowError("too_long" if is_cut else "several_segments")
    return segments[0].token_ids, segments[0].action_mask


def messages_text(messages: Sequence[Message]) -> str:
    """Messages as JSON text, without the tokens that were recorded with them."""
    return msgspec.json.encode([msgspec.structs.replace(message, tokens=None) for message in messages]).decode()


def tools_text(side: Side) -> str | None:
    """The tools in force at the first trained message, as JSON text in OpenAI form."""
    return side.trajectory.context_at(side.position).tools


def source_of(source: Source) -> dict[str, Any]:
    """Where a trajectory came from, as JSON values."""
    found: dict[str, Any] = msgspec.to_builtins(source)
    return found


def _source(trajectory: Trajectory, position: int) -> dict[str, Any]:
    return {"trajectory_id": trajectory.trajectory_id, "message": position, **source_of(trajectory.source)}


def _shared(left: NDArray[np.int32], right: NDArray[np.int32]) -> int:
    """How many first tokens are the same."""
    length = min(len(left), len(right))
    different = np.flatnonzero(left[:length] != right[:length])
    return int(different[0]) if len(different) else length


def _shared_messages(pair: Pair) -> int:
    """How many first messages the sides share: up to the start of both, or to where their prompts part."""
    most = min(pair.chosen.start, pair.rejected.start)
    return next(
        (at for at in range(most) if pair.chosen.messages[at] != pair.rejected.messages[at]),
        most,
    )


def _acts_at_once(side: Side) -> bool:
    return is_trained_step(side.messages[side.start])


def _pair_id(pair: Pair, chosen: NDArray[np.int32], rejected: NDArray[np.int32]) -> str:
    digest = hashlib.sha256()
    for text in (
        pair.kind,
        pair.scorer or "",
        pair.chosen.trajectory.trajectory_id,
        pair.rejected.trajectory.trajectory_id,
    ):
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    digest.update(f"{pair.chosen.position}\0{pair.rejected.position}\0{len(chosen)}\0".encode())
    digest.update(chosen.tobytes() + rejected.tobytes())
    return digest.hexdigest()[:20]
