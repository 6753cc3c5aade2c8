"""The one vocabulary in which commands say which trajectories they mean.

What is given several times in one field is an alternative (`tasks=("7", "8")`: either), different fields must all
hold. `where` is a condition in SQL on the columns of `Store.trajectories`, of functions that look at one row at a
time: a condition means the same for a store, for one of its parts and for a row.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, Literal

import polars as pl

from offline_arl.errors import UsageError
from offline_arl.trajectories import select
from offline_arl.trajectories.encoding import SCALAR_COLUMNS
from offline_arl.trajectories.moments import began
from offline_arl.trajectories.store import Store

OutcomeName = Literal["success", "failure", "unscored", "error"]

COLUMNS: Mapping[str, pl.DataType] = {**SCALAR_COLUMNS, "duplicate_of": pl.String(), "split": pl.String()}
_OUTCOMES: Mapping[OutcomeName, Callable[[], pl.Expr]] = {
    "success": select.successful,
    "failure": select.failed,
    "unscored": lambda: pl.col("status") == "unscored",
    "error": lambda: pl.col("status") == "infrastructure_error",
}
# Functions of one row. Aggregates and windows would depend on what else the store holds.
FUNCTIONS = frozenset({
    "abs", "cast", "ceil", "coalesce", "concat", "concat_ws", "date", "date_part", "ends_with", "extract", "floor",
    "greatest", "if", "ifnull", "least", "left", "length", "lower", "ltrim", "mod", "nullif", "octet_length",
    "regexp_like", "replace", "right", "round", "rtrim", "starts_with", "strpos", "substr", "timestamp", "trim",
    "try_cast", "upper",
})  # fmt: skip
_WORDS_BEFORE_BRACKETS = frozenset(
    ["and", "or", "not", "in", "when", "then", "else", "between", "like", "ilike", "from"]
)
_FORBIDDEN = frozenset(("select", "over"))  # subqueries read files, windows see other rows
_SHOWN = 80  # characters of a condition in an error


@dataclass(frozen=True)
class Filters:
    """Which trajectories; without any field: all of them.

    `models` and the like compare whole texts. `outcomes`: success and failure are verdicts, a score without one is
    neither. `since` is inclusive and `until` is not; both look at when a trajectory began (ended, where the log
    has no beginning), so one without a time is in neither.
    """

    task_types: Sequence[str] = ()
    tasks: Sequence[str] = ()
    users: Sequence[str] = ()
    sessions: Sequence[str] = ()
    splits: Sequence[str] = ()
    formats: Sequence[str] = ()
    models: Sequence[str] = ()
    outcomes: Sequence[OutcomeName] = ()
    since: str | None = None
    until: str | None = None
    where: str | None = None

    def condition(self) -> pl.Expr | None:
        """The condition on the columns of `Store.trajectories`; None where nothing is asked for.

        Raises:
            UsageError: A date cannot be read, an outcome is unknown, or `where` is no condition on these columns.
        """
        equal = {
            "task_type": self.task_types, "task_id": self.tasks, "user_id": self.users, "session_id": self.sessions,
            "split": self.splits, "source_format": self.formats, "model": self.models,
        }  # fmt: skip
        conditions = [pl.col(column).is_in(list(values)) for column, values in equal.items() if values]
        if self.outcomes:
            conditions.append(pl.any_horizontal(_outcome(name) for name in self.outcomes))
        if self.since is not None:
            conditions.append(began() >= _point_in_time(self.since, "--since"))
        if self.until is not None:
            conditions.append(began() < _point_in_time(self.until, "--until"))
        if self.where is not None:
            conditions.append(parse_where(self.where))
        if not conditions:
            return None
        return pl.all_horizontal(condition.fill_null(value=False) for condition in conditions)

    def for_store(self, store: Store) -> Filters:
        """The same filters for one store: who is asked for by an id that was redacted is found by its placeholder.

        Raises:
            DataError: The store is redacted, and the key beside it is another one.
            MissingDependencyError: The store is redacted, and a package that redaction needs is not installed.
        """
        if not self.users and not self.sessions:
            return self
        from offline_arl.workflows.redacted_stores import ids_as_stored

        users, sessions = (
            ids_as_stored(store, ids, key) for ids, key in ((self.users, "user_id"), (self.sessions, "session_id"))
        )
        return replace(self, users=users, sessions=sessions)

    def as_dict(self) -> dict[str, Any]:
        """What is asked for, for reports."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items() if value}


