"""The command that says what is installed, missing or slow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from offline_arl.cli.options import Json, example
from offline_arl.cli.output import Output

if TYPE_CHECKING:
    from rich.console import Console

_MARKS = {"ok": "[green]ok[/]", "note": "[blue]note[/]", "slow": "[yellow]slow[/]", "problem": "[red]problem[/]"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog=example("offline-arl doctor --deep"))(doctor)


def doctor(
    deep: Annotated[
        bool, typer.Option("--deep", help="Import torch, transformers and vLLM too, which takes some seconds.")
    ] = False,
    json: Json = False,
) -> None:
    """Say what is installed, what is missing and what will be slow, with the command that mends it.

    Exits with 1 when something that is installed cannot work.
    """
    from offline_arl.workflows.doctor import diagnose

    with Output(as_json=json) as out:
        findings = diagnose(deep=deep)
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
