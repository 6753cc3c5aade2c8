"""Judgements that come apart from what they judge, as rows of a store."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import polars as pl

from offline_arl.errors import DataError
from offline_arl.trajectories.encoding import storable
from offline_arl.trajectories.schema import Feedback

FEEDBACK_COLUMNS: dict[str, pl.DataType] = {
    "group": pl.Int64(),  # the group of pieces whose assembly gave it, or null
    "record_key": pl.Binary(),  # the record that is this judgement, or null
    "target": pl.String(),
    "target_id": pl.String(),
    "name": pl.String(),
    "label": pl.String(),
    "scorer": pl.String(),
    "scorer_kind": pl.String(),
    "direction": pl.String(),
    "comment": pl.String(),
    "correction": pl.String(),
    "comparison_id": pl.String(),
    "timestamp": pl.String(),
    "value": pl.Float64(),
    "message_index": pl.Int64(),
    "metadata": pl.String(),
}


def feedback_row(feedback: Feedback, *, group: int | None, record_key: bytes | None) -> tuple[Any, ...]:
    """The row of one judgement.

    Raises:
        DataError: It holds a value that JSON cannot carry without loss.
    """
    score = feedback.score
    try:
        metadata = msgspec.json.encode(score.metadata)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise DataError(f"feedback on {feedback.target_id!r}: cannot be stored as JSON: {error}") from error
    value, label = score.value, score.label
    if value is not None and not math.isfinite(value):  # no verdict; kept as it was logged
        value, label = None, label or str(value)
    texts = (
        feedback.target,
        feedback.target_id,
        score.name,
        label,
        score.scorer,
        score.scorer_kind,
        score.direction,
        score.comment,
        score.correction,
        score.comparison_id,
        score.timestamp,
    )
    stored = [None if text is None else storable(text) for text in texts]
    return (group, record_key, *stored, value, score.message_index, metadata)


def feedback_digest(rows: Sequence[tuple[Any, ...]]) -> bytes | None:
    """16 bytes that change with anything in the rows; None where there are none."""
    return hashlib.blake2b(msgspec.json.encode(rows), digest_size=16).digest() if rows else None
