"""Commands that care for a store: split, duplicates, label, select, merge, compact; and formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from offline_arl.cli.filters import with_filters
from offline_arl.cli.options import Json, Out, StoreFolder, example, path
from offline_arl.cli.output import Output, table
from offline_arl.cli.store_view import draw_rows
from offline_arl.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from offline_arl.workflows.filters import Filters

_OF_NO_TYPE = "(none)"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog=example("offline-arl split runs/store --by task --seed 0"))(split)
    app.command(epilog=example("offline-arl duplicates runs/store --threshold 0.8"))(duplicates)
    app.command(epilog=example("offline-arl label runs/store --outcome quality --threshold 0.5"))(label)
    app.command(epilog=example("offline-arl select runs/store --output runs/refunds --task-type refund"))(select)
    app.command(epilog=example("offline-arl merge runs/may runs/june --output runs/both"))(merge)
    app.command(epilog=example("offline-arl compact runs/store"))(compact)
    app.command(epilog=example("offline-arl formats --json"))(formats)


def split(
    store: StoreFolder,
    by: Annotated[
        Literal["task", "user", "session", "time"] | None,
        typer.Option(help="What stays together; time: train on the past. By default task, or as before."),
    ] = None,
    fraction: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SHARE", help="Share of a split; by default train=0.8 validation=0.1 test=0.1, or as before."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the order; by default 0, or as before.", min=0)] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Split anew what is split already; trajectories change their split.")
    ] = False,
    json: Json = False,
) -> None:
    """Split a store without leaks; again: assign what is new, and leave the rest where it is.

    Attempts at a task, copies, branches, sub-agents and marked near duplicates are never parted.
    """
    from offline_arl.workflows.care import split as run_split

    fractions = None if fraction is None else _fractions(fraction)
    with Output(as_json=json) as out:
        report = run_split(store, by=by, fractions=fractions, seed=seed, fresh=fresh)
        out.finish(report, lambda console: _draw_split(console, report))


def _fractions(texts: Sequence[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for text in texts:
        name, _, share = text.partition("=")
        try:
            number = float(share)
        except ValueError:
            number = -1.0
        if not name or not 0 < number <= 1 or name in found:
            raise UsageError(f"--fraction {text}: expected a new NAME=SHARE, for example --fraction train=0.8")
        found[name] = number
    return found


def _draw_split(console: Console, report: Mapping[str, Any]) -> None:
    splits: Mapping[str, Mapping[str, Any]] = report["splits"]
    rows = [
        [name, f"{report['fractions'][name]:g}", str(counts["families"]), str(counts["trajectories"])]
        for name, counts in splits.items()
    ]
    table(console, [f"split by {report['by']}", "asked", "families", "trajectories"], rows)
    types = sorted({name for counts in splits.values() for name in counts["task_types"]})
    rows = [
        [name or _OF_NO_TYPE, *(str(counts["task_types"].get(name, 0)) for counts in splits.values())] for name in types
    ]
    table(console, ["task type", *splits], rows)
    for line in _split_remarks(report):
        console.print(line, markup=False)


def _split_remarks(report: Mapping[str, Any]) -> list[str]:
    if report["near_duplicates"]:
        lines = ["Marked near duplicates are together."]
    else:
        lines = [f"Near duplicates are not marked yet; to keep them together: offline-arl duplicates {report['store']}"]
    if report["extended"]:
        lines.append(f"{report['assigned']} trajectories were new; {report['moved']} moved to join their family.")
    empty = [name for name, counts in report["splits"].items() if not counts["trajectories"]]
    total = sum(counts["trajectories"] for counts in report["splits"].values())
    if empty:
        lines.append(f"Nothing is in {', '.join(empty)}: there are too few families.")
    if total and report["largest_family"] > total / 2:
        lines.append(
            f"One family holds {report['largest_family']} of {total} trajectories: they are copies of one another, or "
            f"share a {report['by'] if report['by'] != 'time' else 'task'}, an episode or a branch"
        )
    for name, lacking in report["not_everywhere"].items():
        missing = ", ".join(lacking["missing"])
        lines.append(f"task type {name or _OF_NO_TYPE}: {lacking['families']} families, none in {missing}")
    if report["unassigned"]:
        lines.append(f"{report['unassigned']} trajectories are in no split, because the log gives them no time")
    if report["straddling"]:
        lines.append(
            f"{report['straddling']} families reach over a cut in time and lie in one split all the same, for example "
            f"those of {', '.join(report['straddlers'][:3])}"
        )
    if report["by"] in ("user", "session") and report["without_key"]:
        lines.append(
            f"{report['without_key']} trajectories have no {report['by']}_id and are kept with their copies alone"
        )
    for key, number in report["shared"].items():
        if number:
            lines.append(f"{number} values of {key} are in several splits, because it is split by {report['by']}")
    return lines


def duplicates(
    store: StoreFolder,
    threshold: Annotated[
        float, typer.Option(help="Share of word triples in common from which two are alike.", min=0.0, max=1.0)
    ] = 0.8,
    json: Json = False,
) -> None:
    """Mark trajectories that say nearly the same as an earlier one; nothing is dropped.

    Exact copies are marked by ingest already. What was found before is replaced.
    """
    from offline_arl.workflows.care import duplicates as run_duplicates

    with Output(as_json=json) as out:
        report = run_duplicates(store, threshold=threshold)
        out.finish(report, lambda console: _draw_duplicates(console, report))


def _draw_duplicates(console: Console, report: Mapping[str, Any]) -> None:
    names = ("trajectories", "near_duplicates", "clusters", "largest_cluster", "across_tasks", "across_splits")
    table(console, [report["store"], ""], [[name.replace("_", " "), str(report[name])] for name in names])
    draw_rows(console, report["examples"])
    if report["across_splits"]:
        console.print(f"Bring them together: offline-arl split {report['store']}", markup=False)


def label(
    store: StoreFolder,
    outcome: Annotated[
        str | None, typer.Option(metavar="NAME", help="The judgement to take; without it, those that there are.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Success from here on (down to here, where lower is better).")
    ] = None,
    direction: Annotated[
        Literal["higher_is_better", "lower_is_better"] | None,
        typer.Option(help="Which way is better, where the judgements do not say."),
    ] = None,
    json: Json = False,
) -> None:
    """Make the judgements of one name (feedback, scores, annotations) the outcomes of the trajectories.

    The logged outcomes stay in the store; trajectories without such a judgement keep theirs.
    """
    from offline_arl.workflows.care import judgement_names
    from offline_arl.workflows.care import label as run_label

    if outcome is None and (threshold is not None or direction is not None):
        raise UsageError("--threshold and --direction go with --outcome; name a judgement")
    with Output(as_json=json) as out:
        if outcome is None:
            names = judgement_names(store)
            out.finish({"store": store, "judgements": names}, lambda console: _draw_judgements(console, store, names))
        else:
            report = run_label(store, outcome, threshold=threshold, direction=direction)
            out.finish(report, lambda console: _draw_label(console, report))


def _draw_judgements(console: Console, store: Path, names: Sequence[Mapping[str, Any]]) -> None:
    draw_rows(console, names)
    if names:
        first = names[0]
        told = first["directions"] in (["higher_is_better"], ["lower_is_better"])
        more = "" if told else " --direction higher_is_better"
        console.print(f"Take one: offline-arl label {store} --outcome {first['name']}{more}", markup=False)
    else:
        console.print("There are no judgements: no scores, feedback or annotations were ingested.")


def _draw_label(console: Console, report: Mapping[str, Any]) -> None:
    number = {name: f"{report[name]:.3g}" for name in ("low", "mean", "high")}
    rows = [
        ["trajectories with it", str(report["labeled"])],
        ["lowest, mean, highest", ", ".join(number.values())],
        *([["successes", str(report["successes"])], ["failures", str(report["failures"])]] if report["threshold"] is not
          None else []),
    ]  # fmt: skip
    table(console, [f"outcome {report['outcome']}", ""], rows)
    table(console, ["all trajectories", ""], [[name, str(count)] for name, count in report["outcomes"].items()])
    if report["threshold"] is None:
        console.print("Scores alone are no verdicts; --threshold makes successes and failures of them.")


@with_filters
def select(store: StoreFolder, output: Out, filters: Filters, json: Json = False) -> None:
    """Copy some trajectories to a new store, with all that belongs to them but the raw records."""
    from offline_arl.workflows.care import select as run_select

    with Output(as_json=json) as out:
        report = run_select(store, output, filters)
        line = f"{report['trajectories']} of {report['of']} trajectories: {output}"
        out.finish(report, lambda console: console.print(line, markup=False))


def merge(
    stores: Annotated[list[Path], typer.Argument(metavar="STORE...", help="Folders of the stores.", parser=path)],
    output: Out,
    json: Json = False,
) -> None:
    """Copy several stores to a new one; where they disagree, earlier ones win."""
    from offline_arl.workflows.care import merge as run_merge

    with Output(as_json=json) as out:
        report = run_merge(stores, output)
        out.finish(report, lambda console: _draw_merge(console, report))


def _draw_merge(console: Console, report: Mapping[str, Any]) -> None:
    rows = [
        ["trajectories", str(report["trajectories"])],
        ["left out, in an earlier store already", str(report["identical"])],
        ["with a new id", str(report["renamed"])],
        ["sessions of several stores", str(report["joined_groups"])],
    ]
    table(console, [report["output"], ""], rows)
    if report["joined_groups"]:
        console.print(f"The next ingestion into {report['output']} joins the sessions.", markup=False)
    if report["moved"]:
        console.print(f"{report['moved']} trajectories changed their split to join their family.")
    if report["splits_by_hand"]:
        console.print(f"The splits are those of the stores; check or redo them: offline-arl split {report['output']}")


def compact(store: StoreFolder, json: Json = False) -> None:
    """Make few large files of the many small ones that frequent ingestion and rollouts write."""
    from offline_arl.workflows.care import compact as run_compact

    with Output(as_json=json) as out:
        report = run_compact(store)
        line = (
            f"{report['parts_before']} parts became {report['parts_after']}, "
            f"{report['megabytes_before']:.1f} MB became {report['megabytes_after']:.1f} MB"
        )
        out.finish(report, lambda console: console.print(line, markup=False))


def formats(json: Json = False) -> None:
    """List the log formats that ingest reads, with what a trajectory keeps of each."""
    from offline_arl.workflows.formats import formats as all_formats

    with Output(as_json=json) as out:
        found = all_formats()
        out.finish({"formats": found}, lambda console: _draw_formats(console, found))


def _draw_formats(console: Console, found: Sequence[Mapping[str, Any]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    drawn = Table(box=SIMPLE_HEAD, pad_edge=False, show_lines=False)
    drawn.add_column("format", no_wrap=True)
    for name in ("what it is", "keeps", "lacks"):
        drawn.add_column(name, ratio=1)
    for entry in found:
        name = entry["name"] if entry["origin"] == "offline_arl" else f"{entry['name']} (plug-in)"
        drawn.add_row(*(escape(text) for text in (name, entry["title"], entry["keeps"], entry["lacks"])))
    console.print(drawn)
