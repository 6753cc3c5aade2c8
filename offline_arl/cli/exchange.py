"""The commands that give trajectories and models to other tools: export, export-model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from offline_arl.cli.filters import with_filters
from offline_arl.cli.options import Json, Out, Store, example, path
from offline_arl.cli.output import Output, table
from offline_arl.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from offline_arl.workflows.export import ExportReport
    from offline_arl.workflows.filters import Filters

_FORMATS = (
    "openai_chat, trl, trl_prompt_completion, trl_preference, trl_unpaired, atif, verl, verl_rl, prime_rl, sharegpt"
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog=example("offline-arl export --store runs/store --format trl --output runs/trl.parquet"))(export)
    app.command(name="export-model", epilog=example("offline-arl export-model runs/iql/policy --output runs/model"))(
        export_model
    )


@with_filters
def export(
    store: Store,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="A .jsonl or .parquet file; for atif also a folder.", parser=path),
    ],
    filters: Filters,
    export_format: Annotated[str, typer.Option("--format", metavar="NAME", help=f"One of {_FORMATS}.")],
    only_successes: Annotated[bool, typer.Option("--only-successes", help="The same as --outcome success.")] = False,
    limit: Annotated[int | None, typer.Option(help="At most so many trajectories.", min=1)] = None,
    json: Json = False,
) -> None:
    """Write trajectories in the format of another tool; ingest reads the same trajectories back."""
    import dataclasses

    from offline_arl.workflows.export import export as run_export

    if only_successes:
        if filters.outcomes not in ((), ("success",)):
            raise UsageError("--only-successes and --outcome contradict one another; give one of them")
        filters = dataclasses.replace(filters, outcomes=("success",))
    with Output(as_json=json) as out, out.progress() as progress:
        report = run_export(store, output, format=export_format, where=filters, limit=limit, progress=progress)
        out.finish(report.as_dict(), lambda console: _draw(console, report))


def _draw(console: Console, report: ExportReport) -> None:
    rows = [
        ["trajectories", str(report.trajectories)],
        ["records", str(report.records)],
        ["megabytes", f"{report.megabytes:.1f}"],
        *([f"left out: {reason}", str(count)] for reason, count in report.skipped.items()),
    ]
    table(console, [f"{report.format}: {report.output}", ""], rows)


def export_model(
    policy: Annotated[Path, typer.Argument(help="Folder of a policy, or of LoRA adapters.", parser=path)],
    output: Out,
    dtype: Annotated[Literal["bfloat16", "float16", "float32"], typer.Option(help="Of the weights.")] = "bfloat16",
    json: Json = False,
) -> None:
    """Write a policy as a model that vllm serve runs with tools; prints the command that serves it."""
    from offline_arl.workflows.export_model import export_model as run_export

    with Output(as_json=json) as out:
        exported = run_export(policy, output, dtype=dtype)

        def draw(console: Console) -> None:
            millions = exported.parameters / 1e6
            console.print(f"{exported.output}: {millions:.1f} M parameters, {exported.dtype}", markup=False)
            for note in exported.notes:
                console.print(note, markup=False)
            console.print(f"Serve it: {exported.command}", markup=False, soft_wrap=True)

        out.finish(exported.as_dict(), draw)
