"""Judgements as rows: those that a trajectory's record holds, and feedback that comes apart from what it judges."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import polars as pl

from offline_arl.errors import DataError
from offline_arl.trajectories.schema import Feedback, Score

SCORE_COLUMNS: dict[str, pl.DataType] = {
    "message_index": pl.Int64(),
    "name": pl.String(),
    "value": pl.Float64(),
    "label": pl.String(),
    "scorer": pl.String(),
    "scorer_kind": pl.String(),
    "direction": pl.String(),
    "comment": pl.String(),
    "correction": pl.String(),
    "comparison_id": pl.String(),
    "timestamp": pl.String(),
    "metadata": pl.String(),
}
# The scores of trajectories, a row each.
JUDGEMENT_COLUMNS: dict[str, pl.DataType] = {"trajectory_id": pl.String(), **SCORE_COLUMNS}
FEEDBACK_COLUMNS: dict[str, pl.DataType] = {
    "group": pl.Int64(),  # the group of pieces whose assembly gave it, or null
    "record_key": pl.Binary(),  # the record that is this judgement, or null
    "target": pl.String(),
    "target_id": pl.String(),
    **SCORE_COLUMNS,
}


def score_values(score: Score) -> tuple[Any, ...]:
    """The values of SCORE_COLUMNS; a value that is no finite number is kept as the label."""
    value, label = score.value, score.label
    if value is not None:
        value = float(value)  # adapters may pass on a whole number
        if not math.isfinite(value):
            value, label = None, label or str(value)
    return (
        score.message_index,
        score.name,
        value,
        label,
        score.scorer,
        score.scorer_kind,
        score.direction,
        score.comment,
        score.correction,
        score.comparison_id,
        score.timestamp,
        msgspec.json.encode(score.metadata),
    )


def feedback_row(feedback: Feedback, *, group: int | None, record_key: bytes | None) -> tuple[Any, ...]:
    """The row of one judgement that comes apart.

    Raises:
        DataError: It holds a value that JSON cannot carry without loss.
    """
    try:
        row = (group, record_key, feedback.target, feedback.target_id, *score_values(feedback.score))
        msgspec.json.encode(row)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise DataError(f"feedback on {feedback.target_id!r}: cannot be stored as JSON: {error}") from error
    return row


def feedback_digest(rows: Sequence[tuple[Any, ...]]) -> bytes | None:
    """16 bytes that change with anything in the rows; None where there are none."""
    return hashlib.blake2b(msgspec.json.encode(rows), digest_size=16).digest() if rows else None
