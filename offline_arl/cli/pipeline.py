"""Commands on whole pipelines: run one, compare the results of several."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from offline_arl.cli.launched import launched
from offline_arl.cli.options import Json, Out, Processes, Settings, example
from offline_arl.cli.output import Output, table
from offline_arl.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from offline_arl.workflows.compare import RunComparison


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(
        epilog=example("offline-arl run pipelines/quickstart.yaml --output runs/quickstart --set seed=1"),
    )(run)
    app.command(epilog=example("offline-arl compare runs/seed0 runs/seed1 runs/seed2"))(compare)


def run(
    pipeline: Annotated[Path, typer.Argument(metavar="PIPELINE.yaml", help="The pipeline file.", show_default=False)],
    output: Out,
    settings: Settings = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Do every stage again, also those already done.")] = False,
    processes: Processes = 1,
    json: Json = False,
) -> None:
    """Run a pipeline; the same command again goes on where it stopped.

    Writes OUTPUT/results.json and OUTPUT/summary.md. Settings have dotted keys: seed=1,
    source=logs.jsonl, stages.bc.epochs=2.
    """
    from offline_arl.workflows.config import load_pipeline
    from offline_arl.workflows.run import run_pipeline

    if launched().processes > 1:
        raise UsageError("run starts the processes of its training stages itself; use --processes, without a launcher")
    loaded = load_pipeline(pipeline, settings or ())
    with Output(as_json=json) as out, out.progress() as progress:
        names = list(loaded.stages)

        def observe(name: str, state: Literal["start", "skip", "done"], seconds: float, /) -> None:
            place = f"[{names.index(name) + 1}/{len(names)}] {name}"
            out.note(
                {"start": f"{place} ...", "skip": f"{place} already done", "done": f"{place} done in {seconds:.1f} s"}[
                    state
                ]
            )

        try:
            result = run_pipeline(
                loaded, output, progress=progress, observe=observe, tell=out.note, fresh=fresh, processes=processes
            )
        except KeyboardInterrupt:
            out.note(f"{output} has what was done; the same command goes on from there")
            raise

        def render(console: Console) -> None:
            from offline_arl.workflows.summary import all_tables, counts, number

            metrics = result.results["metrics"]
            for name, value in counts(metrics).items():
                console.print(f"{name}: {number(value)}")
            for title, (header, rows) in all_tables(metrics):
                table(console, header, rows, title=title)
            for record in result.records:
                for line in record.outputs.notes:
                    console.print(f"{record.name}: {line}", markup=False)
            console.print(f"Results: {output / 'results.json'}; account: {output / 'summary.md'}", markup=False)

        out.finish(result.results, render)


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="OUTPUT...", help="Output folders of run or evaluate.")],
    json: Json = False,
) -> None:
    """Compare the policies of one or several runs (seeds) of a pipeline or of evaluate, paired over tasks.

    Differences of all pairs have 95 % intervals.
    """
    from offline_arl.workflows.compare import compare_runs

    with Output(as_json=json) as out:
        result = compare_runs(runs)
        success = {
            f"{policy}/{mode}": {**value.as_dict(), "seeds": seeds}
            for (policy, mode), (value, seeds) in result.success.items()
        }
        differences = {
            f"{item.after}-{item.before}/{item.mode}": {**item.difference.as_dict(), "seeds": item.seeds}
            for item in result.differences
        }
        out.finish(
            {"runs": runs, "success": success, "differences": differences},
            lambda console: _draw_comparison(console, result),
        )


def _draw_comparison(console: Console, result: RunComparison) -> None:
    rows = [
        [f"{policy} ({mode})", f"{value.estimate:.3f} [{value.low:.3f}, {value.high:.3f}]", _seeds(seeds)]
        for (policy, mode), (value, seeds) in result.success.items()
    ]
    table(console, ["policy", "success", "by run"], rows)
    rows = [
        [
            f"{item.after} - {item.before} ({item.mode})",
            f"{item.difference.estimate:+.3f} [{item.difference.low:+.3f}, {item.difference.high:+.3f}]",
            _seeds(item.seeds),
        ]
        for item in result.differences
    ]
    table(console, ["difference", "paired over tasks", "by run"], rows)


def _seeds(values: list[float]) -> str:
    return " ".join(f"{value:.3f}" for value in values)
