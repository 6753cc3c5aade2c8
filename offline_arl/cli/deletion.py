"""The command that deletes from a store and from what was made of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from offline_arl.cli.filters import with_filters
from offline_arl.cli.options import Json, StoreFolder, example
from offline_arl.cli.output import Output, table
from offline_arl.errors import OfflineArlError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from offline_arl.workflows.deletion import Deleted, DeletionPlan, DerivedData
    from offline_arl.workflows.filters import Filters

_NAMED = 5  # users, tasks and so on in a line


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog=example("offline-arl delete runs/store --user u7 --datasets"))(delete)


@with_filters
def delete(
    store: StoreFolder,
    filters: Filters,
    datasets: Annotated[
        bool, typer.Option("--datasets", help="Rewrite the datasets that were built from the store, too.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: Json = False,
) -> None:
    """Remove trajectories so that no file of the store holds their text, and reading the logs does not bring them back.

    Says first what goes and asks. Datasets, exports and stores that were made from the store and hold some of
    the trajectories are named; --datasets rewrites the datasets.
    """
    from offline_arl.workflows.deletion import execute, plan_deletion

    with Output(as_json=json) as out:
        plan = plan_deletion(store, filters)
        if dry_run:
            report = {**plan.as_dict(), "deleted": False}
            out.finish(report, lambda console: _print_all(console, _plan_lines(plan, datasets=datasets)))
            return
        if not yes and plan.changes_anything(datasets=datasets):
            _confirm(out, plan, datasets=datasets)
        done = execute(plan, datasets=datasets)
        out.finish(
            {**plan.as_dict(), **done.as_dict(), "deleted": True},
            lambda console: _draw_deleted(console, done, plan),
        )


def _confirm(out: Output, plan: DeletionPlan, *, datasets: bool) -> None:
    for line in _plan_lines(plan, datasets=datasets):
        out.note(line)
    out.note("This cannot be undone. Delete? [y/N]")
    answer = sys.stdin.readline()
    if not answer:
        raise UsageError("nothing was deleted, because nobody confirmed it; say --yes")
    if answer.strip().lower() not in ("y", "yes"):
        raise OfflineArlError("nothing was deleted")


def _plan_lines(plan: DeletionPlan, *, datasets: bool) -> list[str]:
    lines = [f"{len(plan.trajectory_ids)} trajectories with {plan.steps} steps go from {plan.store}"]
    lines += _nothing_found(plan)
    for title, values in (("users", plan.users), ("tasks", plan.tasks), ("trajectories", plan.trajectory_ids)):
        if values:
            more = f" and {len(values) - _NAMED} more" if len(values) > _NAMED else ""
            lines.append(f"  {title}: {', '.join(values[:_NAMED])}{more}")
    return lines + _derived_lines(plan.derived, will_rewrite=datasets)


def _nothing_found(plan: DeletionPlan) -> list[str]:
    """What to look at where a deletion finds nothing: a request to delete a person must not end unnoticed."""
    if plan.trajectory_ids:
        return []
    lines = ["no trajectory fits these filters, so nothing goes from the store"]
    if plan.of_redacted:
        lines.append(
            "the store is redacted: an id that was replaced, such as an e-mail address, is stored as its placeholder; "
            f"they are in offline_arl.open_store('{plan.store}').trajectories"
        )
    return lines


def _derived_lines(derived: Sequence[DerivedData], *, will_rewrite: bool = False) -> list[str]:
    lines = []
    for item in derived:
        held = f"{item.trajectories} of them" + (f" in {item.rows} rows" if item.rows else "")
        what = {
            "holds": f"holds {held}",
            "rewritten": f"was rewritten without {held}",
            "free": "holds none of them",
            "missing": "is not found",
            "unknown": "may hold some",
        }[item.state]
        note = "will be rewritten" if will_rewrite and item.is_to_be_rewritten else item.note
        lines.append(f"  {item.kind} {item.path}: {what}" + (f"; {note}" if note else ""))
        lines.extend(f"    beside it, and left as it is: {path}" for path in item.beside)
    return lines


def _draw_deleted(console: Console, done: Deleted, plan: DeletionPlan) -> None:
    report = done.report
    _print_all(console, _nothing_found(plan))
    kinds = ("trajectories", "steps", "records", "pieces", "feedback", "quarantined", "groups")
    table(console, [f"deleted from {plan.store}", ""], [[name, str(getattr(report, name))] for name in kinds])
    if report.related:
        shown = ", ".join(report.related[:_NAMED])
        console.print(
            f"{len(report.related)} related trajectories remain and may share text (copies, branches, sub-agents): "
            f"{shown}{' ...' if len(report.related) > _NAMED else ''}",
            markup=False,
        )
    if report.detached_groups:
        console.print(f"{report.detached_groups} other sessions shared log records with these and lost their raw ones.")
    _print_all(console, _derived_lines(done.derived))


def _print_all(console: Console, lines: Sequence[str]) -> None:
    for line in lines:
        console.print(line, markup=False)
