"""A report about a store as sections of tables."""

from __future__ import annotations

from collections.abc import Sequence

from offline_arl.analysis.report_tables import (
    NONE,
    Cell,
    ColumnKind,
    Section,
    Table,
    counted,
    number,
    share,
    top_table,
    visible,
)
from offline_arl.analysis.store_report import NamedCount, Reasons, StoreReport


def sections(report: StoreReport) -> tuple[Section, ...]:
    """All of the report but the summary and the findings."""
    return (
        _holdings(report),
        _outcomes(report),
        _endings(report),
        _refused(report),
        _set_apart(report),
        _duplicates(report),
        _lengths(report),
        _tools(report),
        _splits(report),
        _feedback(report),
    )


def _holdings(report: StoreReport) -> Section:
    held = report.holdings
    counts = [
        ("trajectories", held.trajectories),
        ("messages", held.messages),
        ("steps (turns of the agent)", held.steps),
        ("tool calls", held.tool_calls),
        ("tasks", held.tasks),
        ("groups of attempts", held.groups),
        ("sessions", held.sessions),
        ("users", held.users),
        ("trajectories without a time", held.untimed),
    ]
    rows = [(name, number(value)) for name, value in counts]
    if held.first is not None:
        rows += [("first", held.first), ("last", held.last or "")]
    rows += [
        ("on disk", f"{report.megabytes:,.1f} MB in {counted(report.parts, 'part')}"),
        ("schema version", report.schema_version),
    ]
    return Section(
        "holdings",
        "What is in the store",
        "",
        (
            Table("Counts", (("what", "text"), ("value", "number")), tuple(rows)),
            top_table("Formats", "format", held.formats, held.trajectories),
            top_table("Agents", "agent", held.agents, held.trajectories),
            top_table("Models", "model", held.models, held.trajectories),
            top_table("Task types", "task type", held.task_types, held.trajectories),
        ),
    )


def _outcomes(report: StoreReport) -> Section:
    found = report.outcomes
    counts: tuple[tuple[Cell, ...], ...] = (
        ("scored", number(found.scored)),
        ("successes", number(found.successes)),
        ("failures", number(found.failures)),
        ("scores without a verdict", number(found.scores_without_verdict)),
        ("unscored", number(found.unscored)),
        ("crashes of the harness", number(found.infrastructure_errors)),
        ("success", found.success),
    )
    types: tuple[tuple[Cell, ...], ...] = tuple(
        (
            NONE if row.task_type is None else visible(row.task_type),
            row.success,
            number(row.success.n),
            number(row.trajectories),
            number(row.mean_score),
            number(row.infrastructure_errors),
            f"{row.mean_steps:.1f}",
        )
        for row in found.by_task_type
    )
    lead = "A crash of the harness is neither a success nor a failure, and what nobody scored is not zero."
    if found.relabeled:
        lead += " The outcomes of the side table stand in place of those that were logged."
    return Section(
        "outcomes",
        "Outcomes",
        lead,
        (
            Table("Counts", (("outcome", "text"), ("trajectories", "number")), counts),
            Table(
                "By task type; success is of those with a verdict, with its 95 % interval",
                (
                    ("task type", "text"),
                    ("success", "number"),
                    ("with verdict", "number"),
                    ("trajectories", "number"),
                    ("mean score", "number"),
                    ("crashes", "number"),
                    ("mean steps", "number"),
                ),
                types,
                f"and {counted(found.more_task_types, 'more task type')}" if found.more_task_types else "",
            ),
            _scores(report),
        ),
    )


