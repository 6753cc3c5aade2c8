"""Commands about environments: env tasks, env misses, env check, env cases, env audit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offline_arl.cli.options import Json, Out, Seed, Store, example, path
from offline_arl.cli.output import Output, table

if TYPE_CHECKING:
    from rich.console import Console

    from offline_arl.environments.checking import CheckReport

_SHOWN = 20


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(no_args_is_help=True, help="Check environments, their judges and audit trails.")
    group.command(epilog=example("offline-arl env tasks --store runs/store --output runs/tasks"))(tasks)
    group.command(epilog=example("offline-arl env misses replay:runs/tasks"))(misses)
    group.command(epilog=example("offline-arl env check support_desk --tasks 200"))(check)
    group.command(
        epilog=example("offline-arl env cases support_desk --episodes runs/eval/store --output runs/cases"),
    )(cases)
    group.command(epilog=example("offline-arl env audit runs/audit.jsonl"))(audit)
    app.add_typer(group, name="env")


def tasks(
    store: Store,
    output: Out,
    split: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only trajectories of this split; all without it. Repeat for several."),
    ] = None,
    writes: Annotated[
        list[str] | None,
        typer.Option(metavar="TOOL", help="A tool that changes something; without it all count. Repeat for several."),
    ] = None,
    json: Json = False,
) -> None:
    """Make an environment of logs: recorded tool calls answer with what they answered then.

    Use it as the environment replay:OUTPUT.
    """
    from offline_arl.workflows.environments import build_replay_tasks

    with Output(as_json=json) as out:
        made = build_replay_tasks(store, output, splits=split or (), writes=writes or ())
        excluded = "".join(f", {count} left out ({reason})" for reason, count in made["excluded"].items())
        text = f"{made['tasks']} tasks from {made['recordings']} recordings{excluded}; the environment replay:{output}"
        out.finish(made, lambda console: console.print(text, markup=False))


def misses(name: Annotated[str, typer.Argument(help="Environment: replay:FOLDER.")], json: Json = False) -> None:
    """Say how often a replay environment has no answer for agents that it was not recorded with.

    left_out: each attempt, where only the others at its task were recorded. elsewhere: what was done at another task.
    """
    from offline_arl.workflows.environments import replay_misses

    def draw(console: Console) -> None:
        rows = [
            [agent, tool, f"{count['calls']}", f"{count['misses']}", _share(count["miss_rate"])]
            for agent, counts in found.items()
            for tool, count in [("all", counts), *counts["by_tool"].items()]
        ]
        table(console, ["agent", "tool", "calls", "misses", "miss rate"], rows)
        for agent, counts in found.items():
            console.print(f"{agent}: {counts['whole']} of {counts['episodes']} episodes without a miss")

    with Output(as_json=json) as out:
        found = replay_misses(name)
        out.finish(found, draw)


def _share(rate: float | None) -> str:
    return "" if rate is None else f"{rate:.3f}"


def check(
    name: Annotated[str, typer.Argument(help="Environment.")],
    tasks: Annotated[int, typer.Option(help="Tasks of each split.", min=1)] = 100,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Play each task's example of success and of failure; exits with 1 where the judge says otherwise."""
    from dataclasses import asdict

    from offline_arl.workflows.environments import check_environment

    with Output(as_json=json) as out:
        report = check_environment(name, tasks=tasks, seed=seed)
        out.finish({"ok": not report.problems, **asdict(report)}, lambda console: _draw(console, report))
    if report.problems:
        raise typer.Exit(1)


def _draw(console: Console, report: CheckReport) -> None:
    if report.problems:
        rows = [[problem.task_id, problem.example, problem.text] for problem in report.problems[:_SHOWN]]
        table(console, ["task", "example", "problem"], rows)
        if len(report.problems) > _SHOWN:
            console.print(f"and {len(report.problems) - _SHOWN} more")
    for name, count in report.without.items():
        if count:
            console.print(f"{count} tasks have no example of {name}: their judge was not checked for it")
    console.print(
        f"{report.environment}: {report.tasks} tasks, {report.examples} examples, {len(report.problems)} problems"
    )


def cases(
    name: Annotated[str, typer.Argument(help="Environment.")],
    episodes: Annotated[Path, typer.Option(help="Store of episodes, as evaluate leaves one.", parser=path)],
    output: Out,
    json: Json = False,
) -> None:
    """Make a store of what policies failed at, each beside an example of success: pairs to learn from."""
    from offline_arl.workflows.environments import training_cases_of

    with Output(as_json=json) as out:
        made = training_cases_of(name, episodes, output)
        text = f"{made['failures']} failures beside {made['examples']} examples of success: {output}"
        out.finish(made, lambda console: console.print(text, markup=False))


def audit(
    trail: Annotated[Path, typer.Argument(help="An audit trail.", parser=path)],
    last_hash: Annotated[
        str | None, typer.Option(metavar="HASH", help="That of the newest entry, kept elsewhere: finds a cut end.")
    ] = None,
    json: Json = False,
) -> None:
    """Verify that no entry of an audit trail was changed, removed, added or moved."""
    from offline_arl.workflows.environments import verify_audit_trail

    with Output(as_json=json) as out:
        found = verify_audit_trail(trail, last_hash=last_hash)
        out.finish(
            {"ok": True, **found},
            lambda console: console.print(
                f"{found['entries']} entries, the chain holds; last hash {found['last_hash']}"
            ),
        )
