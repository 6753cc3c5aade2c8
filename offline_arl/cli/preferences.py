"""Commands on preference datasets: audit, export-dataset."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from offline_arl.cli.options import Json, example, path
from offline_arl.cli.output import Output, harmless, print_error, table

if TYPE_CHECKING:
    from rich.console import Console

    from offline_arl.datasets.audit import AuditReport

_STYLES = {"error": "red", "warning": "yellow"}

Dataset = Annotated[
    Path, typer.Argument(metavar="DATASET", help="Folder that build pairs or build unpaired made.", parser=path)
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog=example("offline-arl audit runs/pairs --against runs/validation-pairs --fix runs/pairs-fixed"))(
        audit
    )
    app.command(
        name="export-dataset",
        epilog=example("offline-arl export-dataset runs/pairs --format trl --output runs/pairs.parquet"),
    )(export_dataset)


def audit(
    dataset: Dataset,
    against: Annotated[
        Path | None, typer.Option(help="Another split, which must share no prompt and no task with it.", parser=path)
    ] = None,
    fix: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the dataset without its faults.", parser=path)
    ] = None,
    keep: Annotated[
        list[str] | None, typer.Option(metavar="FAULT", help="With --fix: leave this fault. Repeat for several.")
    ] = None,
    fail_on: Annotated[
        Literal["error", "warning"] | None, typer.Option(help="Exit with 1 where there are errors, or warnings too.")
    ] = None,
    json: Json = False,
) -> None:
    """Find out whether pairs or labels are worth training on.

    Looks for equal and near-equal sides, ties, contradictions, duplicates, prompts in two splits, dominant tasks, and
    lengths that give the label away.
    """
    from offline_arl.workflows.preferences import audit_dataset, fix_dataset

    with Output(as_json=json) as out:
        report = audit_dataset(dataset, against=against)
        fixed = None if fix is None else fix_dataset(dataset, report, fix, keep=keep or ())
        result = {"dataset": dataset, **report.as_dict(), "fixed": None if fixed is None else {**fixed.counts}}
        levels = ("error",) if fail_on == "error" else ("error", "warning") if fail_on else ()
        failing = [finding for finding in report.findings if finding.severity in levels]

        def render(console: Console) -> None:
            _draw(console, dataset, report)
            if fixed is not None:
                console.print(f"{fix}: {fixed.counts['rows']} of {report.rows} rows", markup=False)

        if not failing or not json:
            out.finish(result, render)
    if failing:
        line = f"{dataset}: {len(failing)} faults (--fail-on {fail_on}); the first: {failing[0].text}"
        print_error(line, as_json=json, details=result)
        raise typer.Exit(1)


def _draw(console: Console, dataset: Path, report: AuditReport) -> None:
    from rich.text import Text

    console.print(Text(f"{dataset}: {report.rows} rows of kind {report.kind}", style="bold"))
    if not report.findings:
        console.print(Text("nothing is wrong", style="green"))
    for finding in report.findings:
        head = (f"{finding.severity:<8}", _STYLES[finding.severity])
        share = f"{len(finding.rows)} rows, {len(finding.rows) / max(report.rows, 1):.1%}"
        console.print(Text.assemble(head, (finding.fault, "bold"), f" ({share}): {harmless(finding.text)}"))
        for number in finding.examples[:2]:
            for name in ("note", "prompt", "chosen", "rejected"):
                text = getattr(number, name)
                if text:
                    console.print(Text(f"    {name:<9}{harmless(' '.join(text.split()))[:220]}", style="dim"))
            console.print()
    rows = [[name.replace("_", " "), f"{value:.3g}"] for name, value in report.measures.items()]
    table(console, ["measured", ""], rows)


def export_dataset(
    dataset: Dataset,
    output: Annotated[Path, typer.Option("--output", "-o", help="A .jsonl or .parquet file.", parser=path)],
    export_format: Annotated[
        str, typer.Option("--format", metavar="NAME", help="trl, or for pairs openai_preferences.")
    ] = "trl",
    json: Json = False,
) -> None:
    """Write pairs or labeled answers for another trainer: messages with tools, not tokens."""
    from offline_arl.workflows.preferences import export_dataset as run_export

    with Output(as_json=json) as out:
        report = run_export(dataset, output, format=export_format)
        rows = [
            ["rows", str(report.records)],
            ["megabytes", f"{report.megabytes:.1f}"],
            *([f"left out: {reason}", str(count)] for reason, count in report.skipped.items()),
        ]
        out.finish(report.as_dict(), lambda console: table(console, [f"{report.format}: {report.output}", ""], rows))
