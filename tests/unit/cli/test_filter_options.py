"""The filter options on commands of all shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from offline_arl.cli.filters import with_filters

if TYPE_CHECKING:
    from offline_arl.workflows.filters import Filters

seen: list[Any] = []


@with_filters
def plain(store: Annotated[str, typer.Argument()], filters: Filters, json: bool = False) -> None:
    seen.append((store, filters.as_dict(), json))


@with_filters
def with_its_own_format(
    filters: Filters, output_format: Annotated[str, typer.Option("--format")] = "x", user_count: int = 0
) -> None:
    seen.append((output_format, filters.as_dict(), user_count))


@with_filters
def with_format_by_name(filters: Filters, format: Annotated[str, typer.Option(help="Of the output.")] = "x") -> None:
    seen.append((format, filters.as_dict()))


def called(command: Any, *arguments: str) -> Any:
    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return seen.pop()


@pytest.mark.parametrize("flag", ["--format", "--log-format"])
def test_every_option_lands_in_its_field(flag: str) -> None:
    given = (
        "place", "--task-type", "a", "--task", "1", "--task", "2", "--user", "u", "--session", "s", "--split", "train",
        flag, "atif", "--model", "m", "--outcome", "success", "--outcome", "error", "--since", "2026", "--until",
        "2027", "--where", "success", "--json",
    )  # fmt: skip
    assert called(plain, *given) == (
        "place",
        {
            "task_types": ["a"], "tasks": ["1", "2"], "users": ["u"], "sessions": ["s"], "splits": ["train"],
            "formats": ["atif"], "models": ["m"], "outcomes": ["success", "error"], "since": "2026",
            "until": "2027", "where": "success",
        },
        True,
    )  # fmt: skip


def test_nothing_given_is_no_filter_and_an_empty_text_is_one() -> None:
    assert called(plain, "place") == ("place", {}, False)
    seen_filters: list[Any] = []

    @with_filters
    def keep(filters: Filters) -> None:
        seen_filters.append(filters)
        seen.append(None)

    called(keep, "--user", "", "--where", "")
    assert (seen_filters[0].users, seen_filters[0].where) == (("",), "")


@pytest.mark.parametrize("command", [with_its_own_format, with_format_by_name])
def test_a_format_of_the_command_itself_is_left_to_it(command: Any) -> None:
    found = called(command, "--format", "y", "--log-format", "atif")
    assert found[:2] == ("y", {"formats": ["atif"]})
