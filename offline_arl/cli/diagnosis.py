"""The commands that say what is wrong: with the installation, with an online training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offline_arl.cli.options import Json, example, path
from offline_arl.cli.output import Output, harmless

if TYPE_CHECKING:
    from rich.console import Console

    from offline_arl.online.diagnosis.page import Diagnosis

_MARKS = {"ok": "[green]ok[/]", "note": "[blue]note[/]", "slow": "[yellow]slow[/]", "problem": "[red]problem[/]"}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog=example("offline-arl doctor --deep"))(doctor)
    app.command(epilog=example("offline-arl diagnose runs/grpo --output diagnosis.html"))(diagnose)


def doctor(
    deep: Annotated[
        bool, typer.Option("--deep", help="Import torch, transformers and vLLM too, which takes some seconds.")
    ] = False,
    json: Json = False,
) -> None:
    """Say what is installed, what is missing and what will be slow, with the command that mends it.

    Exits with 1 when something that is installed cannot work.
    """
    from offline_arl.workflows.doctor import diagnose as examine

    with Output(as_json=json) as out:
        findings = examine(deep=deep)
        healthy = not any(finding.status == "problem" for finding in findings)

        def render(console: Console) -> None:
            from rich.markup import escape
            from rich.table import Table

            drawn = Table(box=None, pad_edge=False, show_header=False)
            for finding in findings:
                text = escape(finding.detail) + (f"\n[bold]{escape(finding.remedy)}[/]" if finding.remedy else "")
                drawn.add_row(_MARKS[finding.status], finding.subject, text)
            console.print(drawn)

        out.finish({"ok": healthy, "findings": [finding.as_dict() for finding in findings]}, render)
    if not healthy:
        raise typer.Exit(1)


def diagnose(
    run: Annotated[
        Path,
        typer.Argument(help="Folder of an online training or of a pipeline's run, or a metrics.jsonl.", parser=path),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="PAGE.html", help="Write one HTML page with curves too.", parser=path),
    ] = None,
    json: Json = False,
) -> None:
    """Say what went wrong in an online training: each failure with its evidence, its threshold and the remedy.

    Exits with 1 when there are findings, or when no step is finished yet. A training that is still going on is read
    as far as it is.
    """
    from offline_arl.workflows.diagnosis import diagnose_run, write_diagnosis

    if output is not None:
        from offline_arl.workflows.store_report import check_page_path

        check_page_path(output)
    with Output(as_json=json) as out:
        found = diagnose_run(run)
        if output is not None:
            write_diagnosis(run, found, output)
            out.note(f"page: {output}")
        told = {diagnosis.healthy for diagnosis in found}
        healthy = False if False in told else True if True in told else None

        def render(console: Console) -> None:
            for diagnosis in found:
                _draw(console, diagnosis)

        out.finish({"healthy": healthy, "trainings": [diagnosis.to_json() for diagnosis in found]}, render)
    if not healthy:
        raise typer.Exit(1)


def _draw(console: Console, diagnosis: Diagnosis) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from offline_arl.online.diagnosis.figures import describe_figures

    console.print(Text(harmless(diagnosis.title), style="bold"))
    if told := describe_figures(diagnosis.history):
        console.print(Text(told))
    if diagnosis.healthy is None:
        console.print(Text(diagnosis.verdict, style="yellow"))
        return
    if diagnosis.healthy:
        console.print(Text(f"healthy: {diagnosis.verdict}", style="green"))
        return
    drawn = Table(box=SIMPLE_HEAD, pad_edge=False, show_lines=True)
    for name in ("step", "finding", "evidence", "threshold", "remedy"):
        drawn.add_column(name, justify="right" if name == "step" else "left", overflow="fold")
    for finding in diagnosis.findings:
        kind = Text.assemble(
            (finding.kind, "bold"), "\n", (finding.severity, "red" if finding.severity == "fatal" else "yellow")
        )
        texts = (Text(harmless(text)) for text in (finding.evidence, finding.threshold, finding.remedy))
        drawn.add_row(str(finding.step), kind, *texts)
    console.print(drawn)
