"""What validation found, and what became of records that are no trajectories."""

from __future__ import annotations

import polars as pl

from offline_arl.analysis.explanations import MEANINGS
from offline_arl.analysis.reasons import ReasonGroups
from offline_arl.analysis.store_report import Example, Finding, Reasons
from offline_arl.trajectories.quarantine import refused_places
from offline_arl.trajectories.store import Store
from offline_arl.trajectories.validate import CODES, ERRORS
from offline_arl.workflows.store_report.frames import EXAMPLES, TOP, collected

_TEXT_LIMIT = 300


def findings(store: Store, trajectories: int, refused: ReasonGroups) -> tuple[Finding, ...]:
    """Every code that validation knows, those that were found first, errors before warnings.

    Errors keep a trajectory out of the store, so they are found among the refused records; there the count is one of
    records, and no trajectory of the store has any.
    """
    counts = collected(
        store.findings.group_by("code").agg(
            pl.len().cast(pl.Int64).alias("count"),
            pl.col("trajectory_id").n_unique().cast(pl.Int64).alias("trajectories"),
        )
    )
    found = {code: (count, number) for code, count, number in counts.iter_rows()}
    examples = _examples(store, list(found))
    rows = []
    for code in [*CODES, *sorted(set(found) - set(CODES))]:
        is_error = code in ERRORS
        count, number = found.get(code, (0, 0))
        shown = examples.get(code, [])
        if is_error:
            in_quarantine, refusals = refused.of_code(code)
            count, shown = count + in_quarantine, (refusals + shown)[:EXAMPLES]
        rows.append(
            Finding(
                code=code,
                severity="error" if is_error else "warning",
                what=CODES.get(code, "a code that this version of offline_arl does not know"),
                meaning=MEANINGS.get(code, ""),
                count=count,
                trajectories=number,
                share=number / trajectories if trajectories else 0.0,
                examples=tuple(shown),
            )
        )
    return tuple(sorted(rows, key=lambda row: (row.count == 0, row.severity, -row.trajectories)))


def _examples(store: Store, codes: list[str]) -> dict[str, list[Example]]:
    """The first few findings of each code, those of different trajectories."""
    if not codes:
        return {}
    chosen = pl.concat(
        collected(store.findings.filter(pl.col("code") == code).head(200))
        .unique("trajectory_id", keep="first", maintain_order=True)
        .head(EXAMPLES)
        for code in codes
    )
    ids = chosen["trajectory_id"].unique().to_list()
    places = collected(
        store.logged_trajectories.filter(pl.col("trajectory_id").is_in(ids)).select(
            "trajectory_id", "source_file", "source_record"
        )
    )
    found: dict[str, list[Example]] = {}
    for row in chosen.join(places, on="trajectory_id", how="left", maintain_order="left").iter_rows(named=True):
        found.setdefault(row["code"], []).append(
            Example(
                row["trajectory_id"],
                row["source_file"],
                row["source_record"],
                None,
                row["where"],
                row["text"][:_TEXT_LIMIT],
            )
        )
    return found


def refused_reasons(store: Store) -> ReasonGroups:
    """The reasons of the records in quarantine, read one record at a time."""
    groups = ReasonGroups()
    for record in refused_places(store.path, store.manifest.parts):
        place = Example(None, record.file, record.record, record.line, None, record.reason[:_TEXT_LIMIT])
        groups.add(record.reason, record.format, [place])
    return groups


def unused_reasons(records: pl.LazyFrame) -> Reasons:
    """The reasons of records that are set apart, or that repeat others of their session."""
    places = [pl.col(name).head(EXAMPLES) for name in ("file", "record", "line")]
    counts = collected(
        records.group_by("format", "reason")
        .agg(pl.len().cast(pl.Int64).alias("count"), *places)
        .sort("reason", "format")
    )
    groups = ReasonGroups()
    for format, reason, count, *columns in counts.iter_rows():
        told = reason or "no reason was given"
        shown = [
            Example(None, file, record, line, None, told[:_TEXT_LIMIT])
            for file, record, line in zip(*columns, strict=True)
        ]
        groups.add(told, format, shown, count)
    return groups.top(TOP)
