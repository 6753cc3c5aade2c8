"""The options by which commands say which trajectories they mean (see `workflows.filters`)."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, TypeVar, get_type_hints

import typer

_PANEL = "Which trajectories"
_OF_FORMAT = "Ingested from this log format."


class OutcomeChoice(StrEnum):
    """What `--outcome` takes."""

    SUCCESS = "success"
    FAILURE = "failure"
    UNSCORED = "unscored"
    ERROR = "error"


class _Option(NamedTuple):
    field: str  # of `workflows.filters.Filters`
    annotation: Any


def _texts(*flags: str, help: str, metavar: str) -> Any:
    return Annotated[list[str] | None, typer.Option(*flags, metavar=metavar, help=help, rich_help_panel=_PANEL)]


def _text(flag: str, help: str, metavar: str) -> Any:
    return Annotated[str | None, typer.Option(flag, metavar=metavar, help=help, rich_help_panel=_PANEL)]


_OPTIONS: dict[str, _Option] = {
    "task_type": _Option(
        "task_types", _texts("--task-type", help="Of this task type. Repeat for several.", metavar="TYPE")
    ),
    "task": _Option("tasks", _texts("--task", help="Of this task_id.", metavar="ID")),
    "user": _Option("users", _texts("--user", help="Of this user_id.", metavar="ID")),
    "session": _Option("sessions", _texts("--session", help="Of this session_id.", metavar="ID")),
    "split": _Option("splits", _texts("--split", help="In this split.", metavar="NAME")),
    "log_format": _Option("formats", _texts("--log-format", "--format", help=_OF_FORMAT, metavar="NAME")),
    "model": _Option("models", _texts("--model", help="Made by this model.", metavar="NAME")),
    "outcome": _Option(
        "outcomes",
        Annotated[
            list[OutcomeChoice] | None,
            typer.Option("--outcome", help="With this outcome; error: the harness crashed.", rich_help_panel=_PANEL),
        ],
    ),
    "since": _Option("since", _text("--since", "Begun at this time or later.", "DATE")),
    "until": _Option("until", _text("--until", "Begun before this time.", "DATE")),
    "where": _Option("where", _text("--where", "A condition in SQL: success AND n_steps > 3", "SQL")),
}
# For commands whose own `--format` says something else.
_LOG_FORMAT = _Option("formats", _texts("--log-format", help=_OF_FORMAT, metavar="NAME"))

Command = TypeVar("Command", bound=Callable[..., None])


def with_filters(command: Command) -> Command:
    """Give a command the options; its parameter `filters` gets what they say as `workflows.filters.Filters`."""
    signature = inspect.signature(command)
    # typer takes the types from the signature. That of `filters` is not there when the program runs.
    hints = get_type_hints(command, localns={"Filters": object}, include_extras=True)
    options = {**_OPTIONS, "log_format": _LOG_FORMAT} if _has_format(hints) else _OPTIONS

    @functools.wraps(command)
    def filled(**given: Any) -> None:
        from offline_arl.workflows.filters import Filters

        asked = {option.field: given.pop(name) for name, option in _OPTIONS.items()}
        # An empty text, as from an unset shell variable, is not "no filter": Filters refuses it or finds nothing.
        filters: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in asked.items()
            if value not in (None, [])
        }
        command(filters=Filters(**filters), **given)

    kept = [
        parameter.replace(annotation=hints[name])
        for name, parameter in signature.parameters.items()
        if name != "filters"
    ]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option.annotation)
        for name, option in options.items()
    ]
    filled.__signature__ = signature.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]
    filled.__annotations__ = {parameter.name: parameter.annotation for parameter in (*kept, *added)}
    return filled  # type: ignore[return-value]


def _has_format(hints: Mapping[str, Any]) -> bool:
    """Whether one of the parameters is an option `--format`."""
    marks = [(name, mark) for name, hint in hints.items() for mark in getattr(hint, "__metadata__", ())]
    flags = [flag for name, mark in marks for flag in (f"--{name}", *(getattr(mark, "param_decls", None) or ()))]
    # In an annotation, the first flag stands where typer keeps the default of an option that is a default.
    firsts = [getattr(mark, "default", None) for _, mark in marks]
    return "--format" in (*flags, *firsts)
