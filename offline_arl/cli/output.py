"""What commands print and where: results on stdout, everything else on stderr."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.console import Console

    from offline_arl.workflows.context import Progress

_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_SECONDS_BETWEEN_LINES = 60.0
_WIDTH_OF_FILES = 160  # columns where stdout is no terminal


def harmless(text: str) -> str:
    r"""Text from a log or a file name, without what a terminal would obey: escape sequences, turned direction.

    >>> harmless("a\x1b[31mb\nc")
    'a\ufffd[31mb\nc'
    """
    return _OBEYED.sub("\ufffd", text)


def print_error(message: str, *, as_json: bool, details: Mapping[str, Any] | None = None) -> None:
    """One line on stderr; under `--json` also the object on stdout."""
    line = harmless(" ".join(message.split()))
    print(f"error: {line}", file=sys.stderr)  # noqa: T201
    if as_json:
        _print_json({**(details or {}), "error": line})


class Output(AbstractContextManager["Output"]):
    """Holds stdout back for the one result of a command.

    Inside the `with` block everything that anyone writes to stdout, libraries and child processes included, goes to
    stderr. The result that `finish` was given is printed on the real stdout when the block ends without an error.
    """

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self._result: Mapping[str, Any] | None = None
        self._render: Callable[[Console], None] | None = None

    def __enter__(self) -> Self:
        sys.stdout.flush()
        self._stdout = sys.stdout
        try:
            self._descriptor: int | None = os.dup(self._stdout.fileno())
            os.dup2(sys.stderr.fileno(), self._stdout.fileno())
        except (OSError, io.UnsupportedOperation):  # a test's or a notebook's replacement has no file descriptor
            self._descriptor = None
        sys.stdout = sys.stderr
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.stdout = self._stdout
        if self._descriptor is not None:
            os.dup2(self._descriptor, self._stdout.fileno())
            os.close(self._descriptor)
        if self._result is None or self._render is None:
            return
        if self.as_json:
            _print_json(self._result)
        else:
            from rich.console import Console

            width = None if sys.stdout.isatty() else _WIDTH_OF_FILES
            self._render(Console(file=sys.stdout, highlight=False, width=width))

    def finish(self, result: Mapping[str, Any], render: Callable[[Console], None]) -> None:
        """Give the result: the object for `--json`, and what draws it for people."""
        self._result, self._render = result, render

    def note(self, line: str) -> None:
        """A line for the person who waits, on stderr."""
        print(line, file=sys.stderr, flush=True)  # noqa: T201

    @contextmanager
    def progress(self, *, shown: bool = True) -> Iterator[Progress]:
        """A callback that draws progress bars on stderr, unless they are not to be shown.

        Where stderr is no terminal, a line says once a minute how far the work is.
        """
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TimeRemainingColumn(),
        )  # fmt: skip
        console = Console(stderr=True)
        if not shown:
            yield lambda description, completed, total: None
            return
        if not console.is_terminal:
            yield _Heartbeat(self.note)
            return
        with Progress(*columns, console=console, transient=True, redirect_stdout=False) as bars:
            tasks: dict[str, Any] = {}

            def show(description: str, completed: float, total: float | None, /) -> None:
                if description not in tasks:
                    for task in tasks.values():
                        bars.update(task, visible=False)
                    tasks[description] = bars.add_task(description, total=total)
                bars.update(tasks[description], completed=completed, total=total, visible=True)

            yield show


class _Heartbeat:
    """Progress as a line a minute, for logs."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._last = time.monotonic()

    def __call__(self, description: str, completed: float, total: float | None, /) -> None:
        now = time.monotonic()
        if now - self._last < _SECONDS_BETWEEN_LINES:
            return
        self._last = now
        self._note(f"{description}: {completed:,.0f}" + ("" if total is None else f" of {total:,.0f}"))


def table(console: Console, header: list[str], rows: list[list[str]], *, title: str | None = None) -> None:
    """Draw a table; the first column holds names, the others numbers. Without rows: nothing."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    if not rows:
        return
    drawn = Table(box=SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for index, column in enumerate(header):
        drawn.add_column(escape(column), justify="left" if index == 0 else "right", no_wrap=index == 0)
    for row in rows:
        drawn.add_row(*(escape(harmless(cell)) for cell in row))  # what logs say may look like markup
    console.print(drawn)


def _print_json(value: Mapping[str, Any]) -> None:
    text = json.dumps(value, ensure_ascii=False, default=_plain)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # a terminal that is not UTF-8, or a file name that is not
        text = json.dumps(value, default=_plain)
    print(text)  # noqa: T201


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no JSON form")
