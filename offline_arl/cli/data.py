"""Commands on logs and stores: ingest, show."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from offline_arl.cli.options import Json, Store, example, path
from offline_arl.cli.output import Output, harmless, print_error, table
from offline_arl.errors import DataError, OfflineArlError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from offline_arl.logs.redaction.config import RedactionConfig
    from offline_arl.workflows.ingest_report import IngestReport


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog=example("offline-arl ingest logs/*.jsonl --store runs/store"))(ingest)
    app.command(epilog=example("offline-arl show runs/store --trajectory ID"))(show)


def ingest(
    sources: Annotated[
        list[Path], typer.Argument(metavar="SOURCE...", help="Log files or folders of them.", parser=path)
    ],
    store: Store,
    log_format: Annotated[
        str, typer.Option("--format", help="auto, openai_chat, tau_bench, or an adapter's name.")
    ] = "auto",
    engine: Annotated[Literal["local", "ray"], typer.Option(help="Where the work is done.")] = "local",
    workers: Annotated[int, typer.Option(help="Processes that read in parallel.", min=1)] = 1,
    redact: Annotated[
        bool, typer.Option("--redact", help="Replace secrets and personal data by stable placeholders.")
    ] = False,
    redact_pattern: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=REGEX", help="Redact what this matches too, as <NAME_...>; repeatable."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="REGEX", help="Do not redact values that this matches whole; repeatable."),
    ] = None,
    phone_region: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COUNTRY", help="Redact phone numbers of this country (US, DE, ...) without its code; repeatable."
        ),
    ] = None,
    report_file: Annotated[
        Path | None,
        typer.Option("--report", metavar="FILE", help="Write a report about the store as an HTML page.", parser=path),
    ] = None,
    json: Json = False,
) -> None:
    """Read agent logs into a trajectory store; what is there already is not added again.

    Exits with 0 when something was ingested or all was there already, 1 when every record was refused.
    """
    from offline_arl.workflows.ingest import ingest as run_ingest
    from offline_arl.workflows.ingest_report import IngestReport
    from offline_arl.workflows.store_report import check_page_path, check_store, write_page

    report = IngestReport()
    try:
        with Output(as_json=json) as out, out.progress() as progress:
            if report_file is not None:
                check_page_path(report_file)
            report = run_ingest(
                sources,
                store,
                format=log_format,
                engine=engine,
                workers=workers,
                redact=_redaction(redact, redact_pattern or [], keep or [], phone_region or []),
                progress=lambda done, total: progress("megabytes", done, total),
            )
            if report_file is not None:
                write_page(check_store(store), report_file)
                out.note(f"report: {report_file}")
            if report.all_refused:
                raise DataError(f"every record was refused; the first: {report.reasons[0]}")
            finished = report
            out.finish(report.to_json(), lambda console: _draw_report(console, finished, store))
    except OfflineArlError as error:
        print_error(str(error), as_json=json, details=report.to_json())
        raise typer.Exit(error.exit_code) from error


def _redaction(redact: bool, patterns: list[str], keep: list[str], regions: list[str]) -> bool | RedactionConfig:
    if not patterns and not keep and not regions:
        return redact
    if not redact:
        raise UsageError("--redact-pattern, --keep and --phone-region say how to redact; add --redact")
    from offline_arl.logs.redaction.config import redaction_config

    named = dict(pattern.partition("=")[::2] for pattern in patterns)
    countries = {"phone_regions": tuple(regions)} if regions else {}
    return redaction_config(patterns=named, keep=tuple(keep), **countries)


def _draw_report(console: Console, report: IngestReport, store: Path) -> None:
    counts = report.to_json()
    formats, findings, set_apart = (counts.pop(name) for name in ("by_format", "findings", "set_apart_reasons"))
    redactions = counts.pop("redactions", {})
    rows = [[name.replace("_", " "), _number(value)] for name, value in counts.items()]
    rows += [[f"format {name}", str(value)] for name, value in formats.items()]
    rows += [[f"redacted {name.replace('_', ' ')}", str(value)] for name, value in redactions.items()]
    table(console, ["ingested", ""], rows)
    for code, count in findings.items():
        console.print(f"found: {code} ({_times(count)})", markup=False)
    for reason, count in set_apart.items():
        console.print(f"set apart: {harmless(reason)} ({_times(count)})", markup=False)
    for reason in report.reasons:
        console.print(f"refused: {harmless(reason)}", markup=False)
    if findings or report.reasons:
        console.print(f"What that means, and where it is: offline-arl check {store}", markup=False)
    console.print(f"Look into the store: offline-arl show {store}", markup=False)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.2f}"


def show(
    store: Annotated[Path, typer.Argument(help="Folder of the trajectory store.", parser=path)],
    trajectory: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Show this trajectory; the start of its id will do."),
    ] = None,
    steps: Annotated[bool, typer.Option("--steps", help="Show the table of steps.")] = False,
    limit: Annotated[int, typer.Option(help="Rows to show at most.", min=1, max=1_000_000)] = 10,
    json: Json = False,
) -> None:
    """Look into a store: an overview, one trajectory, or the steps."""
    from offline_arl.cli.store_view import draw_overview, draw_steps, draw_trajectory
    from offline_arl.workflows.show import one_trajectory, overview, step_table, trajectory_rows

    with Output(as_json=json) as out:
        if steps:
            rows = step_table(store, trajectory=trajectory, limit=limit)
            out.finish({"store": store, "steps": rows}, lambda console: draw_steps(console, rows))
        elif trajectory is not None:
            found = one_trajectory(store, trajectory)
            out.finish(found, lambda console: draw_trajectory(console, found))
        else:
            view = overview(store)
            first = trajectory_rows(store, limit=limit)
            out.finish({**view, "first": first}, lambda console: draw_overview(console, view, first))
