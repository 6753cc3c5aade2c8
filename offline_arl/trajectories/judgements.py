"""Every judgement in a store, with the trajectory that it is about."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from offline_arl.trajectories.encoding import IDENTITY_COLUMNS
from offline_arl.trajectories.files import Part
from offline_arl.trajectories.part_frames import Void, scan
from offline_arl.trajectories.scores import FEEDBACK_COLUMNS, JUDGEMENT_COLUMNS, SCORE_COLUMNS

COLUMNS: dict[str, pl.DataType] = {**JUDGEMENT_COLUMNS, "target": pl.String(), "target_id": pl.String()}


def judgements(root: Path, parts: Sequence[Part], void: Void, sessions: pl.LazyFrame) -> pl.LazyFrame:
    """One row a judgement and trajectory: those that records hold, then those that came apart from what they judge.

    Args:
        root: Folder of the store.
        parts: Its parts.
        void: Rows that do not count.
        sessions: Columns trajectory_id and session_id of every trajectory.

    Returns:
        Columns COLUMNS. `target` and `target_id` are null for judgements of the trajectory's own record. What came
        apart has one row for each trajectory of its session or trace, and a null trajectory_id as long as the
        store holds none. What is about a call that made no message is about the trajectories that name the call
        among their identifiers.
    """
    own = scan(root, parts, "scores", JUDGEMENT_COLUMNS, void).with_columns(
        pl.lit(None, pl.String()).alias("target"), pl.lit(None, pl.String()).alias("target_id")
    )
    if not any(part.feedback for part in parts):
        return own.select(*COLUMNS)
    feedback = scan(root, parts, "feedback", FEEDBACK_COLUMNS, void).select("target", "target_id", *SCORE_COLUMNS)
    identities = scan(root, parts, "identities", IDENTITY_COLUMNS, void).rename({"message_index": "at"})

    def of_kind(kind: str) -> pl.LazyFrame:
        return identities.filter(pl.col("kind") == kind).select("trajectory_id", "id", "at")

    nowhere = pl.lit(None, pl.Int64()).alias("at")
    runs = of_kind("trace").unique(maintain_order=True)
    calls = of_kind("call")
    names = {
        "trajectory": sessions.select("trajectory_id", pl.col("trajectory_id").alias("id"), nowhere),
        "session": sessions.select("trajectory_id", pl.col("session_id").alias("id"), nowhere),
        "trace": runs,
        # A call that made no message (a chain, an agent's run) encloses messages: its id is one of the trajectory.
        "call": pl.concat([calls, runs.join(calls, on="id", how="anti", maintain_order="left")]),
    }
    apart = [
        feedback.filter(pl.col("target") == target)
        .join(known, left_on="target_id", right_on="id", how="left", maintain_order="left_right")
        .with_columns(pl.coalesce("message_index", "at").alias("message_index"))
        .select(*COLUMNS)
        for target, known in names.items()
    ]
    return pl.concat([own.select(*COLUMNS), *apart])
