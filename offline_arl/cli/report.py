"""The command that looks through a whole store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from offline_arl.cli.options import Json, example, path
from offline_arl.cli.output import Output, print_error

if TYPE_CHECKING:
    from offline_arl.analysis.store_report import StoreReport

Level = Literal["error", "warning"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog=example("offline-arl check runs/store --html report.html --fail-on error"))(check)


def check(
    store: Annotated[Path, typer.Argument(help="Folder of the trajectory store.", parser=path)],
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report as one HTML page too.", parser=path)
    ] = None,
    fail_on: Annotated[
        Level | None,
        typer.Option(help="Exit with 1 where there are errors (refused records, leaking splits), or warnings too."),
    ] = None,
    json: Json = False,
) -> None:
    """Report on a store: what it holds, what validation found, what was refused, what leaks between splits."""
    from offline_arl.workflows.store_report import check_page_path, check_store, write_page

    if html is not None:
        check_page_path(html)
    with Output(as_json=json) as out:
        from offline_arl.cli.report_view import draw

        report = check_store(store)
        failure = None if fail_on is None else _failure(report, fail_on)
        if html is not None:
            write_page(report, html)
            out.note(f"report: {html}")
        if failure is None or not json:
            out.finish(report.to_json(), lambda console: draw(console, report))
    if failure is not None:
        print_error(failure, as_json=json, details=report.to_json())
        raise typer.Exit(1)


def _failure(report: StoreReport, level: Level) -> str | None:
    """The line that ends the command where the store is worse than `level` allows."""
    errors, warnings = report.count("error"), report.count("warning") if level == "warning" else 0
    if not errors + warnings:
        return None
    first = next(problem for problem in report.problems if problem.severity in ("error", level))
    counts = [
        f"{count} {name}{'' if count == 1 else 's'}" for count, name in ((errors, "error"), (warnings, "warning"))
    ]
    told = ", ".join(text for text, count in zip(counts, (errors, warnings), strict=True) if count)
    return f"{report.store}: {told} (--fail-on {level}); the first: {first.text}"