def _scores(report: StoreReport) -> Table:
    found = report.outcomes
    rows = tuple(
        (
            visible(row.name),
            row.scorer_kind,
            row.direction.partition("_")[0],
            *map(number, (row.count, row.trajectories, row.on_messages, row.labels)),
            *map(number, (row.mean, row.minimum, row.maximum)),
        )
        for row in found.scores
    )
    texts, numbers = ("score", "scorer", "better is"), ("judgements", "trajectories", "of messages", "labels")
    columns: tuple[tuple[str, ColumnKind], ...] = (
        *((name, "text") for name in texts),
        *((name, "number") for name in (*numbers, "mean", "lowest", "highest")),
    )
    return Table(
        "Scores", columns, rows, f"and {counted(found.more_scores, 'more score')}" if found.more_scores else ""
    )


def _endings(report: StoreReport) -> Section:
    found, of = report.endings, report.holdings.trajectories
    rows = tuple(
        (name, number(count), share(count, of))
        for name, count in (
            ("terminated: the task came to its own end", found.terminated),
            ("truncated: cut by a limit", found.truncated),
            ("neither is known", found.open),
        )
    )
    return Section(
        "endings",
        "Endings",
        "After the last step of a terminated attempt the value is 0; after that of a truncated one it is estimated.",
        (
            Table("How attempts ended", (("ending", "text"), ("trajectories", "number"), ("share", "number")), rows),
            top_table("Stop reasons", "stop reason", found.stop_reasons, of),
        ),
    )


def _refused(report: StoreReport) -> Section:
    lead = "Records that are not in the store as trajectories. They are kept raw in its quarantine; the next ingestion "
    return Section(
        "refused", "Refused records", lead + "tries them again.", (_reasons("Refused, by reason", report.refused),)
    )


def _set_apart(report: StoreReport) -> Section:
    return Section(
        "set-apart",
        "Records set apart",
        "Records of the sources that are no interactions, and records that repeat others of their session.",
        (_reasons("Set apart, by reason", report.set_apart), _reasons("Repeats, by reason", report.repeated)),
    )


def _reasons(caption: str, found: Reasons) -> Table:
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            visible(row.reason),
            row.code or "",
            number(row.count),
            ", ".join(map(visible, row.formats)),
            tuple(visible(example.place) for example in row.examples),
        )
        for row in found.rows
    )
    columns: tuple[tuple[str, ColumnKind], ...] = (
        ("reason", "text"),
        ("code", "code"),
        ("records", "number"),
        ("formats", "text"),
        ("examples", "code"),
    )
    if not any(row.code for row in found.rows):
        rows, columns = tuple((row[0], *row[2:]) for row in rows), (columns[0], *columns[2:])
    note = f"and {counted(found.more, 'more reason')} with {counted(found.others, 'record')}" if found.more else ""
    return Table(caption, columns, rows, note)


def _duplicates(report: StoreReport) -> Section:
    found = report.duplicates
    counts = [
        ("trajectories that copy an earlier one exactly", number(found.copies)),
        ("trajectories that have copies", number(found.originals)),
    ]
    if found.near is not None:
        counts += [
            ("near duplicates of an earlier one", number(found.near)),
            ("clusters of near duplicates", number(found.near_clusters)),
        ]
    note = "Nobody looked for near duplicates." if found.near is None else ""
    return Section(
        "duplicates",
        "Duplicates",
        "Copies are marked, never dropped: two honest attempts may be alike.",
        (
            Table("Counts", (("what", "text"), ("value", "number")), tuple(counts), note),
            _clusters("Most copied", found.largest),
            _clusters("Most near duplicates", found.largest_near),
        ),
    )


def _clusters(caption: str, rows: Sequence[NamedCount]) -> Table:
    columns: tuple[tuple[str, ColumnKind], ...] = (("trajectory", "code"), ("others like it", "number"))
    return Table(caption, columns, tuple((visible(row.name), number(row.count)) for row in rows))


def _lengths(report: StoreReport) -> Section:
    names = ("mean", "lowest", "median", "90 %", "99 %", "highest")
    rows = tuple(
        (row.measure, *map(number, (row.mean, row.minimum, row.median, row.p90, row.p99, row.maximum)))
        for row in report.lengths
    )
    columns: tuple[tuple[str, ColumnKind], ...] = (("measure", "text"), *((name, "number") for name in names))
    return Section("lengths", "Lengths", "", (Table("Quantiles", columns, rows),))


