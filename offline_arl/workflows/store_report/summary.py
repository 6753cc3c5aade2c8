"""The summary at the head of a report: what to look at first, a line each."""

from __future__ import annotations

from collections.abc import Iterator

from offline_arl.analysis.store_report import (
    Duplicates,
    FeedbackSummary,
    Finding,
    Outcomes,
    Problem,
    ProblemSeverity,
    Reasons,
    Splits,
)
from offline_arl.trajectories.schema import SCHEMA_VERSION

ORDER: tuple[ProblemSeverity, ...] = ("error", "warning", "note")


def of_refusals(refused: Reasons) -> Iterator[Problem]:
    """Records that were refused."""
    if refused.count:
        reasons = len(refused.rows) + refused.more
        why = f"most often: {refused.rows[0].reason}" if reasons > 1 else refused.rows[0].reason
        yield Problem("error", f"{_count(refused.count, 'record')} refused; {why}")


def of_splits(splits: Splits | None) -> Iterator[Problem]:
    """Leaks between splits, and what is in none."""
    if splits is None:
        yield Problem("note", "the store is not split; see: offline-arl split")
        return
    for shared in splits.shared:
        if shared.kind == "leak" and shared.values:
            rows = _count(shared.trajectories, "trajectory", "trajectories")
            yield Problem("error", f"the splits leak: {rows} share text across splits ({shared.what})")
    if splits.unassigned:
        yield Problem("warning", f"{_count(splits.unassigned, 'trajectory', 'trajectories')} in no split")


def of_findings(findings: tuple[Finding, ...]) -> Iterator[Problem]:
    """What validation warns of."""
    for finding in findings:
        if finding.severity == "warning" and finding.count:
            rows = _count(finding.trajectories, "trajectory", "trajectories")
            yield Problem(
                "warning",
                f"{finding.code}: {finding.what} ({_count(finding.count, 'time')} in {rows}, {finding.share:.1%})",
            )


def of_feedback(feedback: FeedbackSummary) -> Iterator[Problem]:
    """Feedback on what the store does not hold."""
    if feedback.unplaced:
        yield Problem("warning", f"{_count(feedback.unplaced, 'judgement')} of what the store does not hold")


def of_version(schema_version: str) -> Iterator[Problem]:
    """Stores of versions that did not keep findings."""
    if schema_version != SCHEMA_VERSION:
        yield Problem(
            "warning", f"the store is of schema version {schema_version}, which kept no findings; ingest the logs anew"
        )


def of_outcomes(outcomes: Outcomes, trajectories: int) -> Iterator[Problem]:
    """What training can make of the outcomes."""
    if outcomes.infrastructure_errors:
        crashed = _count(outcomes.infrastructure_errors, "attempt")
        yield Problem("note", f"{crashed} ended by a crash of the harness: neither a success nor a failure")
    if trajectories and outcomes.scored == 0:
        yield Problem("note", "no attempt has an outcome: clone all of it, or label it; see: offline-arl label")
    elif outcomes.success.n and outcomes.successes in (0, outcomes.success.n):
        same = "succeeded" if outcomes.successes else "failed"
        yield Problem("note", f"every attempt with a verdict {same}: there is nothing to prefer one to another by")


def of_duplicates(duplicates: Duplicates) -> Iterator[Problem]:
    """Copies."""
    if duplicates.copies:
        yield Problem("note", f"{_count(duplicates.copies, 'trajectory', 'trajectories')} copy an earlier one")
    if duplicates.near is None:
        yield Problem("note", "nobody looked for near duplicates; see: offline-arl duplicates")


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
