"""The side table `duplicates` where trajectories are removed: who copies whom after that.

A trajectory is marked as the copy of the first one with the same content. When the first is removed, the next one
takes its place. The table is loaded only when something is removed, into a temporary database of SQLite, which
moves to disk where it is large.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

import polars as pl

DUPLICATES = "duplicates"
DUPLICATE_COLUMNS: dict[str, pl.DataType] = {"trajectory_id": pl.String(), "duplicate_of": pl.String()}


class DuplicateTable:
    """Copies and their originals, in the order in which they were written."""

    def __init__(self, rows: Iterable[tuple[str, str]]) -> None:
        self._connection = sqlite3.connect("", isolation_level=None)
        self._connection.execute("CREATE TABLE copies (id TEXT, original TEXT)")
        self._connection.execute("BEGIN")
        self._connection.executemany("INSERT INTO copies VALUES (?, ?)", rows)
        self._connection.execute("CREATE INDEX by_id ON copies (id)")
        self._connection.execute("CREATE INDEX by_original ON copies (original)")
        self.changed = False

    def add(self, trajectory_id: str, original: str) -> None:
        """Mark a copy."""
        self._connection.execute("INSERT INTO copies VALUES (?, ?)", (trajectory_id, original))

    def remove(self, trajectory_id: str) -> str | None:
        """Forget a trajectory; returns the copy that takes its place as the original of the others, if there is one."""
        deleted = self._connection.execute("DELETE FROM copies WHERE id = ?", (trajectory_id,)).rowcount
        self.changed = self.changed or deleted > 0
        first = self._connection.execute(
            "SELECT id FROM copies WHERE original = ? ORDER BY rowid LIMIT 1", (trajectory_id,)
        ).fetchone()
        if first is None:
            return None
        self._connection.execute("DELETE FROM copies WHERE id = ?", first)
        self._connection.execute("UPDATE copies SET original = ? WHERE original = ?", (first[0], trajectory_id))
        self.changed = True
        return str(first[0])

    def frame(self) -> pl.DataFrame:
        """The whole table."""
        rows = self._connection.execute("SELECT id, original FROM copies ORDER BY rowid").fetchall()
        return pl.DataFrame(rows, schema=DUPLICATE_COLUMNS, orient="row")

    def close(self) -> None:
        """Drop the temporary database."""
        self._connection.close()
