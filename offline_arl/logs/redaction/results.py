"""Redacting what adapters made of redacted records.

An adapter joins the pieces of a streamed answer and decodes bodies of recorded HTTP, so a value can be whole in a
trajectory that was in pieces, or not readable, in the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from offline_arl.errors import DataError
from offline_arl.logs.redaction.placeholders import PLACEHOLDER
from offline_arl.logs.redaction.redactor import Redactor
from offline_arl.trajectories.schema import Feedback, Message, Trajectory

Value = TypeVar("Value")
_encoder = msgspec.json.Encoder()
_trajectory_decoder = msgspec.json.Decoder(Trajectory)
_feedback_decoder = msgspec.json.Decoder(Feedback)


def redact_trajectories(trajectories: Sequence[Trajectory], redactor: Redactor) -> list[Trajectory]:
    """Redact trajectories; ids that this program gave, and where they come from, stay.

    Token ids of a message with a replacement are left out, because they spell what was replaced, and so are those
    of the prompts after it.

    Raises:
        DataError: A trajectory holds what JSON cannot carry.
    """
    try:
        before = [_encoder.encode(trajectory) for trajectory in trajectories]
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise DataError(f"a trajectory cannot be stored as JSON: {error}") from error
    results = []
    for trajectory, old, new in zip(trajectories, before, redactor.documents(before), strict=True):
        if new is not old:
            redacted = _decoded(new, _trajectory_decoder)
            trajectory = msgspec.structs.replace(
                redacted,
                trajectory_id=trajectory.trajectory_id,
                parent_trajectory_id=trajectory.parent_trajectory_id,
                branch=trajectory.branch,
                source=trajectory.source,
            )
        results.append(_without_tokens(trajectory) if b'"tokens":' in new else trajectory)
    return results


def redact_feedback(feedback: Sequence[Feedback], redactor: Redactor) -> list[Feedback]:
    """Redact judgements that came apart from what they judge.

    Raises:
        DataError: One holds what JSON cannot carry.
    """
    try:
        before = [_encoder.encode(item) for item in feedback]
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise DataError(f"a judgement cannot be stored as JSON: {error}") from error
    after = redactor.documents(before)
    return [
        item if new is old else _decoded(new, _feedback_decoder)
        for item, old, new in zip(feedback, before, after, strict=True)
    ]


def _decoded(text: bytes, decoder: msgspec.json.Decoder[Value]) -> Value:
    try:
        return decoder.decode(text)
    except msgspec.DecodeError as error:
        raise DataError(f"does not fit its schema once it is redacted: {error}") from error


def _without_tokens(trajectory: Trajectory) -> Trajectory:
    messages: list[Message] = []
    replaced = False
    for message in trajectory.messages:
        here = PLACEHOLDER.search(_encoder.encode(message).decode()) is not None
        if message.tokens is not None and here:
            message = msgspec.structs.replace(message, tokens=None)
        elif message.tokens is not None and replaced and message.tokens.prompt_token_ids is not None:
            tokens = msgspec.structs.replace(message.tokens, prompt_token_ids=None)
            message = msgspec.structs.replace(message, tokens=tokens)
        replaced = replaced or here
        messages.append(message)
    return msgspec.structs.replace(trajectory, messages=messages)