def parse_where(text: str) -> pl.Expr:
    """The condition that an SQL text says, of the columns of `Store.trajectories`.

    Known are comparisons, AND, OR, NOT, IN, BETWEEN, LIKE, IS NULL, CASE, arithmetic, and the functions in
    `FUNCTIONS`.

    Raises:
        UsageError: It cannot be read, names an unknown column or function, or is no condition.
    """
    _check_words(text)
    try:
        expression = pl.sql_expr(text)
        _check_columns(text, expression)
        pl.DataFrame(schema=dict(COLUMNS)).filter(expression)
    except pl.exceptions.PolarsError as error:
        raise UsageError(
            f"{_shown(text)}: {_first_line(error)}; write SQL such as: user_id = 'u7' AND n_steps > 3"
        ) from error
    return expression


@contextmanager
def told_conditions(store: Store | None = None) -> Iterator[None]:
    """Turn what only the data shows about a condition (a text that is cast and is no number) into one line.

    Where a file of the store is damaged, the condition is not to blame, and the error is left to
    `stores.told_damage` around the block.

    Raises:
        UsageError: The condition cannot be evaluated.
    """
    try:
        yield
    except pl.exceptions.PolarsError as error:
        if store is not None and store.verify():
            raise
        raise UsageError(f"--where: {_first_line(error)}; see try_cast for values that are not all numbers") from error


def _check_words(text: str) -> None:
    """Refuse what looks at more than one row or at files, before polars gets to see it."""
    bare = re.sub(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"", " '' ", text)
    if "--" in bare or "/*" in bare or ";" in bare:
        raise UsageError(f"{_shown(text)}: holds a comment or several statements; give one condition")
    words = {word.lower() for word in re.findall(r"[A-Za-z_]\w*", bare)}
    called = {name.lower() for name in re.findall(r"([A-Za-z_]\w*)\s*\(", bare)} - _WORDS_BEFORE_BRACKETS
    unknown = sorted((words & _FORBIDDEN) | (called - FUNCTIONS))
    if unknown:
        known = ", ".join(sorted(FUNCTIONS))
        raise UsageError(f"{_shown(text)}: {unknown[0]} cannot be used here; functions of one row are: {known}")


def _check_columns(text: str, expression: pl.Expr) -> None:
    names = expression.meta.root_names()
    if not names:
        raise UsageError(f"{_shown(text)}: names no column; give a condition on one of: {', '.join(COLUMNS)}")
    for name in names:
        if name not in COLUMNS:
            close = difflib.get_close_matches(name, COLUMNS, n=1)
            hint = f"did you mean {close[0]}?" if close else "texts stand in single quotes."
            raise UsageError(f"{_shown(text)}: no column {name!r}; {hint} Columns: {', '.join(COLUMNS)}")


def _shown(text: str) -> str:
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return f"--where {shown!r}"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]


def _outcome(name: OutcomeName) -> pl.Expr:
    if name not in _OUTCOMES:
        raise UsageError(f"--outcome {name}: unknown; give one of {', '.join(_OUTCOMES)}")
    return _OUTCOMES[name]().fill_null(value=False)


def _point_in_time(text: str, option: str) -> datetime:
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(f"{option} {text!r}: no date; write 2026-01-31 or 2026-01-31T12:00:00+02:00") from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
