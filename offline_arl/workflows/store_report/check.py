"""The report as a whole."""

from __future__ import annotations

from pathlib import Path

from offline_arl.analysis.store_report import StoreReport
from offline_arl.trajectories.store import Store, open_store
from offline_arl.workflows.store_report import counts, records, relations, summary, usage
from offline_arl.workflows.store_report.frames import TOP


def check_store(store: str | Path | Store) -> StoreReport:
    """Look through a store: what it holds, what validation found, what was refused, what leaks between its splits.

    Reads the store and changes nothing. Memory is bounded: lists are cut to the most frequent, and messages are read
    a part at a time. The same store gives the same report.

    Raises:
        DataError: There is no store at this path, or a file of it is missing or damaged.
    """
    opened = store if isinstance(store, Store) else open_store(store)
    manifest = opened.manifest
    facts = usage.message_facts(opened)
    holdings = counts.holdings(opened)
    outcomes = counts.outcomes(opened)
    reasons = records.refused_reasons(opened)
    findings = records.findings(opened, holdings.trajectories, reasons)
    refused = reasons.top(TOP)
    splits = relations.splits(opened)
    feedback = relations.feedback(opened)
    duplicates = relations.duplicates(opened)
    problems = [
        *summary.of_refusals(refused),
        *summary.of_splits(splits),
        *summary.of_findings(findings),
        *summary.of_feedback(feedback),
        *summary.of_version(manifest.schema_version),
        *summary.of_outcomes(outcomes, holdings.trajectories),
        *summary.of_duplicates(duplicates),
    ]
    return StoreReport(
        store=str(opened.path),
        schema_version=manifest.schema_version,
        parts=len(manifest.parts),
        megabytes=sum(entry.bytes for entry in manifest.files()) / 1e6,
        problems=tuple(sorted(problems, key=lambda problem: summary.ORDER.index(problem.severity))),
        holdings=holdings,
        outcomes=outcomes,
        endings=counts.endings(opened),
        findings=findings,
        refused=refused,
        set_apart=records.unused_reasons(opened.set_apart),
        repeated=records.unused_reasons(opened.repeated),
        duplicates=duplicates,
        lengths=counts.lengths(opened, facts.bytes),
        steps_histogram=counts.steps_histogram(opened),
        tools=usage.tools(opened, facts),
        splits=splits,
        feedback=feedback,
    )
