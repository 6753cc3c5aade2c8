"""The on-disk index that makes writing idempotent at any size.

A SQLite file with three tables: the records already seen, the trajectory ids in use, and the first trajectory of
each content. Everything in it can be rebuilt from the parts; it is never the source of truth.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

FILE = "index.sqlite"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS records (key BLOB PRIMARY KEY, refused INTEGER NOT NULL, part INTEGER NOT NULL)
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS trajectories (id TEXT PRIMARY KEY, content BLOB NOT NULL, part INTEGER NOT NULL)
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS contents (key BLOB PRIMARY KEY, id TEXT NOT NULL, part INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
"""


class IndexRows(NamedTuple):
    """What one part adds to the index."""

    records: dict[bytes, bool]  # record key to "was refused"
    trajectories: dict[str, bytes]  # trajectory id to content key
    contents: dict[bytes, str]  # content key to the first trajectory id with it


class StoreIndex:
    """Open index of one store; used by the holder of the writer's lock only."""

    def __init__(self, root: Path) -> None:
        self._connection = sqlite3.connect(root / FILE, isolation_level=None)
        self._connection.executescript(_SCHEMA)
        # A lost index is rebuilt, so losing the last transaction in a power cut costs nothing.
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self.empty = self.last_part == 0

    def record_refused(self, key: bytes) -> bool | None:
        """None: the record was never seen. Otherwise whether it was refused."""
        row = None if self.empty else self._one("SELECT refused FROM records WHERE key = ?", key)
        return None if row is None else bool(row[0])

    def content_of(self, trajectory_id: str) -> bytes | None:
        """The content key of the trajectory with this id, or None."""
        row = None if self.empty else self._one("SELECT content FROM trajectories WHERE id = ?", trajectory_id)
        return row[0] if row is not None and isinstance(row[0], bytes) else None

    def first_with(self, content: bytes) -> str | None:
        """The id of the first trajectory with this content, or None."""
        row = None if self.empty else self._one("SELECT id FROM contents WHERE key = ?", content)
        return None if row is None else str(row[0])

    @property
    def last_part(self) -> int:
        """Number of the last part that the index describes; 0 where it describes none."""
        row = self._connection.execute("SELECT value FROM state WHERE name = 'last_part'").fetchone()
        return 0 if row is None else int(row[0])

    def add(self, parts: Iterable[tuple[int, IndexRows]]) -> None:
        """Add what parts hold, in order of their numbers, in one transaction."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            for part, rows in parts:
                self._insert(part, rows)
                self._set_last_part(part)
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")
        self.empty = False

    def forget_after(self, number: int) -> None:
        """Forget the parts after `number`: a killed writer indexed them but did not publish them."""
        self._connection.execute("BEGIN IMMEDIATE")
        for name in ("records", "trajectories", "contents"):
            self._connection.execute(f"DELETE FROM {name} WHERE part > ?", (number,))
        self._set_last_part(number)
        self._connection.execute("COMMIT")
        self.empty = number == 0

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _insert(self, part: int, rows: IndexRows) -> None:
        # In key order, SQLite fills its pages one after another instead of jumping among all of them.
        self._connection.executemany(
            # A record that was refused and is readable now is known as used from here on.
            "INSERT INTO records VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET refused = excluded.refused, "
            "part = excluded.part",
            ((key, int(refused), part) for key, refused in sorted(rows.records.items())),
        )
        self._connection.executemany(
            "INSERT OR IGNORE INTO trajectories VALUES (?, ?, ?)",
            ((name, content, part) for name, content in sorted(rows.trajectories.items())),
        )
        self._connection.executemany(
            "INSERT OR IGNORE INTO contents VALUES (?, ?, ?)",
            ((content, name, part) for content, name in sorted(rows.contents.items())),
        )

    def _one(self, statement: str, parameter: bytes | str) -> tuple[object, ...] | None:
        row: tuple[object, ...] | None = self._connection.execute(statement, (parameter,)).fetchone()
        return row

    def _set_last_part(self, number: int) -> None:
        self._connection.execute("INSERT OR REPLACE INTO state VALUES ('last_part', ?)", (number,))
