"""The on-disk index that makes writing idempotent at any size.

A SQLite file: what became of each record, the trajectory ids in use, the first trajectory of each content, and the
groups of pieces with what was made of them. Everything in it can be rebuilt from the parts (see `rebuild`); it is
never the source of truth. Its transaction is committed after the manifest, so it may be behind the parts and is
never ahead of them.

Keys that are hashes are kept as Base64 text: so the many rows of a part come as one JSON text, of which SQLite makes
rows several times faster than it takes them one by one.
"""

from __future__ import annotations

import binascii
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from offline_arl.trajectories.files import Manifest
from offline_arl.trajectories.record_states import RecordEntry

FILE = "index.sqlite"
_VERSION = 3
_SCHEMA = """
CREATE TABLE records (key TEXT PRIMARY KEY, state INTEGER NOT NULL, groups INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE trajectories (id TEXT PRIMARY KEY, content TEXT NOT NULL, part INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE contents (key TEXT PRIMARY KEY, id TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE groups (
    number INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, pieces INTEGER NOT NULL, seen INTEGER NOT NULL,
    feedback_part INTEGER NOT NULL, feedback BLOB, deleted INTEGER NOT NULL
);
CREATE INDEX dirty ON groups (number) WHERE pieces > seen;
CREATE TABLE group_parts (number INTEGER, part INTEGER, bytes INTEGER NOT NULL, PRIMARY KEY (number, part))
    WITHOUT ROWID;
CREATE TABLE group_trajectories (number INTEGER, name TEXT, id TEXT NOT NULL, digest BLOB NOT NULL,
    PRIMARY KEY (number, name)) WITHOUT ROWID;
CREATE TABLE state (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
"""


class MadeTrajectory(NamedTuple):
    """A trajectory that an assembly made: the id that it got and a digest of its whole row."""

    id: str
    digest: bytes


class AssemblyEntry(NamedTuple):
    """The last assembly of a group."""

    seen: int  # how many pieces it saw
    trajectories: dict[str, MadeTrajectory]  # by the id that the adapter gave
    feedback_part: int  # part that holds the group's feedback; 0 where it has none
    feedback: bytes | None  # digest of the feedback


@dataclass
class GroupRows:
    """What one part holds of a group."""

    id: bytes
    pieces: int = 0
    bytes: int = 0  # of payload


@dataclass
class IndexRows:
    """What one part adds to the index."""

    records: dict[bytes, RecordEntry] = field(default_factory=dict)
    trajectories: dict[str, bytes] = field(default_factory=dict)  # trajectory id to content key
    contents: dict[bytes, str] = field(default_factory=dict)  # content key to the first trajectory id with it
    removed: set[str] = field(default_factory=set)  # trajectory ids whose row in an earlier part is void
    released: set[bytes] = field(default_factory=set)  # content keys whose first trajectory was removed
    groups: dict[int, GroupRows] = field(default_factory=dict)  # by number
    assembled: dict[int, AssemblyEntry] = field(default_factory=dict)  # by number of the group
    deleted_groups: dict[int, bytes] = field(default_factory=dict)  # number to group id