def _tools(report: StoreReport) -> Section:
    found = report.tools
    rows = tuple(
        (
            visible(row.name),
            number(row.calls),
            number(row.trajectories),
            number(row.invalid),
            share(row.invalid, row.calls),
            number(row.error_results),
            share(row.error_results, row.calls),
        )
        for row in found.rows
    )
    more = found.distinct - len(found.rows)
    told = [
        f"{counted(found.calls, 'call')} of {counted(found.distinct, 'tool')}",
        f"{found.invalid:,} not acceptable by the logged tools",
        f"{counted(found.error_results, 'result')} marked as errors",
        f"{counted(found.failed_turns, 'turn')} of the agent marked as failed",
    ]
    return Section(
        "tools",
        "Tools",
        ", ".join(told) + ".",
        (
            Table(
                "Calls by tool",
                (
                    ("tool", "code"),
                    ("calls", "number"),
                    ("trajectories", "number"),
                    ("invalid", "number"),
                    ("of calls", "number"),
                    ("error results", "number"),
                    ("of calls", "number"),
                ),
                rows,
                f"and {counted(more, 'more tool')}" if more > 0 else "",
            ),
        ),
    )


def _splits(report: StoreReport) -> Section:
    found = report.splits
    if found is None:
        return Section("splits", "Splits", "The store is not split.", ())
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (visible(row.name), number(row.trajectories), number(row.tasks), row.success) for row in found.rows
    )
    shared: tuple[tuple[Cell, ...], ...] = tuple(
        (
            row.what,
            "none" if row.values == 0 else row.kind,
            number(row.values),
            number(row.trajectories),
            tuple(map(visible, row.examples)),
        )
        for row in found.shared
    )
    lacking = tuple((visible(name), ", ".join(map(visible, names))) for name, names in found.lacking)
    lead = "Split by hand." if found.by is None else f"Split by {found.by}."
    if found.unassigned:
        lead += f" {counted(found.unassigned, 'trajectory is', 'trajectories are')} in no split."
    return Section(
        "splits",
        "Splits",
        lead,
        (
            Table(
                "Splits",
                (("split", "text"), ("trajectories", "number"), ("tasks", "number"), ("success", "number")),
                rows,
                f"and {counted(found.more, 'more split')}" if found.more else "",
            ),
            Table(
                "Trajectories by task type",
                (("task type", "text"), *((visible(row.name), "number") for row in found.rows)),
                tuple((visible(name), *map(number, counts)) for name, counts in found.task_types),
            ),
            Table(
                "Leaks: what occurs in several splits. Allowed is what this way of splitting does not keep together",
                (
                    ("in common", "text"),
                    ("verdict", "text"),
                    ("values", "number"),
                    ("trajectories", "number"),
                    ("examples", "code"),
                ),
                shared,
            ),
            Table(
                "Task types that some splits lack",
                (("task type", "text"), ("not in", "text")),
                lacking,
                f"and {counted(found.more_lacking, 'more')}" if found.more_lacking else "",
            ),
        ),
    )


def _feedback(report: StoreReport) -> Section:
    found = report.feedback
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (visible(row.name), row.target, number(row.count), tuple(map(visible, row.examples))) for row in found.rows
    )
    lead = f"{counted(found.joined, 'judgement')} from elsewhere found what they judge, {found.unplaced:,} did not."
    if found.unplaced:
        lead += " What they judge may be in logs that were not ingested yet."
    columns: tuple[tuple[str, ColumnKind], ...] = (
        ("judgement", "text"),
        ("target", "text"),
        ("count", "number"),
        ("ids that the store lacks", "code"),
    )
    note = f"and {counted(found.more, 'more')}" if found.more else ""
    return Section(
        "feedback", "Feedback kept elsewhere", lead, (Table("Feedback without a target", columns, rows, note),)
    )