class StoreIndex:
    """Open index of one store; used by the holder of the writer's lock only."""

    def __init__(self, root: Path) -> None:
        self._connection = sqlite3.connect(root / FILE, isolation_level=None)
        # Only where the file is new. The keys of a part are all over the tables; larger pages are fewer to write.
        self._connection.execute("PRAGMA page_size = 16384")
        # A lost index is rebuilt, so losing the last transaction in a power cut costs nothing.
        self._connection.execute("PRAGMA synchronous = NORMAL")
        # The store's lock keeps other writers out: without this, every look-up would lock and unlock the file.
        self._connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        if self._value("PRAGMA user_version") != _VERSION:
            self.reset(0)
        self._connection.execute("CREATE TEMP TABLE retries (number INTEGER PRIMARY KEY)")
        self.empty = self.last_part == 0

    def reset(self, generation: int) -> None:
        """Make the index empty."""
        for (name,) in self._all("SELECT name FROM sqlite_master WHERE type = 'table'"):
            self._connection.execute(f'DROP TABLE "{name}"')
        self._connection.executescript(_SCHEMA)
        self._connection.execute("INSERT INTO state VALUES ('generation', ?)", (generation,))
        self._connection.execute(f"PRAGMA user_version = {_VERSION}")
        self.empty = True

    def record(self, key: bytes) -> RecordEntry | None:
        """What is known of a log record, or None where it was never seen."""
        row = None if self.empty else self._one("SELECT state, groups FROM records WHERE key = ?", _text(key))
        return None if row is None else RecordEntry(*row)

    def records(self, keys: Sequence[bytes]) -> dict[bytes, RecordEntry]:
        """What is known of some log records; those that were never seen are missing."""
        rows = self._chosen("records", "key", "key, state, groups", keys)
        return {_bytes(key): RecordEntry(state, groups) for key, state, groups in rows}

    def content_of(self, trajectory_id: str) -> bytes | None:
        """The content key of the trajectory with this id, or None."""
        row = None if self.empty else self._one("SELECT content FROM trajectories WHERE id = ?", trajectory_id)
        return None if row is None else _bytes(row[0])

    def part_of(self, trajectory_id: str) -> int | None:
        """The number of the part that holds the trajectory with this id, or None."""
        row = None if self.empty else self._one("SELECT part FROM trajectories WHERE id = ?", trajectory_id)
        return None if row is None else row[0]

    def first_with(self, content: bytes) -> str | None:
        """The id of the first trajectory with this content, or None."""
        row = None if self.empty else self._one("SELECT id FROM contents WHERE key = ?", _text(content))
        return None if row is None else row[0]

    def holds_any(self, trajectory_ids: Collection[str]) -> bool:
        """Whether one of these trajectory ids is in use, or cannot be looked up but one by one."""
        return any(map(_is_odd, trajectory_ids)) or bool(self._chosen("trajectories", "id", "id", trajectory_ids))

    def firsts_with(self, contents: Iterable[bytes]) -> dict[bytes, str]:
        """The ids of the first trajectories with these contents, where there are any."""
        return {_bytes(key): name for key, name in self._chosen("contents", "key", "key, id", contents)}

    def group(self, group_id: bytes) -> tuple[int, bool] | None:
        """The number of a group and whether it was deleted, or None where it has no pieces yet."""
        row = None if self.empty else self._one("SELECT number, deleted FROM groups WHERE id = ?", group_id)
        return None if row is None else (row[0], bool(row[1]))

    @property
    def last_group(self) -> int:
        """The highest number of a group."""
        return self._value("SELECT COALESCE(MAX(number), 0) FROM groups")

    def assembly(self, number: int) -> AssemblyEntry:
        """The last assembly of a group; an empty one where there was none."""
        row = self._one("SELECT seen, feedback_part, feedback FROM groups WHERE number = ?", number)
        if row is None:
            return AssemblyEntry(0, {}, 0, None)
        made = self._all("SELECT name, id, digest FROM group_trajectories WHERE number = ?", number)
        return AssemblyEntry(row[0], {name: MadeTrajectory(*rest) for name, *rest in made}, row[1], row[2])

    def groups_of(self, trajectory_ids: Iterable[str]) -> dict[int, bytes]:
        """The groups, number to group id, that some trajectories were assembled from."""
        self._connection.execute("CREATE TEMP TABLE chosen (id TEXT PRIMARY KEY)")
        self._many("INSERT OR IGNORE INTO chosen VALUES (?)", ((name,) for name in trajectory_ids))
        rows = self._all(
            "SELECT DISTINCT groups.number, groups.id FROM group_trajectories AS made "
            "JOIN chosen ON chosen.id = made.id JOIN groups ON groups.number = made.number"
        )
        self._connection.execute("DROP TABLE chosen")
        return dict(rows)

    def retry(self, number: int) -> None:
        """Count a group, if there is one of this number, as dirty until it is assembled or the index is closed."""
        self._connection.execute("INSERT OR IGNORE INTO retries SELECT number FROM groups WHERE number = ?", (number,))

    def settle(self, number: int) -> None:
        """Undo `retry`."""
        self._connection.execute("DELETE FROM retries WHERE number = ?", (number,))

    def dirty_groups(self, after: int, limit: int) -> list[tuple[int, int]]:
        """The next groups with a higher number than `after` to be assembled: (number, payload bytes), ordered."""
        return self._all(
            "SELECT number, (SELECT SUM(bytes) FROM group_parts AS parts WHERE parts.number = dirty.number) FROM ("
            "SELECT number FROM groups WHERE pieces > seen AND number > ?1 "
            "UNION SELECT number FROM retries WHERE number > ?1 ORDER BY number LIMIT ?2) AS dirty ORDER BY number",
            after,
            limit,
        )

    def piece_parts(self, numbers: list[int]) -> dict[int, list[int]]:
        """Which parts hold pieces of some groups (ordered numbers): part number to group numbers."""
        found: dict[int, list[int]] = {}
        wanted = set(numbers)
        rows = self._all("SELECT number, part FROM group_parts WHERE number BETWEEN ? AND ?", numbers[0], numbers[-1])
        for number, part in rows:
            if number in wanted:
                found.setdefault(part, []).append(number)
        return dict(sorted(found.items()))

    @property
    def last_part(self) -> int:
        """Number of the last part that the index describes; 0 where it describes none."""
        return self._state("last_part")

    @property
    def generation(self) -> int:
        """Which numbering of parts the index describes (`Manifest.generation`)."""
        return self._state("generation")

    def begin(self) -> None:
        """Begin the transaction of `add`; ended by `commit` or `rollback`."""
        self._connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Make what was added last."""
        self._connection.execute("COMMIT")
        self.empty = False

    def rollback(self) -> None:
        """Undo what was added since `begin`."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """`begin`, and `commit` or `rollback`."""
        self.begin()
        try:
            yield
        except BaseException:
            self.rollback()
            raise
        self.commit()

    def add(self, part: int, rows: IndexRows) -> None:
        """Add what a part holds, within a transaction; parts come in the order of their numbers."""
        # In key order, SQLite fills its pages one after another instead of jumping among all of them.
        by_entry: dict[RecordEntry, list[bytes]] = {}
        for key, entry in sorted(rows.records.items()):
            by_entry.setdefault(entry, []).append(key)
        for entry, keys in by_entry.items():
            self._insert("OR REPLACE INTO records SELECT value, ?, ?", keys, *entry)
        self._many("DELETE FROM trajectories WHERE id = ?", ((name,) for name in sorted(rows.removed)))
        self._many("DELETE FROM contents WHERE key = ?", ((_text(key),) for key in sorted(rows.released)))
        contents = dict(sorted(rows.trajectories.items()))
        firsts = {name: key for key, name in sorted(rows.contents.items())}
        self._many(
            "INSERT OR IGNORE INTO trajectories VALUES (?, ?, ?)",
            [(name, _text(contents.pop(name)), part) for name in filter(_is_odd, rows.trajectories)],
        )
        self._many(
            "INSERT OR IGNORE INTO contents VALUES (?, ?)",
            [(_text(firsts.pop(name)), name) for name in filter(_is_odd, rows.contents.values())],
        )
        self._insert("OR IGNORE INTO trajectories SELECT key, value, ?", contents, part)
        self._insert("OR IGNORE INTO contents SELECT value, key", firsts)
        self._add_groups(part, rows)
        self._connection.execute("INSERT OR REPLACE INTO state VALUES ('last_part', ?)", (part,))
        self.empty = False

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _add_groups(self, part: int, rows: IndexRows) -> None:
        self._many(
            "INSERT INTO groups VALUES (?, ?, ?, 0, 0, NULL, 0) "
            "ON CONFLICT DO UPDATE SET pieces = pieces + excluded.pieces",
            ((number, group.id, group.pieces) for number, group in sorted(rows.groups.items())),
        )
        self._many(
            "INSERT INTO groups VALUES (?, ?, 0, 0, 0, NULL, 1) ON CONFLICT DO UPDATE SET deleted = 1",
            sorted(rows.deleted_groups.items()),
        )
        self._many(
            "INSERT INTO group_parts VALUES (?, ?, ?)",
            ((number, part, group.bytes) for number, group in sorted(rows.groups.items())),
        )
        assembled = sorted(rows.assembled.items())
        self._many(
            "UPDATE groups SET seen = ?, feedback_part = ?, feedback = ? WHERE number = ?",
            ((entry.seen, entry.feedback_part, entry.feedback, number) for number, entry in assembled),
        )
        self._many("DELETE FROM group_trajectories WHERE number = ?", ((number,) for number, _ in assembled))
        self._many(
            "INSERT INTO group_trajectories VALUES (?, ?, ?, ?)",
            ((number, name, *made) for number, entry in assembled for name, made in entry.trajectories.items()),
        )

    def _state(self, name: str) -> int:
        row = self._one("SELECT value FROM state WHERE name = ?", name)
        return 0 if row is None else int(row[0])

    def _value(self, statement: str) -> int:
        return int(self._connection.execute(statement).fetchone()[0])

    def _one(self, statement: str, parameter: bytes | str | int) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self._connection.execute(statement, (parameter,)).fetchone()
        return row

    def _all(self, statement: str, *parameters: bytes | str | int) -> list[Any]:
        return self._connection.execute(statement, parameters).fetchall()

    def _chosen(self, table: str, key: str, columns: str, keys: Iterable[bytes] | Iterable[str]) -> list[Any]:
        """The rows of a table with some keys."""
        if self.empty:
            return []
        # The order of the join is given: SQLite would rather go through the whole table.
        return self._all(
            f"SELECT {columns} FROM (SELECT value AS wanted FROM json_each(?)) CROSS JOIN {table} ON {key} = wanted",
            msgspec.json.encode(list(keys)).decode(),
        )

    def _insert(self, statement: str, rows: Iterable[bytes] | Mapping[str, bytes], *parameters: int) -> None:
        """Insert what `statement` selects from JSON: an array of keys, or an object of keys by trajectory id."""
        text = msgspec.json.encode(rows)
        self._connection.execute(f"INSERT {statement} FROM json_each(?)", (*parameters, text.decode()))

    def _many(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        self._connection.executemany(statement, rows)


def part_of(root: Path, manifest: Manifest, trajectory_id: str) -> int | None:
    """The number of the part that holds a trajectory, 0 where none does, None where the index cannot tell.

    Takes no lock.
    """
    if not (root / FILE).exists():
        return None
    try:
        with closing(sqlite3.connect(f"{(root / FILE).absolute().as_uri()}?mode=ro", uri=True, timeout=0)) as index:
            if index.execute("PRAGMA user_version").fetchone()[0] != _VERSION:
                return None
            state = dict(index.execute("SELECT name, value FROM state"))
            last_part = max((part.number for part in manifest.parts), default=0)
            if state.get("generation") != manifest.generation or state.get("last_part") != last_part:
                return None
            row = index.execute("SELECT part FROM trajectories WHERE id = ?", (trajectory_id,)).fetchone()
            return 0 if row is None else int(row[0])
    except sqlite3.Error:  # a writer is at work on it, or it is damaged
        return None


def _text(key: bytes) -> str:
    """A key as it is kept; the same as msgspec makes of bytes in JSON."""
    return binascii.b2a_base64(key, newline=False).decode()


def _is_odd(text: str) -> bool:
    """Whether SQLite would cut a text where it takes it from JSON."""
    return "\0" in text


def _bytes(text: str) -> bytes:
    return binascii.a2b_base64(text)
